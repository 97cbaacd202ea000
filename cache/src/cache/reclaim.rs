//! Reclaim: which blocks are evicted when a store is full.

use super::partition::{Partition, WeightTable};
use super::pool::{Pool, PoolHandle};
use super::state::{Cache, highest_weight, memory_slots};
use crate::block::BLOCK_BYTES;
use crate::config::{SsdConfig, StoreKind};
use crate::error::{CacheError, exact};
use crate::index::Location;
use crate::policy::Demotion;
use crate::store::{EXTENT_SLOTS, FreeList};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Cache {
    /// Does the SSD store work? Otherwise its pools use memory.
    pub(super) fn ssd_works(&self) -> bool {
        self.stores.working_ssd().is_some()
    }

    pub(super) fn capacity(&self, store: StoreKind) -> u64 {
        match store {
            StoreKind::Memory => self.stores.memory.capacity().into(),
            StoreKind::Ssd => self
                .stores
                .working_ssd()
                .map_or(0, |ssd| ssd.capacity().into()),
        }
    }

    /// The most blocks of one eviction: a sixteenth of a small store.
    pub(super) fn most_at_once(&self, store: StoreKind) -> u64 {
        let least = match store {
            StoreKind::Memory => 1,
            StoreKind::Ssd => EXTENT_SLOTS.into(),
        };
        (self.capacity(store) / 16).max(least)
    }

    /// Evicts about `want` blocks from the pools that exceed their share. Returns how many slots became free.
    pub(super) fn reclaim(&self, weights: &WeightTable, store: StoreKind, want: u64) -> u64 {
        if store == StoreKind::Ssd && self.stores.working_ssd().is_some_and(|ssd| ssd.shrinks()) {
            return 0;
        }
        let want = want.min(self.most_at_once(store));
        let mut partition = self.divide(weights, store);
        let mut freed = 0;
        while freed < want {
            let Some((vm, at, blocks)) = partition.victim() else {
                break;
            };
            let Some(pool) = weights.pool(vm, at) else {
                break;
            };
            let some = blocks.min(want - freed);
            let got = match store {
                StoreKind::Memory => self.evict_from_memory(weights, pool, some),
                StoreKind::Ssd => self.evict(pool, store, some),
            };
            if got == 0 {
                partition.mark_exhausted(vm, at);
            }
            partition.record_freed(vm, at, got);
            freed += got;
        }
        freed
    }

    /// Divides a store by the current weights and usage, and sets the pools' entitlements.
    pub(super) fn divide(&self, weights: &WeightTable, store: StoreKind) -> Partition {
        let partition = weights.partition(store, self.capacity(store), self.ssd_works());
        for (vm, (_, _, pools)) in weights.0.iter().enumerate() {
            for (at, pool) in pools.iter().enumerate() {
                pool.set_entitlement(store, partition.entitlement(vm, at));
            }
        }
        partition
    }

    /// Evicts blocks of a pool from memory; used blocks go to `demotion`. Returns how many slots became free.
    pub(super) fn evict_to(
        &self,
        pool: &Pool,
        blocks: u64,
        demotion: Option<&dyn Demotion>,
    ) -> u64 {
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        let mut policy = pool.policy.lock();
        let done = policy.evict(&self.stores.memory, &self.index, blocks, demotion);
        let freed = done.free.len();
        self.return_slots(pool, done.free);
        drop(policy);
        pool.count.evictions.add(done.dropped.into());
        pool.count.demotions.add(done.demoted.into());
        freed.into()
    }

    /// Evicts blocks of a pool without demotion. Returns how many slots became free.
    pub(super) fn evict(&self, pool: &Pool, store: StoreKind, blocks: u64) -> u64 {
        match store {
            StoreKind::Memory => self.evict_to(pool, blocks, None),
            StoreKind::Ssd => {
                let Some(ssd) = self.stores.working_ssd() else {
                    return 0;
                };
                let Some(mut log) = pool.log_on(&ssd) else {
                    return 0;
                };
                let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
                let (freed, evicted) = log.evict(&ssd, &self.index, blocks.div_ceil(EXTENT_SLOTS));
                let freed = u64::from(freed) * u64::from(EXTENT_SLOTS);
                pool.ssd_used.fetch_sub(freed, Ordering::Relaxed);
                drop(log);
                pool.count.evictions.add(evicted.into());
                pool.ssd_admission.left(evicted.into());
                pool.ssd_admission.update(ssd.write_ns());
                freed
            }
        }
    }
}

// Resizing the memory store while it serves.

impl Cache {
    fn resize_memory(&self, bytes: u64) -> Result<(), CacheError> {
        let memory = &self.stores.memory;
        let slots = memory_slots(bytes)?;
        if slots > memory.limit() {
            return Err(CacheError::Refused(format!(
                "expected at most {} for the memory store, found {}: raise `limit` in `[memory]` and restart the daemon",
                exact(u64::from(memory.limit()) * BLOCK_BYTES),
                exact(bytes)
            )));
        }
        let weights = self.admission_lock.lock(highest_weight());
        let shrinks = slots < memory.capacity();
        memory.set_capacity(slots);
        if shrinks {
            self.shrink(&weights, slots);
        }
        Ok(())
    }

    /// Evicts the excess from the pools that exceed their share, moves blocks beyond the new end to free slots before it, and
    /// returns the memory beyond it to the kernel.
    fn shrink(&self, weights: &WeightTable, slots: u32) {
        // Include pools that are being destroyed: their blocks are found until they are dropped.
        let pools = self.pools.load_full();
        let pools: Vec<_> = pools.iter().flatten().collect();
        loop {
            let used: u64 = pools.iter().map(|p| p.used(StoreKind::Memory)).sum();
            let Some(over) = used.checked_sub(slots.into()).filter(|o| *o > 0) else {
                break;
            };
            if self.reclaim(weights, StoreKind::Memory, over.max(1)) == 0 {
                // The other slots are being filled or freed right now.
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
        // SAFETY: no list and no stack has a slot beyond the capacity, and none is handed out while this thread holds the
        // admission lock, which a resize holds from beginning to end.
        if let Err(error) = unsafe { self.stores.memory.arena.release(huge) } {
            tracing::warn!(%error, "the kernel did not take the memory of the shrunk store back");
        }
    }

    /// Moves a pool's blocks from beyond the end. Returns `true` when none is left there.
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
                // SAFETY: the shard is locked and its index names the old slot, so it is not written. The new slot is in no
                // list and no index, so only this thread uses it.
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

// Resizing and replacing stores.

impl Cache {
    /// Changes the size of a store, in bytes. When it shrinks, the excess is evicted before this returns. A failed SSD store is
    /// opened anew, empty.
    ///
    /// # Errors
    /// When the store cannot have that size, or there is no such store.
    pub fn resize(self: &Arc<Self>, store: StoreKind, bytes: u64) -> Result<(), CacheError> {
        let _resize = (store == StoreKind::Ssd).then(|| self.ssd_resize.lock());
        let shrunk = match store {
            StoreKind::Memory => {
                let mut registry = self.registry.lock();
                self.resize_memory(bytes)?;
                registry.config.memory_bytes = bytes;
                None
            }
            StoreKind::Ssd => self.size_ssd(bytes)?,
        };
        self.refresh(&self.registry.lock());
        if let Some((ssd, beyond)) = shrunk {
            self.empty_beyond(&ssd, beyond);
        }
        Ok(())
    }

    /// Remembers an SSD store that could not be opened, so that statistics show the reason and [`resize`](Self::resize)
    /// retries.
    pub(crate) fn refuse_ssd(&self, ssd: SsdConfig, why: String) {
        let mut registry = self.registry.lock();
        registry.config.ssd = Some(ssd);
        registry.ssd_refused = Some(why);
    }

    /// Replaces or removes the SSD store; its blocks are dropped.
    ///
    /// # Errors
    /// When the new one cannot be used; there is none then, until [`resize`](Self::resize) opens it.
    pub fn set_ssd(self: &Arc<Self>, ssd: Option<SsdConfig>) -> Result<(), CacheError> {
        let _resize = self.ssd_resize.lock();
        let replaced = self.replace_ssd(ssd);
        self.refresh(&self.registry.lock());
        replaced
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
        let cache = Cache::new(CacheConfig::of_memory(2048 * BLOCK_BYTES)).unwrap();
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
