//! Whether the SSD store is worth it for a pool: what is measured of its reads and writes there, and what follows.
//!
//! The law: [`crate::worth`].

use crate::clock;
use crate::worth::{Decision, Evidence, Prices, Sample, SsdAdmission, decide};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Of one pool. What it does costs or saves it alone.
#[derive(Default)]
pub(crate) struct PoolWorth {
    /// Not all is admitted.
    is_sampled: AtomicBool,
    /// Blocks that have left the SSD since the last decision.
    left: AtomicU64,
    /// What a read takes of the disk that its blocks were of last, nanoseconds; 0 while that is not known.
    disk_read_ns: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    decision: Decision,
    seen: Evidence,
    sample: Sample,
}

impl PoolWorth {
    /// Is a block admitted to the SSD store that comes now?
    pub(crate) fn admits(&self) -> bool {
        self.admits_all() || self.state.lock().sample.admits(clock::now())
    }

    /// Is all admitted?
    pub(crate) fn admits_all(&self) -> bool {
        !self.is_sampled.load(Ordering::Relaxed)
    }

    /// What is admitted.
    pub(crate) fn get(&self) -> SsdAdmission {
        match self.admits_all() {
            true => SsdAdmission::All,
            false => self.state.lock().decision.worth,
        }
    }

    /// Does a block leave that was read there?
    pub(crate) fn leaves(&self) -> bool {
        self.get() == SsdAdmission::Leave
    }

    /// Blocks come of a disk, a read of which takes so long.
    pub(crate) fn set_disk_read(&self, ns: Option<u64>) {
        if let Some(ns) = ns {
            self.disk_read_ns.store(ns.max(1), Ordering::Relaxed);
        }
    }

    /// So many blocks have left the SSD.
    pub(crate) fn left(&self, blocks: u64) {
        self.left.fetch_add(blocks, Ordering::Relaxed);
    }

    /// A read has read from the SSD for so long. `served`: the disk was not needed.
    pub(crate) fn was_read(&self, took: Duration, served: bool, write_ns: u64) {
        let disk_read_ns = self.disk_read_ns.load(Ordering::Relaxed);
        if disk_read_ns == 0 {
            return;
        }
        let mut state = self.state.lock();
        let seen = &mut state.seen;
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        seen.reading_ns = seen.reading_ns.saturating_add(took);
        let saved = if served { disk_read_ns } else { 0 };
        seen.saved_ns = seen.saved_ns.saturating_add(saved);
        self.judge(&mut state, write_ns);
    }

    /// Decides anew, if enough has happened. `write_ns` is what a block takes that is written.
    pub(crate) fn update(&self, write_ns: u64) {
        self.judge(&mut self.state.lock(), write_ns);
    }

    fn judge(&self, state: &mut State, write_ns: u64) {
        let disk_read_ns = self.disk_read_ns.load(Ordering::Relaxed);
        if disk_read_ns == 0 {
            return;
        }
        let left = self.left.load(Ordering::Relaxed);
        let seen = Evidence { left, ..state.seen };
        let at = Prices {
            disk_read_ns,
            write_ns,
        };
        if let Some(decision) = decide(state.decision, &seen, at) {
            self.left.fetch_sub(left, Ordering::Relaxed);
            self.change(state, decision);
        }
    }

    fn change(&self, state: &mut State, decision: Decision) {
        let all = |decision: Decision| decision.worth == SsdAdmission::All;
        if all(decision) != all(state.decision) {
            state.sample = Sample::default();
        }
        state.seen = Evidence::default();
        state.decision = decision;
        self.is_sampled.store(!all(decision), Ordering::Relaxed);
    }

    /// Forgets everything but the disk: the store is another one, or the pool begins to use it.
    pub(crate) fn reset(&self) {
        self.set(SsdAdmission::All);
    }

    /// Decides so, whatever has happened.
    pub(crate) fn set(&self, worth: SsdAdmission) {
        self.left.store(0, Ordering::Relaxed);
        let decision = Decision { worth, in_vain: 0 };
        self.change(&mut self.state.lock(), decision);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_follows_what_its_reads_take() {
        let pool = PoolWorth::default();
        let read = |us: u64, served| {
            for _ in 0..2000 {
                pool.was_read(Duration::from_micros(us), served, 1000);
            }
            pool.get()
        };
        assert_eq!(
            read(1_000_000, false),
            SsdAdmission::All,
            "no disk is known"
        );
        pool.set_disk_read(None);
        pool.set_disk_read(Some(100_000));
        for (us, served, left, expected) in [
            (70, true, 0, SsdAdmission::All),
            (110, true, 0, SsdAdmission::Leave),
            // Within a quarter.
            (90, true, 0, SsdAdmission::Sample),
            (70, true, 0, SsdAdmission::All),
            (70, false, 0, SsdAdmission::Leave),
            (50, true, 0, SsdAdmission::All),
            // 2 us were saved of each read, and each block that has left has cost 1.
            (98, true, 50_000, SsdAdmission::Sample),
        ] {
            pool.left(left);
            assert_eq!(read(us, served), expected, "{us} us, {left} left");
            assert_eq!(pool.admits_all(), expected == SsdAdmission::All);
        }
        pool.left(1_000_000);
        pool.update(1000);
        assert_eq!(pool.get(), SsdAdmission::Sample, "what is never read again");
        // The disk becomes slow.
        pool.set_disk_read(Some(1_000_000));
        assert_eq!(read(98, true), SsdAdmission::All);
        pool.set(SsdAdmission::Leave);
        assert!(pool.leaves());
        pool.reset();
        assert!(pool.admits_all() && pool.admits());
    }
}
