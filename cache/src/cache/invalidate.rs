//! Removal of blocks whose content changes, or whose disk is removed.

use super::detached::DetachedSlot;
use super::disk::DiskHandle;
use super::state::Cache;
use super::write_guard::WriteGuard;
use crate::index::REGION;
use std::ops::Range;

/// The largest range whose blocks are looked up one by one. In larger ones the index is asked first where it has some.
/// Small in tests, so that the model's disks have larger ranges.
pub(super) const SWEEP_BLOCKS: u64 = if cfg!(test) { 8 } else { 4096 };

impl Cache {
    /// Removes what the cache holds of the range of a write that has begun, and what is known of the guest's copy.
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
        // Nothing of the range is put any more, so both calls find the same.
        let parts = || self.index.occupied(number, blocks.clone());
        // Asking for a region costs about as much as looking up a block.
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
