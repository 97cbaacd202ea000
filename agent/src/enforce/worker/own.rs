//! Reclaim of what a cgroup has of its own: the pages that are charged to none of its living children.
//!
//! `memory.reclaim` works on the whole subtree. Children within their `memory.low` are passed over as long as anything
//! else can be had (the classic LRU, and any LRU below the root); the others lose by their size. So no more is asked for
//! than there is, and it ends where the children lose more than what was meant.

use justitia_kernel::PAGE_SIZE;
use justitia_kernel::Result;
use justitia_kernel::cgroup::{Cgroup, ReclaimOutcome};
use justitia_kernel::memory::MemoryStat;

use super::{BATCH, Order, Outcome, thrashes};

/// What a cgroup has of its own, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    /// File pages that can be reclaimed.
    clean: u64,
    /// Reclaimed so far, since the cgroup was made.
    reclaimed: u64,
    /// Reclaimed so far from all of the subtree.
    all: u64,
}

/// Reclaims up to `order.bytes` of what `cgroup` has and `children` do not.
pub(super) fn reclaim(
    cgroup: &Cgroup,
    children: &[Cgroup],
    swappiness: Option<u8>,
    order: &Order,
    outcome: &mut Outcome,
) -> Result<()> {
    if thrashes(order, outcome) {
        return Ok(());
    }
    let (_, first) = held(cgroup, children)?;
    let mut left = order.bytes.min(first.clean);
    let mut before = first;
    while left > 0 {
        let batch = left.min(BATCH);
        let end = cgroup.reclaim(batch, swappiness)?;
        let (stat, after) = held(cgroup, children)?;
        outcome.after = (!cgroup.is_root()).then_some(stat);
        outcome.freed = after.reclaimed.saturating_sub(first.reclaimed);
        let all = after.all.saturating_sub(first.all);
        // A child that goes leaves what was reclaimed from it to its parent.
        outcome.freed = outcome.freed.min(all);
        outcome.beside = all - outcome.freed;
        let step = after.reclaimed.saturating_sub(before.reclaimed);
        if end != ReclaimOutcome::Complete || step < batch / 2 {
            return Ok(());
        }
        before = after;
        left = (left - batch).min(after.clean);
    }
    Ok(())
}

/// Reads the cgroup first: what the children take in meanwhile makes its own part too small, not too large.
fn held(cgroup: &Cgroup, children: &[Cgroup]) -> Result<(MemoryStat, Held)> {
    let stat = cgroup.memory_stat()?;
    let living = children.iter().filter_map(|child| child.memory_stat().ok());
    Ok((stat, of(&stat, living)))
}

fn of(stat: &MemoryStat, children: impl Iterator<Item = MemoryStat>) -> Held {
    let clean = |stat: &MemoryStat| {
        stat.file_lru()
            .saturating_sub(stat.file_dirty + stat.file_writeback)
    };
    let mut own = Held {
        clean: clean(stat),
        reclaimed: stat.pgsteal * PAGE_SIZE,
        all: stat.pgsteal * PAGE_SIZE,
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
    fn what_no_child_has_is_its_own() {
        let own = |children: &[MemoryStat]| of(&stat(100, 10, 50), children.iter().copied());
        let pages = |clean, reclaimed| Held {
            clean: clean * PAGE_SIZE,
            reclaimed: reclaimed * PAGE_SIZE,
            all: 50 * PAGE_SIZE,
        };
        assert_eq!(own(&[]), pages(90, 50));
        assert_eq!(own(&[stat(30, 5, 20), stat(20, 0, 10)]), pages(45, 20));
        // What they have taken in since does not make it negative.
        assert_eq!(own(&[stat(120, 0, 60)]), pages(0, 0));
    }
}
