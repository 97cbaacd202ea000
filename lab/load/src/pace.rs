//! A bound on what all workers together transfer (Filebench: bwlimit).

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use justitia_share::num::to_f64;

/// How much unused rate may be made up for after a stall.
const CATCH_UP: Duration = Duration::from_secs(1);
/// Longest sleep without a look at whether the run is over.
const SLICE: Duration = Duration::from_millis(50);

/// Hands out bytes at a rate.
pub(crate) struct Pacer {
    rate: f64,
    next: Mutex<Option<Instant>>,
}

impl Pacer {
    /// `rate` bytes per second, at least 1.
    pub(crate) fn new(rate: u64) -> Self {
        Self {
            rate: to_f64(rate.max(1)),
            next: Mutex::new(None),
        }
    }

    /// Waits until `bytes` more may be transferred, or `stop`.
    pub(crate) fn take(&self, bytes: u64, stop: &dyn Fn() -> bool) {
        sleep_until(self.due(bytes, Instant::now()), stop);
    }

    /// When `bytes` more may be transferred, asked for at `now`.
    fn due(&self, bytes: u64, now: Instant) -> Instant {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let due = match *next {
            Some(due) => due.max(now.checked_sub(CATCH_UP).unwrap_or(due)),
            None => now,
        };
        // A rate of 1 B/s and exabytes at once would overflow; an hour is long enough.
        let cost = (to_f64(bytes) / self.rate).min(3600.0);
        *next = Some(due + Duration::from_secs_f64(cost));
        due
    }
}

/// Sleeps until `deadline`, in slices, unless `stop`.
pub(crate) fn sleep_until(deadline: Instant, stop: &dyn Fn() -> bool) {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || stop() {
            return;
        }
        std::thread::sleep(left.min(SLICE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_holds_over_time() {
        let pacer = Pacer::new(1000);
        let start = Instant::now();
        let dues: Vec<_> = (0..5).map(|_| pacer.due(500, start)).collect();
        let seconds: Vec<_> = dues.iter().map(|d| (*d - start).as_secs_f64()).collect();
        assert_eq!(seconds, [0.0, 0.5, 1.0, 1.5, 2.0]);
    }

    #[test]
    fn a_stall_is_made_up_for_within_bounds() {
        let pacer = Pacer::new(1000);
        let start = Instant::now();
        pacer.due(1000, start);
        let later = start + Duration::from_secs(60);
        assert_eq!(pacer.due(1000, later), later - CATCH_UP);
        assert_eq!(pacer.due(1000, later), later);
    }
}
