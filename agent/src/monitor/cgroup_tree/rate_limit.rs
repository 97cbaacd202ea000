//! How fast the agent follows what goes on below delegated cgroups: whoever was given one can make, remove, fill and
//! write cgroups in a loop, and each costs us about what it costs him.

use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use justitia_kernel::cgroup::CgroupId;

/// Small readings a second that are always affordable: some 0.2 % of a CPU.
const RATE: f64 = 200.0;
/// So many may come at once: a session that starts, a pod that is deployed.
const SAVED: f64 = 1200.0;
/// What taking in a cgroup costs, in small readings.
const ADMISSION: f64 = 4.0;

/// What is to be looked at again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RefreshKind {
    /// Which children it has.
    Children,
    /// Whether any process lives in it.
    Populated,
    /// Its weight.
    Weight,
    /// Its `memory.low`.
    Low,
}

/// What has happened below delegated cgroups and was not looked at yet: each once, however often it has happened.
#[derive(Debug)]
pub struct RateLimiter {
    queue: VecDeque<(CgroupId, RefreshKind)>,
    queued: HashSet<(CgroupId, RefreshKind)>,
    left: f64,
    at: Option<Instant>,
}

impl RateLimiter {
    /// Nothing has happened yet.
    pub fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            queued: HashSet::new(),
            left: SAVED,
            at: None,
        }
    }

    /// Something has happened.
    pub fn enqueue(&mut self, id: CgroupId, what: RefreshKind) {
        if self.queued.insert((id, what)) {
            self.queue.push_back((id, what));
        }
    }

    /// What to look at now, if that can be afforded.
    pub fn next(&mut self, now: Instant) -> Option<(CgroupId, RefreshKind)> {
        if let Some(at) = self.at {
            let passed = now.saturating_duration_since(at).as_secs_f64();
            self.left = (self.left + passed * RATE).min(SAVED);
        }
        self.at = Some(now);
        if self.left <= 0.0 {
            return None;
        }
        let next = self.queue.pop_front()?;
        self.queued.remove(&next);
        self.left -= 1.0;
        Some(next)
    }

    /// So many cgroups were taken in.
    pub fn charge(&mut self, cgroups: usize) {
        let cgroups = u64::try_from(cgroups).unwrap_or(u64::MAX);
        self.left -= justitia_share::num::to_f64(cgroups) * ADMISSION;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_same_is_looked_at_once_and_all_in_time() {
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
