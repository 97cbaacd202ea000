//! How many blocks the index has of each region of a disk. A write of a large range looks only where there are some:
//! its cost follows from what is cached there, not from its length.

use super::table::scale;
use crate::block::Key;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Blocks of a region (256 MiB).
pub(crate) const REGION: u64 = 1 << 16;

/// Counters of all disks (64 KiB of memory). Regions that share one cost time, if one of them is empty.
const COUNTERS: usize = 1 << 14;

/// The counters. Those of a block's region change while the block's shard is locked.
pub(super) struct Regions(Box<[AtomicU32]>);

impl Regions {
    pub(super) fn new() -> Self {
        Self((0..COUNTERS).map(|_| AtomicU32::new(0)).collect())
    }

    fn counter(&self, disk: u64, region: u64, seed: u64) -> &AtomicU32 {
        // Neither disks nor regions have more than 24 bits.
        let hash = Key::from_raw(disk << 24 | region).hash(seed);
        &self.0[scale(hash, COUNTERS)]
    }

    fn of(&self, key: Key, seed: u64) -> &AtomicU32 {
        self.counter(key.disk(), key.block() / REGION, seed)
    }

    /// The index has one block more.
    pub(super) fn add(&self, key: Key, seed: u64) {
        self.of(key, seed).fetch_add(1, Ordering::Relaxed);
    }

    /// The index has one block less.
    pub(super) fn take(&self, key: Key, seed: u64) {
        self.of(key, seed).fetch_sub(1, Ordering::Relaxed);
    }

    /// Heap bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.0)
    }

    /// Blocks that are counted.
    #[cfg(test)]
    pub(super) fn total(&self) -> usize {
        let counts = self.0.iter().map(|c| c.load(Ordering::Relaxed));
        usize::try_from(counts.sum::<u32>()).unwrap()
    }

    /// The parts of `blocks` of a disk that lie in regions of which the index may have some.
    pub(super) fn occupied(
        &self,
        disk: u64,
        blocks: Range<u64>,
        seed: u64,
    ) -> impl Iterator<Item = Range<u64>> {
        let regions = blocks.start / REGION..blocks.end.div_ceil(REGION);
        let some =
            move |region: &u64| self.counter(disk, *region, seed).load(Ordering::Relaxed) > 0;
        regions.filter(some).map(move |region| {
            let start = region * REGION;
            start.max(blocks.start)..(start + REGION).min(blocks.end)
        })
    }
}
