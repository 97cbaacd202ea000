//! Reclaim: which blocks are evicted when a store is full.

use super::partition::Partition;
use super::pool::Pool;
use super::state::Cache;
use super::weight_table::WeightTable;
use crate::config::StoreKind;
use crate::policy::Demotion;
use crate::store::EXTENT_SLOTS;
use std::sync::atomic::Ordering;

impl Cache {
    /// Is there an SSD store that works? Its pools use memory meanwhile.
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

    /// Blocks that are evicted at a time at most: a sixteenth of a small store.
    pub(super) fn most_at_once(&self, store: StoreKind) -> u64 {
        let least = match store {
            StoreKind::Memory => 1,
            StoreKind::Ssd => EXTENT_SLOTS.into(),
        };
        (self.capacity(store) / 16).max(least)
    }

    /// Evicts about `want` blocks from the pools that exceed their part; returns how many slots became free.
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

    /// Divides a store as things stand, and tells the pools their part.
    pub(super) fn divide(&self, weights: &WeightTable, store: StoreKind) -> Partition {
        let partition = weights.partition(store, self.capacity(store), self.ssd_works());
        for (vm, (_, _, pools)) in weights.0.iter().enumerate() {
            for (at, pool) in pools.iter().enumerate() {
                pool.set_entitlement(store, partition.entitlement(vm, at));
            }
        }
        partition
    }

    /// Evicts blocks of a pool from memory, those that were used to `demotion`; returns how many slots became free.
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

    /// Evicts blocks of a pool, which are not cached any more then; returns how many slots became free.
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
                pool.worth.left(evicted.into());
                pool.worth.update(ssd.write_ns());
                freed
            }
        }
    }
}
