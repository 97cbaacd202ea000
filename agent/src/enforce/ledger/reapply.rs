//! How often a value that was merely applied again is written over.
//!
//! systemd writes a unit's properties into its cgroup whenever it realises the unit: at `daemon-reload`, at
//! `daemon-reexec`, when a property of it or of a sibling changes. What it writes is what stood there before the agent,
//! and nobody's decision. A writer that insists is one that has decided, and is yielded to.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// So many times within a [`WINDOW`]: somebody who reloads systemd by hand does it less often.
const MOST: usize = 6;
/// See [`MOST`].
const WINDOW: Duration = Duration::from_secs(60);

/// When one knob was written over.
#[derive(Debug, Default)]
pub(super) struct Rewrites(VecDeque<Instant>);

impl Rewrites {
    /// Whether it may be written over once more; counts it then.
    pub(super) fn allow(&mut self, now: Instant) -> bool {
        while self
            .0
            .front()
            .is_some_and(|at| now.saturating_duration_since(*at) >= WINDOW)
        {
            self.0.pop_front();
        }
        let allowed = self.0.len() < MOST;
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
    fn six_times_a_minute_and_again_when_they_are_old() {
        let begin = Instant::now();
        let mut rewrites = Rewrites::default();
        let mut allowed = |seconds| rewrites.allow(begin + Duration::from_secs(seconds));
        assert!((0..6).all(&mut allowed));
        assert!(!allowed(6) && !allowed(59), "a seventh within a minute");
        assert!(allowed(60), "the first is a minute old");
        assert!(!allowed(60));
        assert!((200..206).all(&mut allowed));
    }
}
