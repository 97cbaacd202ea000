//! Inserts blocks that a read or a client brings.

use super::detached::DetachedSlot;
use super::disk::DiskHandle;
use super::pool::PoolHandle;
use super::state::Cache;
use crate::block::{Block, Key};
use crate::config::StoreKind;
use crate::write_epochs::FillToken;

/// Why a block was not inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// No slot could be had.
    NoRoom,
    /// The SSD store, which is all that the pool has, is not worth it for it ([`crate::worth`]).
    NotWorthIt,
    /// A write to its range was or is in flight, or the store was replaced.
    Raced,
}

impl Cache {
    /// Inserts a block that was read under `token`.
    pub(crate) fn insert(
        &self,
        disk: &DiskHandle,
        pool: &PoolHandle,
        block: u64,
        content: &Block,
        token: FillToken,
    ) -> Result<(), Refused> {
        let done = self.try_insert(disk, pool, block, content, token);
        if done.is_ok() {
            pool.count.insertions.add(1);
        } else {
            pool.count.insertions_dropped.add(1);
        }
        done
    }

    /// As [`insert`](Self::insert), without counting.
    pub(super) fn try_insert(
        &self,
        disk: &DiskHandle,
        pool: &PoolHandle,
        block: u64,
        content: &Block,
        token: FillToken,
    ) -> Result<(), Refused> {
        let key = disk.key(block).ok_or(Refused::NoRoom)?;
        let detached = self.slot_for(disk, pool, key, content)?;
        let mut entry = self.index.lock(key);
        let closed = matches!(&detached, DetachedSlot::Ssd(ssd, _) if ssd.closed());
        if closed || !disk.allows_fill(&entry, block, token) {
            drop(entry);
            self.free(detached, None);
            return Err(Refused::Raced);
        }
        let old = entry.set(&self.stores, detached.location());
        let old = old.and_then(|location| self.detach(location));
        drop(entry);
        if let Some(old) = old {
            self.free(old, None);
        }
        Ok(())
    }

    /// A slot for a block of the pool, with its content, in the store where it belongs.
    fn slot_for(
        &self,
        disk: &DiskHandle,
        pool: &PoolHandle,
        key: Key,
        content: &Block,
    ) -> Result<DetachedSlot, Refused> {
        let spec = pool.spec();
        let ssd = spec
            .weight(StoreKind::Ssd)
            .and_then(|_| self.stores.working_ssd());
        if let Some(ssd) = ssd {
            let only = !spec.is_hybrid();
            let stalled = ssd.is_stalled();
            if only && stalled {
                return Err(Refused::NoRoom);
            }
            let belongs = || pool.policy.lock().belongs_on_ssd(self.index.hash(key));
            pool.worth.set_disk_read(disk.read_ns());
            if only && !pool.worth.admits() {
                return Err(Refused::NotWorthIt);
            }
            if only || !stalled && belongs() && pool.worth.admits() {
                let slot = self.ssd_slot(&ssd, pool, key, content);
                if let Some(slot) = slot {
                    ssd.set_stamp(slot, self.stamp_of_used(pool));
                    return Ok(DetachedSlot::Ssd(ssd, slot));
                }
                if only {
                    return Err(Refused::NoRoom);
                }
            }
        }
        let slot = self.memory_slot(pool, key).ok_or(Refused::NoRoom)?;
        // SAFETY: the slot is ours until the index names it.
        unsafe { self.stores.memory.arena.write(slot, content) };
        Ok(DetachedSlot::Memory(slot))
    }
}
