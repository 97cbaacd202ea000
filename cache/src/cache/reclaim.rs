//! Reclaim: which blocks are evicted when a store is full.

use super::pool::Pool;
use super::state::Cache;
use super::weight_table::WeightTable;
use crate::config::StoreKind;
use crate::store::EXTENT_SLOTS;
use std::sync::atomic::Ordering;

impl Cache {
    /// Where a pool's blocks go now: ⟨SSD⟩ is memory while there is no SSD store that works.
    pub(super) fn target_store(&self, pool: &Pool) -> StoreKind {
        match pool.spec().store {
            StoreKind::Ssd if self.stores.working_ssd().is_some() => StoreKind::Ssd,
            _ => StoreKind::Memory,
        }
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

    /// Evicts about `want` blocks from the pools that exceed their part; returns how many slots became free.
    pub(super) fn reclaim(&self, weights: &WeightTable, store: StoreKind, want: u64) -> u64 {
        let capacity = self.capacity(store);
        // Not more than a sixteenth of a small store at a time.
        let least = match store {
            StoreKind::Memory => 1,
            StoreKind::Ssd => EXTENT_SLOTS.into(),
        };
        let want = want.min((capacity / 16).max(least));
        let mut partition = weights.partition(store, capacity, |pool| self.target_store(pool));
        let mut freed = 0;
        while freed < want {
            let Some((vm, at, blocks)) = partition.victim() else {
                break;
            };
            let Some(pool) = weights.pool(vm, at) else {
                break;
            };
            let got = self.evict(pool, store, blocks.min(want - freed));
            if got == 0 {
                partition.mark_exhausted(vm, at);
            }
            partition.record_freed(vm, at, got);
            freed += got;
        }
        freed
    }

    /// Evicts blocks of a pool; returns how many slots became free.
    pub(super) fn evict(&self, pool: &Pool, store: StoreKind, blocks: u64) -> u64 {
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        match store {
            StoreKind::Memory => {
                let mut policy = pool.policy.lock();
                let (free, evicted) = policy.evict(&self.stores.memory, &self.index, blocks);
                let freed = free.len();
                self.return_slots(pool, free);
                drop(policy);
                pool.count.evictions.add(evicted.into());
                freed.into()
            }
            StoreKind::Ssd => {
                let Some(ssd) = self.stores.working_ssd() else {
                    return 0;
                };
                let Some(mut log) = pool.log_on(&ssd) else {
                    return 0;
                };
                let (freed, evicted) = log.evict(&ssd, &self.index, blocks.div_ceil(EXTENT_SLOTS));
                let freed = u64::from(freed) * u64::from(EXTENT_SLOTS);
                pool.ssd_used.fetch_sub(freed, Ordering::Relaxed);
                drop(log);
                pool.count.evictions.add(evicted.into());
                freed
            }
        }
    }
}
