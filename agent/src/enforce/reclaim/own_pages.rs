//! Reclaims a cgroup's own pages: those that are charged to none of its living children.
//!
//! `memory.reclaim` works on the whole subtree. The kernel skips children within their `memory.low` as long as it finds
//! anything else (the classic LRU, and any LRU below the root); it reclaims from the other children by their size. So the
//! request is limited to the own pages, and it ends if the children lose more than was intended.

use justitia_kernel::cgroup::{Cgroup, ReclaimOutcome};
use justitia_kernel::memory::MemoryStat;
use justitia_kernel::{Error, PAGE_SIZE, Result};

use super::request::{BATCH, ReclaimRequest, ReclaimResult};
use crate::monitor::MemoryCounters;

/// A cgroup's own pages, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct OwnPages {
    /// File pages that can be reclaimed.
    clean: u64,
    /// Reclaimed since the cgroup was created.
    reclaimed: u64,
    /// Reclaimed from the whole subtree.
    reclaimed_subtree: u64,
}

/// Reclaims up to `request.bytes` of the pages that `cgroup` has and `children` have not.
pub(super) fn reclaim(
    cgroup: &Cgroup,
    children: &[Cgroup],
    swappiness: Option<u8>,
    request: &ReclaimRequest,
    result: &mut ReclaimResult,
) -> Result<()> {
    if request.is_thrashing(result)? {
        return Ok(());
    }
    let (_, first) = sample(cgroup, children)?;
    let mut left = request.bytes.min(first.clean);
    let mut before = first;
    while left > 0 {
        let batch = request.above_minimums(left.min(BATCH))?;
        if batch == 0 {
            return Ok(());
        }
        let end = cgroup.reclaim(batch, swappiness)?;
        let (counters, after) = sample(cgroup, children)?;
        result.after = (!cgroup.is_root()).then_some(counters);
        result.freed = after.reclaimed.saturating_sub(first.reclaimed);
        let subtree = after
            .reclaimed_subtree
            .saturating_sub(first.reclaimed_subtree);
        // The counter of a removed child is added to its parent's own.
        result.freed = result.freed.min(subtree);
        result.freed_from_children = subtree - result.freed;
        let step = after.reclaimed.saturating_sub(before.reclaimed);
        if end != ReclaimOutcome::Complete || step < batch / 2 {
            return Ok(());
        }
        before = after;
        left = (left - batch).min(after.clean);
    }
    Ok(())
}

/// Reads the cgroup before its children: pages that the children add meanwhile make the result too small, not too large.
fn sample(cgroup: &Cgroup, children: &[Cgroup]) -> Result<(MemoryCounters, OwnPages)> {
    let counters = MemoryCounters::read(cgroup)?;
    let living = living(children.iter().map(Cgroup::memory_stat))?;
    Ok((counters, own_pages(&counters.stat, living.into_iter())))
}

/// The children that have counters. One that is gone or has no memory controller has no pages. One that cannot be read for
/// lack of a file descriptor or of memory has: without it its pages would count as the parent's own.
fn living(read: impl Iterator<Item = Result<MemoryStat>>) -> Result<Vec<MemoryStat>> {
    let counted = |one: &Result<_>| one.as_ref().err().is_none_or(Error::is_exhausted);
    read.filter(counted).collect()
}

fn own_pages(stat: &MemoryStat, children: impl Iterator<Item = MemoryStat>) -> OwnPages {
    let clean = |stat: &MemoryStat| {
        stat.file_lru()
            .saturating_sub(stat.file_dirty + stat.file_writeback)
    };
    let mut own = OwnPages {
        clean: clean(stat),
        reclaimed: stat.pgsteal * PAGE_SIZE,
        reclaimed_subtree: stat.pgsteal * PAGE_SIZE,
    };
    for child in children {
        own.clean = own.clean.saturating_sub(clean(&child));
        own.reclaimed = own.reclaimed.saturating_sub(child.pgsteal * PAGE_SIZE);
    }
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(file: u64, dirty: u64, pgsteal: u64) -> MemoryStat {
        MemoryStat {
            inactive_file: file * PAGE_SIZE,
            file_dirty: dirty * PAGE_SIZE,
            pgsteal,
            ..MemoryStat::default()
        }
    }

    #[test]
    fn a_child_that_cannot_be_read_now_keeps_its_pages() {
        use justitia_kernel::Operation;
        use rustix::io::Errno;
        let failed = |errno| Error::Io {
            operation: Operation::Open,
            path: "a/memory.stat".into(),
            errno,
        };
        let gone = Error::Gone {
            operation: Operation::Open,
            path: "b/memory.stat".into(),
        };
        let child = stat(30, 5, 20);
        let read = [Ok(child), Err(gone), Err(failed(Errno::NOENT))];
        assert_eq!(living(read.into_iter()).unwrap(), [child]);
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM] {
            let read = [Ok(child), Err(failed(errno))];
            assert!(living(read.into_iter()).is_err(), "{errno}");
        }
    }

    #[test]
    fn own_pages_are_those_of_no_child() {
        let own = |children: &[MemoryStat]| own_pages(&stat(100, 10, 50), children.iter().copied());
        let pages = |clean, reclaimed| OwnPages {
            clean: clean * PAGE_SIZE,
            reclaimed: reclaimed * PAGE_SIZE,
            reclaimed_subtree: 50 * PAGE_SIZE,
        };
        assert_eq!(own(&[]), pages(90, 50));
        assert_eq!(own(&[stat(30, 5, 20), stat(20, 0, 10)]), pages(45, 20));
        // Pages that the children have added since do not make it negative.
        assert_eq!(own(&[stat(120, 0, 60)]), pages(0, 0));
    }
}
