//! Hints in the I/O priority of containers' threads: the number of the pool, which a virtio disk passes on to the host.

use std::collections::{BTreeMap, BTreeSet};

use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::ioprio::{MAX_HINT, set_hint};

use crate::monitor::cgroups::Cgroups;
use crate::plan::pools::Pool;
use crate::plan::turns::Turns;

/// Threads that are looked at in one round, of all containers: twice as many at most.
const MAX_THREADS: usize = 4096;

/// The hints.
#[derive(Debug, Default)]
pub(crate) struct Hints {
    /// Cgroups whose threads have hints.
    given: BTreeSet<CgroupId>,
    turns: Turns,
    /// This kernel knows none.
    unsupported: bool,
}

impl Hints {
    /// Gives the threads of each pool's cgroup its number; new threads inherit it, so that rounds find few.
    pub(crate) fn give(&mut self, pools: &BTreeMap<CgroupId, Pool>, cgroups: &Cgroups) {
        // Pools beyond have no tag.
        let hint = |pool: &Pool| {
            u16::try_from(pool.number)
                .ok()
                .filter(|hint| *hint <= MAX_HINT)
        };
        let hints = pools
            .iter()
            .filter_map(|(id, pool)| Some((*id, hint(pool)?)));
        let hints: BTreeMap<CgroupId, u16> = hints.collect();
        let ids: Vec<CgroupId> = hints.keys().copied().collect();
        let mut turns = std::mem::take(&mut self.turns);
        turns.round(&ids, MAX_THREADS, |id, most| {
            let hint = hints.get(&id).copied().unwrap_or(0);
            self.set(id, hint, most, cgroups)
        });
        self.turns = turns;
        self.given.extend(ids);
        self.given.retain(|id| cgroups.cgroup(*id).is_some());
    }

    /// Takes all hints away.
    pub(crate) fn take_back(&mut self, cgroups: &Cgroups) {
        for id in std::mem::take(&mut self.given) {
            self.set(id, 0, usize::MAX, cgroups);
        }
    }

    /// Returns how many threads were looked at.
    fn set(&mut self, id: CgroupId, hint: u16, most: usize, cgroups: &Cgroups) -> usize {
        if self.unsupported {
            return 0;
        }
        let threads = cgroups
            .cgroup(id)
            .and_then(|cgroup| cgroup.threads(most).ok());
        let threads = threads.unwrap_or_default();
        for thread in &threads {
            if set_hint(*thread, hint) == Err(rustix::io::Errno::INVAL) {
                tracing::warn!(
                    "this kernel knows no hints in I/O priorities (Linux 6.6 or later does): none are set"
                );
                self.unsupported = true;
                break;
            }
        }
        threads.len()
    }
}
