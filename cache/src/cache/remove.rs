//! Removes blocks from the index, and returns their slots to their pools.

use super::disk::{DiskHandle, WriteGuard};
use super::pool::PoolHandle;
use super::state::Cache;
use crate::index::{Location, REGION, SlotRef};
use crate::store::SsdStore;
use std::ops::Range;
use std::sync::Arc;

/// The largest range whose blocks are looked up one by one. For larger ones the index first reports its occupied regions. Small
/// in tests, so that the model's disks have larger ranges.
pub(super) const SWEEP_BLOCKS: u64 = if cfg!(test) { 8 } else { 4096 };

impl Cache {
    /// Removes the cached blocks in the range of a write that has begun, and their entries in the residency table.
    pub(crate) fn invalidate(&self, change: &WriteGuard) {
        self.remove(change.disk(), change.blocks());
    }

    /// Removes all blocks of a disk that is closed.
    pub(super) fn purge(&self, disk: &DiskHandle) {
        self.remove(disk, 0..u64::MAX);
    }

    fn remove(&self, disk: &DiskHandle, blocks: Range<u64>) {
        if let Some(residency) = &disk.residency {
            residency.forget(disk.id.number, blocks.clone());
        }
        if blocks.end.saturating_sub(blocks.start) <= SWEEP_BLOCKS {
            return self.remove_each(disk, blocks);
        }
        let number = u64::from(disk.id.number);
        let held = u64::try_from(self.index.len()).unwrap_or(u64::MAX);
        // No block of the range is put meanwhile, so both calls find the same.
        let parts = || self.index.occupied(number, blocks.clone());
        // A region's query costs about as much as a block's lookup.
        let regions = (blocks.end - blocks.start) / REGION;
        if regions > held || parts().map(|part| part.end - part.start).sum::<u64>() > held {
            self.index.sweep(
                &self.stores,
                |key, _| key.disk() == number && blocks.contains(&key.block()),
                |location| self.detach(location),
                |detached| self.invalidated(detached),
            );
        } else {
            parts().for_each(|part| self.remove_each(disk, part));
        }
    }

    fn remove_each(&self, disk: &DiskHandle, blocks: Range<u64>) {
        for key in blocks.map_while(|block| disk.key(block)) {
            let mut entry = self.index.lock(key);
            if let Some(entry_ref) = entry.find(&self.stores) {
                let location = entry.remove(entry_ref);
                let detached = self.detach(location);
                drop(entry);
                self.invalidated(detached);
            }
        }
    }

    fn invalidated(&self, detached: Option<DetachedSlot>) {
        if let Some(pool) = detached.and_then(|detached| self.free(detached, None)) {
            pool.count.invalidations.add(1);
        }
    }
}

// Detached slots, on their way back to their pools.

/// A slot that was removed from the index. It must be freed.
pub(super) enum DetachedSlot {
    Memory(u32),
    Ssd(Arc<SsdStore>, u32),
}

impl DetachedSlot {
    pub(super) const fn location(&self) -> Location {
        match self {
            Self::Memory(slot) => Location::memory(*slot),
            Self::Ssd(_, slot) => Location::ssd(*slot),
        }
    }
}

impl Cache {
    /// The slot of an entry that was just removed from the index. Call it while the shard is locked: afterwards the store may
    /// be replaced, and the slot may belong to the next one.
    pub(super) fn detach(&self, location: Location) -> Option<DetachedSlot> {
        Some(match location.slot() {
            SlotRef::Memory(slot) => DetachedSlot::Memory(slot),
            SlotRef::Ssd(slot) => DetachedSlot::Ssd(self.stores.ssd.load_full()?, slot),
        })
    }

    /// Returns a slot to its pool; returns the pool. `taken_by_hit` is the hash of its key when a hit removed it; no policy may
    /// be locked then.
    pub(super) fn free(
        &self,
        detached: DetachedSlot,
        taken_by_hit: Option<u64>,
    ) -> Option<PoolHandle> {
        match detached {
            DetachedSlot::Memory(slot) => {
                let memory = &self.stores.memory;
                let pool = self.pool_at(memory.meta(slot).pool)?;
                let mut policy = pool.policy.lock();
                policy.unlink(memory, slot);
                if let Some(hash) = taken_by_hit {
                    pool.count.taken.add(1);
                    policy.taken_by_hit(hash);
                }
                self.keep_free(&pool, &mut policy, slot);
                drop(policy);
                Some(pool)
            }
            DetachedSlot::Ssd(ssd, slot) => {
                let pool = self.pool_at(ssd.pool_of(slot))?;
                if let Some(hash) = taken_by_hit {
                    pool.count.taken.add(1);
                    self.taken_from_ssd(&ssd, &pool, slot, hash);
                }
                pool.ssd_admission.left(1);
                if ssd.free(slot) {
                    self.release_extent(&ssd, &pool, slot);
                }
                Some(pool)
            }
        }
    }
}
