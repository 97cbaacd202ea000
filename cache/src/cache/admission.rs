//! Admission: slots for the blocks of puts.
//!
//! A put takes a slot from its pool's free list; when that is empty, the pool takes some of the store's free slots. Only
//! when the store as a whole is full does the put wait for the admission lock, in the order of the paper's weight-aware
//! lock (Justitia, section III-A); its holder evicts up to 2 MiB from the victims of Algorithm 1.

use super::partition::EVICTION_BATCH;
use super::pool::{Pool, PoolHandle};
use super::state::Cache;
use crate::block::{Block, Key};
use crate::config::StoreKind;
use crate::policy::PoolPolicy;
use crate::store::{Append, EXTENT_SLOTS, FreeList, SsdStore};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Rounds after which a put is dropped: other puts of the pool took the slots each time. A round evicts up to 2 MiB, so
/// that hardly happens twice; the limit is there for a pool whose part is a few blocks.
const ROUNDS: usize = 8;

impl Cache {
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
            // While this put waited, another may have evicted enough for both.
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

    /// Moves free slots of the store to the pool's free list.
    fn refill(&self, pool: &Pool, policy: &mut PoolPolicy) {
        let batch = self.batch.load(Ordering::Relaxed);
        let free = self.stores.memory.take(pool.id.index, batch);
        pool.memory_used
            .fetch_add(free.len().into(), Ordering::Relaxed);
        policy.free.append(&self.stores.memory, free);
    }

    /// Puts a slot that is in no list on the pool's free list, and returns some to the store when there are many.
    pub(super) fn keep_free(&self, pool: &Pool, policy: &mut PoolPolicy, slot: u32) {
        let memory = &self.stores.memory;
        policy.free.push(memory, slot);
        let batch = self.batch.load(Ordering::Relaxed);
        // Beyond the capacity: the store has shrunk, and the slot is not used again.
        let beyond = slot >= memory.capacity();
        if policy.free.len() > 2 * batch || beyond || policy.closed {
            let count = if beyond { 1 } else { batch };
            let free = policy.free.split(memory, count);
            self.return_slots(pool, free);
        }
    }

    /// Returns slots of the pool that are in no list to the store.
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
                match pool.append(&mut log, ssd, key, content, sum, false) {
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
}
