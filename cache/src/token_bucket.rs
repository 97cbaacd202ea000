//! Limits a rate by a token bucket (RFC 2697).

use std::time::{Duration, Instant};

/// A bucket that holds at most `most` tokens, and gets one in each interval.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    most: u32,
    each: Duration,
    left: u32,
    since: Instant,
}

impl TokenBucket {
    /// A full one.
    pub(crate) const fn new(most: u32, each: Duration, now: Instant) -> Self {
        Self {
            most,
            each,
            left: most,
            since: now,
        }
    }

    /// Takes a token, if there is one.
    pub(crate) fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.since).as_nanos() / self.each.as_nanos();
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        if passed >= self.most - self.left {
            self.left = self.most;
            self.since = now;
        } else {
            self.left += passed;
            self.since += self.each * passed;
        }
        let allowed = self.left > 0;
        self.left = self.left.saturating_sub(1);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_so_many_a_second() {
        let start = Instant::now();
        let mut rate = TokenBucket::new(256, Duration::from_secs(1) / 64, start);
        let mut taken = |ms: u64, tries: u32| {
            let now = start + Duration::from_millis(ms);
            (0..tries).filter(|_| rate.take(now)).count()
        };
        assert_eq!(taken(0, 1000), 256);
        assert_eq!(taken(10, 1000), 0);
        assert_eq!(taken(1000, 1000), 64);
        // The remainder of a second is not lost.
        assert_eq!(
            (1..=100).map(|n| taken(1000 + n * 10, 5)).sum::<usize>(),
            64
        );
        assert_eq!(taken(3_600_000, 1000), 256);
        assert_eq!(taken(0, 1), 0, "a clock that goes back");
    }
}
