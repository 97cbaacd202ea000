//! Exponential decay.

use std::f64::consts::LN_2;
use std::time::Duration;

/// The time after which what was counted is worth half. Of what was counted longer ago a smaller part is left; after a
/// half-life of zero, nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HalfLife(Duration);

impl HalfLife {
    /// A half-life of this time.
    #[must_use]
    pub const fn new(half_life: Duration) -> Self {
        Self(half_life)
    }

    /// The half-life itself.
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }

    /// The factor, 0 to 1, by which what was counted is to be multiplied once this time has passed.
    #[must_use]
    pub fn decay(self, elapsed: Duration) -> f64 {
        if elapsed.is_zero() {
            return 1.0;
        }
        (-elapsed.as_secs_f64() / self.0.as_secs_f64()).exp2()
    }

    /// The mean age of what is counted at a steady rate. The sum settles at the rate times this.
    #[must_use]
    pub fn mean_life(self) -> Duration {
        self.0.div_f64(LN_2)
    }
}

// Means of the latest of many times.

/// Times of which a mean is known; of fewer it is not.
const KNOWN: u64 = 64;

/// The mean time of the latest of many: each time that it is of more than `REMEMBERED`, it forgets half of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecentMean<const REMEMBERED: u64> {
    count: u64,
    ns: u64,
}

impl<const REMEMBERED: u64> RecentMean<REMEMBERED> {
    /// Adds `count` events that took `ns` nanoseconds together.
    pub const fn add(&mut self, count: u64, ns: u64) {
        self.count = self.count.saturating_add(count);
        self.ns = self.ns.saturating_add(ns);
        while self.count > REMEMBERED {
            self.count /= 2;
            self.ns /= 2;
        }
    }

    /// Nanoseconds of one; `None` while fewer than 64 are known.
    #[must_use]
    pub fn get(&self) -> Option<u64> {
        (self.count >= KNOWN).then(|| self.ns / self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_is_left_after_a_half_life() {
        let half_life = HalfLife::new(Duration::from_secs(10));
        let left = |seconds| half_life.decay(Duration::from_secs(seconds));
        assert_eq!((left(0), left(10), left(20)), (1.0, 0.5, 0.25));
        assert_eq!(half_life.decay(Duration::MAX), 0.0);
        let none = HalfLife::new(Duration::from_secs(0));
        assert_eq!(none.decay(Duration::ZERO), 1.0);
        assert_eq!(none.decay(Duration::from_nanos(1)), 0.0);
    }

    #[test]
    fn a_steady_rate_adds_up_to_the_mean_life() {
        let half_life = HalfLife::new(Duration::from_secs(60));
        let step = Duration::from_millis(100);
        let sum = (0..20_000).fold(0.0, |sum: f64, _| sum.mul_add(half_life.decay(step), 0.1));
        let expected = half_life.mean_life().as_secs_f64();
        assert!((sum / expected - 1.0).abs() < 0.001, "{sum} {expected}");
    }

    #[test]
    fn a_mean_is_of_the_latest() {
        let mut mean = RecentMean::<256>::default();
        mean.add(63, 63_000);
        assert_eq!(mean.get(), None);
        mean.add(1, 1000);
        assert_eq!(mean.get(), Some(1000));
        for _ in 0..2000 {
            mean.add(1, 5000);
        }
        assert!(mean.get().is_some_and(|ns| ns > 4900), "{mean:?}");
        mean.add(u64::MAX, u64::MAX);
        mean.add(0, u64::MAX);
        assert!(mean.get().is_some());
    }
}
