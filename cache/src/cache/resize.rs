//! A memory store that changes its size while it serves.

use super::room::Shares;
use super::{Cache, PoolHandle, StoreKind};
use crate::CacheError;
use crate::block::BLOCK_BYTES;
use crate::index::{MAX_SLOTS, Place};
use crate::store::Chain;
use std::sync::atomic::Ordering;

/// Whole blocks in this many bytes, if an index can name them all.
pub(super) fn slots(bytes: u64) -> Result<u32, CacheError> {
    u32::try_from(bytes / BLOCK_BYTES)
        .ok()
        .filter(|s| *s < MAX_SLOTS)
        .ok_or(CacheError::StoreSize {
            store: StoreKind::Memory,
            limit: u64::from(MAX_SLOTS - 1) * BLOCK_BYTES,
            found: bytes,
        })
}

impl Cache {
    pub(super) fn resize_memory(&self, bytes: u64) -> Result<(), CacheError> {
        let memory = &self.stores.memory;
        let slots = slots(bytes)?;
        if slots > memory.limit() {
            return Err(CacheError::StoreSize {
                store: StoreKind::Memory,
                limit: u64::from(memory.limit()) * BLOCK_BYTES,
                found: bytes,
            });
        }
        let shares = self.gate.lock(super::control::highest());
        let shrinks = slots < memory.capacity();
        memory.set_capacity(slots);
        if shrinks {
            self.shrink(&shares, slots);
        }
        Ok(())
    }

    /// Evicts what is too much, from those who hold too much; moves what lies beyond the new end to free
    /// slots before it; gives the memory behind back to the machine.
    fn shrink(&self, shares: &Shares, slots: u32) {
        let pools: Vec<_> = shares.0.iter().flat_map(|(_, _, p)| p.clone()).collect();
        loop {
            let used: u64 = pools.iter().map(|p| p.used(StoreKind::Memory)).sum();
            let Some(over) = used.checked_sub(slots.into()).filter(|o| *o > 0) else {
                break;
            };
            if self.reclaim(shares, StoreKind::Memory, over.max(1)) == 0 {
                // All that is left is being filled or freed just now.
                std::thread::yield_now();
            }
        }
        for pool in &pools {
            while !self.evacuate(pool, slots) {
                // Another pool took the room, or a block is being filled or freed beyond the end.
                if self.stores.memory.available() == 0 {
                    self.reclaim(shares, StoreKind::Memory, 1);
                }
                std::thread::yield_now();
            }
        }
        let huge = self.stores.memory.huge_pages_beyond();
        // SAFETY: no list and no stack has a slot beyond the capacity any more, and none is handed out while
        // the gate is ours, which a resize holds from beginning to end.
        if let Err(error) = unsafe { self.stores.memory.arena.give_back(huge) } {
            tracing::warn!(%error, "the machine did not take the memory of the shrunk store back");
        }
    }

    /// Moves a pool's blocks from beyond the end; `true` when none is there any more.
    fn evacuate(&self, pool: &PoolHandle, end: u32) -> bool {
        let memory = &self.stores.memory;
        let mut shelf = pool.shelf.lock();
        let mut spare = std::mem::take(&mut shelf.spare);
        let mut beyond = Chain::default();
        while let Some(slot) = spare.pop(memory) {
            if slot < end {
                shelf.spare.push(memory, slot);
            } else {
                beyond.push(memory, slot);
            }
        }
        self.give(pool, beyond);
        let there: Vec<_> = shelf.slots(memory).filter(|s| *s >= end).collect();
        let mut done = true;
        for old in there {
            let Some(new) = shelf.spare.pop(memory).or_else(|| {
                let slot = memory.take(pool.id.index, 1).pop(memory)?;
                pool.memory_used.fetch_add(1, Ordering::Relaxed);
                Some(slot)
            }) else {
                return false;
            };
            let mut entry = self.index.lock(memory.key(old));
            if let Some(spot) = entry.find_at(Place::memory(old)) {
                // SAFETY: the shard is locked and its index names the old slot, so nobody writes it; the new
                // one is in no list and no index: it is ours.
                unsafe { memory.arena.copy(old, new) };
                shelf.replace(memory, old, new);
                entry.moved(spot, Place::memory(new));
                drop(entry);
                shelf.spare.push(memory, old);
                let chain = shelf.spare.split(memory, 1);
                self.give(pool, chain);
            } else {
                drop(entry);
                shelf.spare.push(memory, new);
                done = false;
            }
        }
        done
    }
}
