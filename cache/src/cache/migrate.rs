//! MIGRATE_OBJECT: blocks that change their pool.

use super::disk::DiskHandle;
use super::get::{Lookup, PendingSsdRead};
use super::invalidate::SWEEP_BLOCKS;
use super::pool::PoolHandle;
use super::state::Cache;
use crate::block::Key;
use crate::index::{Location, SlotRef};
use crate::store::Page;
use std::ops::Range;
use std::sync::atomic::Ordering;

impl Cache {
    /// Makes what the cache holds of the disk's blocks the pool's; returns how many blocks were reassigned.
    pub(super) fn reassign(&self, disk: &DiskHandle, blocks: Range<u64>, to: &PoolHandle) -> u64 {
        let mut moved = 0;
        let count = blocks.end.saturating_sub(blocks.start);
        if count > SWEEP_BLOCKS {
            let number = u64::from(disk.id.number);
            let keys = self.index.keys(&self.stores, |key| {
                key.disk() == number && blocks.contains(&key.block())
            });
            for key in keys {
                moved += u64::from(self.reassign_block(disk, key, to));
            }
        } else {
            for key in blocks.map_while(|block| disk.key(block)) {
                moved += u64::from(self.reassign_block(disk, key, to));
            }
        }
        moved
    }

    fn reassign_block(&self, disk: &DiskHandle, key: Key, to: &PoolHandle) -> bool {
        let token = disk.token(key.block());
        let location = {
            let entry = self.index.lock(key);
            entry
                .find(&self.stores)
                .map(|entry_ref| entry.location(entry_ref))
        };
        let Some(location) = location else {
            return false;
        };
        match location.slot() {
            SlotRef::Memory(slot) => self.reassign_slot(key, slot, to),
            SlotRef::Ssd(slot) => {
                // An extent belongs to one pool: the block is read and put again.
                let from = self.stores.working_ssd().map(|ssd| ssd.pool_of(slot));
                if from.is_none_or(|from| from == to.id.index) {
                    return false;
                }
                let mut page = Page::new();
                let found = match self.look(disk, key.block(), 0, &mut page.0, false) {
                    Lookup::Hit => Some(page),
                    Lookup::Miss => None,
                    Lookup::OnSsd(pending) => self.read_from_ssd(&pending),
                };
                found.is_some_and(|page| {
                    let block = key.block();
                    self.try_insert(disk, to, block, &page.0, token).is_ok()
                })
            }
        }
    }

    fn read_from_ssd(&self, pending: &PendingSsdRead) -> Option<Page> {
        let read = pending.ssd.read(&[(pending.key, pending.read_ref)])?;
        let (result, page) = (
            read.results.into_iter().next()?,
            read.pages.into_iter().next()?,
        );
        self.finish_ssd_read(pending, result, &page).then_some(page)
    }

    fn reassign_slot(&self, key: Key, slot: u32, to: &PoolHandle) -> bool {
        let memory = &self.stores.memory;
        let Some(from) = self.pool_at(memory.meta(slot).pool) else {
            return false;
        };
        if from.id == to.id {
            return false;
        }
        // Two pools at once: always the lower index first.
        let (mut from_policy, mut to_policy) = if from.id.index < to.id.index {
            let a = from.policy.lock();
            (a, to.policy.lock())
        } else {
            let b = to.policy.lock();
            (from.policy.lock(), b)
        };
        let entry = self.index.lock(key);
        let here = entry.find_at(Location::memory(slot)).is_some();
        if !here || memory.meta(slot).pool != from.id.index || to_policy.closed {
            return false;
        }
        from_policy.unlink(memory, slot);
        to_policy.adopt(memory, to.id.index, slot);
        from.memory_used.fetch_sub(1, Ordering::Relaxed);
        to.memory_used.fetch_add(1, Ordering::Relaxed);
        true
    }
}
