//! The rate at which the agent follows changes in delegated subtrees. A delegatee can make, remove, populate and write
//! cgroups in a loop, and each change costs the agent about as much as it costs the delegatee.

use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use justitia_kernel::cgroup::CgroupId;

/// Refreshes per second: some 0.2 % of a CPU.
const RATE: f64 = 200.0;
/// Refreshes that may come at once, as when a session starts or a pod is deployed.
const BURST: f64 = 1200.0;
/// The cost of adding a cgroup, in refreshes.
const ADDITION: f64 = 4.0;

/// What of a cgroup is read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum RefreshKind {
    /// The list of its children.
    Children,
    /// Whether any process lives in it.
    Populated,
    /// Its weight.
    Weight,
    /// Its `memory.low`.
    Low,
}

/// A queue of refreshes, drained as a token bucket allows. A refresh is queued once, however often it is asked for.
#[derive(Debug)]
pub(super) struct RateLimiter {
    queue: VecDeque<(CgroupId, RefreshKind)>,
    queued: HashSet<(CgroupId, RefreshKind)>,
    /// Refreshes that may be done now; below zero after a burst of additions.
    tokens: f64,
    refilled_at: Option<Instant>,
}

impl RateLimiter {
    /// An empty queue and a full bucket.
    pub(super) fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            queued: HashSet::new(),
            tokens: BURST,
            refilled_at: None,
        }
    }

    /// Asks for a refresh.
    pub(super) fn enqueue(&mut self, id: CgroupId, kind: RefreshKind) {
        if self.queued.insert((id, kind)) {
            self.queue.push_back((id, kind));
        }
    }

    /// The next refresh, if the rate allows one now.
    pub(super) fn next(&mut self, now: Instant) -> Option<(CgroupId, RefreshKind)> {
        if let Some(at) = self.refilled_at {
            let passed = now.saturating_duration_since(at).as_secs_f64();
            self.tokens = (self.tokens + passed * RATE).min(BURST);
        }
        self.refilled_at = Some(now);
        if self.tokens <= 0.0 {
            return None;
        }
        let next = self.queue.pop_front()?;
        self.queued.remove(&next);
        self.tokens -= 1.0;
        Some(next)
    }

    /// A refresh has added so many cgroups.
    pub(super) fn charge(&mut self, cgroups: usize) {
        let cgroups = u64::try_from(cgroups).unwrap_or(u64::MAX);
        self.tokens -= justitia_share::num::to_f64(cgroups) * ADDITION;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_refresh_is_queued_once_and_done_in_time() {
        let t0 = Instant::now();
        let mut limiter = RateLimiter::new();
        for _ in 0..1000 {
            limiter.enqueue(CgroupId(1), RefreshKind::Low);
            limiter.enqueue(CgroupId(1), RefreshKind::Weight);
        }
        assert_eq!(limiter.next(t0), Some((CgroupId(1), RefreshKind::Low)));
        assert_eq!(limiter.next(t0), Some((CgroupId(1), RefreshKind::Weight)));
        assert_eq!(limiter.next(t0), None);
        for n in 0..5000 {
            limiter.enqueue(CgroupId(n), RefreshKind::Populated);
        }
        limiter.charge(200);
        let took = |limiter: &mut RateLimiter, at: Instant| {
            std::iter::from_fn(|| limiter.next(at)).count()
        };
        assert_eq!(took(&mut limiter, t0), 398);
        assert_eq!(took(&mut limiter, t0), 0);
        assert_eq!(took(&mut limiter, t0 + Duration::from_secs(1)), 200);
        // However late, it comes.
        let mut at = t0;
        let all: usize = (0..60)
            .map(|_| {
                at += Duration::from_secs(1);
                took(&mut limiter, at)
            })
            .sum();
        assert_eq!(all, 5000 - 598);
    }
}
