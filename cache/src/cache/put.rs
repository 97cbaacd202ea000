//! Puts: blocks that a read or a client brings.

use super::detached::DetachedSlot;
use super::disk::DiskHandle;
use super::pool::PoolHandle;
use super::state::Cache;
use crate::block::Block;
use crate::config::StoreKind;
use crate::fill_guard::FillToken;

impl Cache {
    /// Inserts a block that was read under `token`; `false` when it was not.
    pub(crate) fn insert(
        &self,
        disk: &DiskHandle,
        pool: &PoolHandle,
        block: u64,
        content: &Block,
        token: FillToken,
    ) -> bool {
        let done = self.try_insert(disk, pool, block, content, token);
        if done.is_some() {
            pool.count.puts.add(1);
        } else {
            pool.count.puts_dropped.add(1);
        }
        done.is_some()
    }

    /// As [`insert`](Self::insert), without counting.
    pub(super) fn try_insert(
        &self,
        disk: &DiskHandle,
        pool: &PoolHandle,
        block: u64,
        content: &Block,
        token: FillToken,
    ) -> Option<()> {
        let key = disk.key(block)?;
        let ssd = match pool.spec().store {
            StoreKind::Memory => None,
            StoreKind::Ssd => self.stores.working_ssd(),
        };
        let detached = match ssd {
            Some(ssd) => {
                let slot = self.ssd_slot(&ssd, pool, key, content)?;
                DetachedSlot::Ssd(ssd, slot)
            }
            None => {
                let slot = self.memory_slot(pool, key)?;
                // SAFETY: the slot is ours until the index names it, below.
                unsafe { self.stores.memory.arena.write(slot, content) };
                DetachedSlot::Memory(slot)
            }
        };
        let mut entry = self.index.lock(key);
        let closed = matches!(&detached, DetachedSlot::Ssd(ssd, _) if ssd.closed());
        if closed || !disk.allows_fill(&entry, block, token) {
            drop(entry);
            self.free(detached, None);
            return None;
        }
        let old = entry.set(&self.stores, detached.location());
        let old = old.and_then(|location| self.detach(location));
        drop(entry);
        if let Some(old) = old {
            self.free(old, None);
        }
        Some(())
    }
}
