//! Making room: slots for blocks, and whose blocks go for them.
//!
//! A put takes a slot that its pool has spare; when there is none, some from the store's free ones. Only when
//! the store as a whole is full does it wait at the admission_lock, in the order of the paper's weight-aware lock
//! (Justitia, section III-A), and there one at a time evicts 2 MiB from the victims that Algorithm 1 names.

use super::Cache;
use super::partition::{EVICTION_BATCH, Partition, PoolUsage};
use super::pool::{Pool, PoolHandle};
use crate::block::{Block, Key};
use crate::config::StoreKind;
use crate::ids::VmId;
use crate::policy::PoolPolicy;
use crate::store::{Append, EXTENT_SLOTS, FreeList, SsdStore};
use justitia_share::Weight;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Rounds at the admission_lock after which a put is given up: others of the pool took what was brought each time.
const ROUNDS: usize = 8;

/// The VMs and their pools, with their weights: what is guarded by the admission_lock.
#[derive(Default)]
pub(crate) struct WeightTable(pub(crate) Vec<(VmId, Weight, Vec<PoolHandle>)>);

impl WeightTable {
    /// The partition of a store of `capacity` blocks as things stand.
    pub(crate) fn partition(
        &self,
        store: StoreKind,
        capacity: u64,
        target_store: impl Fn(&Pool) -> StoreKind,
    ) -> Partition {
        let vms: Vec<_> = self
            .0
            .iter()
            .map(|(_, weight, pools)| {
                let usages = pools.iter().map(|pool| PoolUsage {
                    weight: pool.spec().weight,
                    used: pool.used(store),
                    is_target: target_store(pool) == store,
                });
                (*weight, usages.collect())
            })
            .collect();
        Partition::new(capacity, &vms)
    }

    fn pool(&self, vm: usize, pool: usize) -> Option<&PoolHandle> {
        self.0.get(vm).and_then(|(_, _, pools)| pools.get(pool))
    }
}

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

    /// A slot of the memory store for a block of the pool: in the pool's lists, but not in the index.
    pub(super) fn memory_slot(&self, pool: &PoolHandle, key: Key) -> Option<u32> {
        let memory = &self.stores.memory;
        if memory.capacity() == 0 {
            return None;
        }
        let hash = self.index.hash(key);
        for _ in 0..ROUNDS {
            {
                let mut policy = pool.policy.lock();
                if policy.closed {
                    return None;
                }
                if policy.free.len() == 0 {
                    self.refill(pool, &mut policy);
                }
                if let Some(slot) = policy.admit(memory, pool.id.index, key, hash) {
                    return Some(slot);
                }
            }
            let weights = self.admission_lock.lock(pool.queue_weight());
            // While this one waited, another may have made room for both.
            if memory.available() == 0
                && self.reclaim(&weights, StoreKind::Memory, EVICTION_BATCH) == 0
            {
                return None;
            }
            let mut policy = pool.policy.lock();
            if !policy.closed {
                self.refill(pool, &mut policy);
            }
        }
        None
    }

    /// Takes free slots of the store as spare ones of the pool.
    fn refill(&self, pool: &Pool, policy: &mut PoolPolicy) {
        let batch = self.batch.load(Ordering::Relaxed);
        let free = self.stores.memory.take(pool.id.index, batch);
        pool.memory_used
            .fetch_add(free.len().into(), Ordering::Relaxed);
        policy.free.append(&self.stores.memory, free);
    }

    /// Keeps a slot that is in no list as a spare one, and gives some to the store when there are many.
    pub(super) fn keep_free(&self, pool: &Pool, policy: &mut PoolPolicy, slot: u32) {
        let memory = &self.stores.memory;
        policy.free.push(memory, slot);
        let batch = self.batch.load(Ordering::Relaxed);
        // Beyond the capacity: the store has shrunk, and it is not to be used again.
        let beyond = slot >= memory.capacity();
        if policy.free.len() > 2 * batch || beyond || policy.closed {
            let count = if beyond { 1 } else { batch };
            let free = policy.free.split(memory, count);
            self.return_slots(pool, free);
        }
    }

    /// Gives slots of the pool that are in no list to the store.
    pub(super) fn return_slots(&self, pool: &Pool, free: FreeList) {
        pool.memory_used
            .fetch_sub(free.len().into(), Ordering::Relaxed);
        self.stores.memory.return_slots(pool.id.index, free);
    }

    /// A slot of the SSD store for a block of the pool, with the block on its way there.
    pub(super) fn ssd_slot(
        &self,
        ssd: &Arc<SsdStore>,
        pool: &PoolHandle,
        key: Key,
        content: &Block,
    ) -> Option<u32> {
        let sum = ssd.sum(key, content);
        for _ in 0..ROUNDS {
            {
                let mut log = pool.log_on(ssd)?;
                let (append, opened) = log.append(ssd, pool.id.index, key, content, sum);
                if opened {
                    pool.ssd_used
                        .fetch_add(EXTENT_SLOTS.into(), Ordering::Relaxed);
                }
                match append {
                    Append::Done(slot) => return Some(slot),
                    Append::Refused => return None,
                    Append::Full => {}
                }
            }
            let weights = self.admission_lock.lock(pool.queue_weight());
            if !ssd.has_free() && self.reclaim(&weights, StoreKind::Ssd, EVICTION_BATCH) == 0 {
                return None;
            }
        }
        None
    }

    /// An extent may have become free.
    pub(super) fn release_extent(&self, ssd: &SsdStore, pool: &Pool, slot: u32) {
        let Some(mut log) = pool.log_on(ssd) else {
            return;
        };
        let discard = log.closed;
        if ssd.pool_of(slot) == pool.id.index && log.release(ssd, slot / EXTENT_SLOTS, discard) {
            pool.ssd_used
                .fetch_sub(EXTENT_SLOTS.into(), Ordering::Relaxed);
        }
    }

    /// Evicts about `want` blocks from those who hold too much; returns how many slots became free.
    pub(super) fn reclaim(&self, weights: &WeightTable, store: StoreKind, want: u64) -> u64 {
        let capacity = self.capacity(store);
        // Not more than a sixteenth of a small store at one stroke.
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
