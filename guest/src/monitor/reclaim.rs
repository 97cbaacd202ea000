//! What the guest's own kernel counts of reclaim: pages that it took back, and those that were read again afterwards.
//!
//! That costs the guest nothing, and it is counted of everything, whether it is offered or not. The kernel remembers what
//! it has evicted for some times the memory (`mm/workingset.c`). With the multi-generational LRU, Linux 6.1 counts only
//! what comes back soon.

use std::path::Path;

use justitia_kernel::cgroup::Cgroup;
use justitia_kernel::proc::ProcFs;

/// Pages since the start, or since the cgroup was made; 0 where the kernel does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Reclaim {
    /// Taken back from page cache (of a cgroup also from anonymous memory).
    pub(crate) reclaimed: u64,
    /// Of these, pages of files that were read again.
    pub(crate) refaults: u64,
}

impl Reclaim {
    /// Of the whole machine.
    pub(crate) fn of_machine() -> Self {
        let read = ProcFs::open(Path::new("/proc")).and_then(|proc| proc.vmstat());
        read.map_or_else(
            |_| Self::default(),
            |stat| Self {
                reclaimed: stat.pgsteal_file,
                refaults: stat.workingset_refault_file,
            },
        )
    }

    /// Of a cgroup and its descendants.
    pub(crate) fn of_cgroup(cgroup: &Cgroup) -> Self {
        cgroup.memory_stat().map_or_else(
            |_| Self::default(),
            |stat| Self {
                reclaimed: stat.pgsteal,
                refaults: stat.workingset_refault_file,
            },
        )
    }
}
