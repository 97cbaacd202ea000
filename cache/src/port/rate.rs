//! How many commands a guest may send.

use std::time::{Duration, Instant};

/// Commands that a guest may send at once, and that it may send a second in the long run: containers come and go at a
/// lower rate. Each takes locks that the host's own changes take.
pub(super) const BURST: u32 = 256;
const A_SECOND: u32 = 64;

/// A bucket of commands.
#[derive(Debug)]
pub(super) struct CommandRate {
    left: u32,
    since: Instant,
}

impl CommandRate {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            left: BURST,
            since: now,
        }
    }

    /// May a command be executed now? It counts then.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let each = Duration::from_secs(1) / A_SECOND;
        let passed = now.saturating_duration_since(self.since).as_nanos() / each.as_nanos();
        let passed = u32::try_from(passed).unwrap_or(u32::MAX);
        if passed >= BURST - self.left {
            self.left = BURST;
            self.since = now;
        } else {
            self.left += passed;
            self.since += each * passed;
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
        let mut rate = CommandRate::new(start);
        let mut taken = |ms: u64, tries: u32| {
            let now = start + Duration::from_millis(ms);
            (0..tries).filter(|_| rate.take(now)).count()
        };
        assert_eq!(taken(0, 1000), 256);
        assert_eq!(taken(10, 1000), 0);
        assert_eq!(taken(1000, 1000), 64);
        // What is left over of a second is not lost.
        assert_eq!(
            (1..=100).map(|n| taken(1000 + n * 10, 5)).sum::<usize>(),
            64
        );
        assert_eq!(taken(3_600_000, 1000), 256);
        assert_eq!(taken(0, 1), 0, "a clock that goes back");
    }
}
