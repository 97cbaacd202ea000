//! A memory store that changes its size while it serves.

use super::pool::PoolHandle;
use super::state::{Cache, highest_weight, memory_slots};
use super::weight_table::WeightTable;
use crate::block::BLOCK_BYTES;
use crate::config::StoreKind;
use crate::error::CacheError;
use crate::index::Location;
use crate::store::FreeList;
use std::sync::atomic::Ordering;

impl Cache {
    pub(super) fn resize_memory(&self, bytes: u64) -> Result<(), CacheError> {
        let memory = &self.stores.memory;
        let slots = memory_slots(bytes)?;
        if slots > memory.limit() {
            return Err(CacheError::MemoryLimit {
                limit: u64::from(memory.limit()) * BLOCK_BYTES,
                found: bytes,
            });
        }
        let weights = self.admission_lock.lock(highest_weight());
        let shrinks = slots < memory.capacity();
        memory.set_capacity(slots);
        if shrinks {
            self.shrink(&weights, slots);
        }
        Ok(())
    }

    /// Evicts the excess, from the pools that exceed their part; moves blocks beyond the new end to free slots before it;
    /// returns the memory beyond to the kernel.
    fn shrink(&self, weights: &WeightTable, slots: u32) {
        // Those that are being destroyed, too: their blocks are found until they are dropped.
        let pools = self.pools.load_full();
        let pools: Vec<_> = pools.iter().flatten().collect();
        loop {
            let used: u64 = pools.iter().map(|p| p.used(StoreKind::Memory)).sum();
            let Some(over) = used.checked_sub(slots.into()).filter(|o| *o > 0) else {
                break;
            };
            if self.reclaim(weights, StoreKind::Memory, over.max(1)) == 0 {
                // The rest is being filled or freed at the moment.
                std::thread::yield_now();
            }
        }
        for pool in pools {
            while !self.relocate(pool, slots) {
                // Another pool took the free slots, or a block beyond the end is being filled or freed.
                if self.stores.memory.available() == 0 {
                    self.reclaim(weights, StoreKind::Memory, 1);
                }
                std::thread::yield_now();
            }
        }
        let huge = self.stores.memory.huge_pages_beyond();
        // SAFETY: no list and no stack has a slot beyond the capacity any more, and none is handed out while
        // the admission lock is ours, which a resize holds from beginning to end.
        if let Err(error) = unsafe { self.stores.memory.arena.release(huge) } {
            tracing::warn!(%error, "the kernel did not take the memory of the shrunk store back");
        }
    }

    /// Moves a pool's blocks from beyond the end; `true` when there is none any more.
    fn relocate(&self, pool: &PoolHandle, end: u32) -> bool {
        let memory = &self.stores.memory;
        let mut policy = pool.policy.lock();
        let mut old_free = std::mem::take(&mut policy.free);
        let mut beyond = FreeList::default();
        while let Some(slot) = old_free.pop(memory) {
            if slot < end {
                policy.free.push(memory, slot);
            } else {
                beyond.push(memory, slot);
            }
        }
        self.return_slots(pool, beyond);
        let there: Vec<_> = policy.slots(memory).filter(|s| *s >= end).collect();
        let mut done = true;
        for old in there {
            let Some(new) = policy.free.pop(memory).or_else(|| {
                let slot = memory.take(pool.id.index, 1).pop(memory)?;
                pool.memory_used.fetch_add(1, Ordering::Relaxed);
                Some(slot)
            }) else {
                return false;
            };
            let mut entry = self.index.lock(memory.key(old));
            if let Some(entry_ref) = entry.find_at(Location::memory(old)) {
                // SAFETY: the shard is locked and its index names the old slot, so it is not written; the new
                // one is in no list and no index: it is ours.
                unsafe { memory.arena.copy(old, new) };
                policy.replace(memory, old, new);
                entry.relocated(entry_ref, Location::memory(new));
                drop(entry);
                policy.free.push(memory, old);
                let free = policy.free.split(memory, 1);
                self.return_slots(pool, free);
            } else {
                drop(entry);
                policy.free.push(memory, new);
                done = false;
            }
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BLOCK_SIZE;
    use crate::config::{CacheConfig, Policy, PoolSpec};
    use justitia_share::Weight;

    #[test]
    fn blocks_of_a_pool_that_is_being_destroyed_move_when_the_store_shrinks() {
        let cache = Cache::new(CacheConfig {
            memory_bytes: 2048 * BLOCK_BYTES,
            ..CacheConfig::default()
        })
        .unwrap();
        let vm = cache.add_vm("vm", Weight::default(), Policy::Fifo).unwrap();
        let disk = cache.add_disk(vm, "disk").unwrap();
        let disk = cache.attach(disk).unwrap().0;
        let pools = ["first", "last"].map(|name| {
            let pool = cache.create_pool(vm, name, PoolSpec::default()).unwrap();
            cache.pool(pool).unwrap()
        });
        let content = |block: u64| [u8::try_from(block % 251).unwrap() + 1; BLOCK_SIZE];
        // The last ones' are at the end of the store.
        for block in 0..2000 {
            let pool = &pools[usize::from(block >= 1800)];
            let token = disk.token(block);
            let inserted = cache.insert(&disk, pool, block, &content(block), token);
            assert_eq!(inserted, Ok(()));
        }
        cache.destroy_pool(pools[0].id).unwrap();
        let closed = cache.close_pool(pools[1].id).unwrap();
        cache.resize(StoreKind::Memory, 512 * BLOCK_BYTES).unwrap();
        for block in 1800..2000 {
            let mut found = [0; BLOCK_SIZE];
            cache.get(&disk, &pools[1], block, 0, &mut found, false);
            assert!(found == content(block), "block {block}");
        }
        cache.drop_pool(closed);
        cache.audit();
        assert_eq!(cache.stats().vms[0].pools.len(), 1);
    }
}
