//! How often our value is written again over a value that was merely reapplied.
//!
//! systemd writes a unit's properties into its cgroup whenever it realizes the unit: at `daemon-reload`, at
//! `daemon-reexec`, when a property of it or of a sibling changes. It writes the original value, and nobody has decided
//! that. A writer that repeats it more often counts as a decision, and the knob is external from then on.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// At most so many times within a [`WINDOW`]: somebody who reloads systemd by hand does it less often.
const LIMIT: usize = 6;
/// See [`LIMIT`].
const WINDOW: Duration = Duration::from_secs(60);

/// When one knob was written again.
#[derive(Debug, Default)]
pub(super) struct ReapplyLimiter(VecDeque<Instant>);

impl ReapplyLimiter {
    /// Whether our value may be written once more; counts it then.
    pub(super) fn allow(&mut self, now: Instant) -> bool {
        while self
            .0
            .front()
            .is_some_and(|at| now.saturating_duration_since(*at) >= WINDOW)
        {
            self.0.pop_front();
        }
        let allowed = self.0.len() < LIMIT;
        if allowed {
            self.0.push_back(now);
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_writes_a_minute_are_allowed_and_old_ones_do_not_count() {
        let begin = Instant::now();
        let mut limiter = ReapplyLimiter::default();
        let mut allowed = |seconds| limiter.allow(begin + Duration::from_secs(seconds));
        assert!((0..6).all(&mut allowed));
        assert!(!allowed(6) && !allowed(59), "a seventh within a minute");
        assert!(allowed(60), "the first is a minute old");
        assert!(!allowed(60));
        assert!((200..206).all(&mut allowed));
    }
}
