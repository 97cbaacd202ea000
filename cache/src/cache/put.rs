//! Puts: blocks that a read or a client brings.

use super::detached::DetachedSlot;
use super::disk::DiskHandle;
use super::pool::PoolHandle;
use super::state::Cache;
use crate::block::Block;
use crate::config::StoreKind;
use crate::fill_guard::FillToken;

/// Why a block was not inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// No slot could be had.
    NoRoom,
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
            pool.count.puts.add(1);
        } else {
            pool.count.puts_dropped.add(1);
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
        let ssd = match pool.spec().store {
            StoreKind::Memory => None,
            StoreKind::Ssd => self.stores.working_ssd(),
        };
        let detached = match ssd {
            Some(ssd) => {
                let slot = self.ssd_slot(&ssd, pool, key, content);
                let slot = slot.ok_or(Refused::NoRoom)?;
                DetachedSlot::Ssd(ssd, slot)
            }
            None => {
                let slot = self.memory_slot(pool, key).ok_or(Refused::NoRoom)?;
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
}
