//! Puts: inserts blocks from reads and guests, and finds slots for them.

use super::disk::{DiskHandle, DiskState};
use super::partition::EVICTION_BATCH;
use super::pool::{Pool, PoolHandle};
use super::pool_curve::Access;
use super::remove::DetachedSlot;
use super::state::Cache;
use crate::block::{BLOCK_SIZE, Block, Key};
use crate::config::StoreKind;
use crate::error::CacheError;
use crate::ids::VmId;
use crate::policy::PoolPolicy;
use crate::residency::Residency;
use crate::store::{Append, EXTENT_SLOTS, FreeList, SsdStore};
use crate::write_epochs::FillToken;
use justitia_guest_protocol::puts::Verdict;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Why a block was not inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// No slot was free.
    NoRoom,
    /// The pool only uses the SSD store, which is not worth it for this pool ([`crate::ssd_admission`]).
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

    /// Finds a slot for a block of the pool, in the store where it belongs, and writes the block there.
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
            pool.ssd_admission.set_disk_read(disk.read_ns());
            if only && !pool.ssd_admission.admits() {
                return Err(Refused::NotWorthIt);
            }
            if only || !stalled && belongs() && pool.ssd_admission.admits() {
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
        // SAFETY: only this thread uses the slot until the index names it.
        unsafe { self.stores.memory.arena.write(slot, content) };
        Ok(DetachedSlot::Memory(slot))
    }
}

// Admission: slots for the blocks of puts.
//
// A put takes a slot from its pool's free list. When that is empty, the pool takes some of the store's free slots. Only when
// the whole store is full does the put wait for the admission lock. The paper's weight-aware lock (Justitia, section III-A)
// orders the waiters. The holder evicts up to 2 MiB from the victims of Algorithm 1.

/// Rounds after which a put is dropped, because other puts of the pool took the slots each time. A round evicts up to 2 MiB, so
/// two are rare; the limit is for a pool whose share is a few blocks.
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

    /// Puts a slot that is in no list on the pool's free list, and returns some to the store when the list is long.
    pub(super) fn keep_free(&self, pool: &Pool, policy: &mut PoolPolicy, slot: u32) {
        let memory = &self.stores.memory;
        policy.free.push(memory, slot);
        let batch = self.batch.load(Ordering::Relaxed);
        // The store has shrunk: a slot beyond its capacity is not used again.
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

    /// Finds a slot of the SSD store for a block of the pool, and queues the block for writing.
    fn ssd_slot(
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

    /// Releases the slot's extent if it has become free.
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

// Verified puts: compares blocks that a guest offers with those that the host served last.

impl Cache {
    /// Starts tracking which contents of disks that are added later the VM's guest holds, so that it can put. `bytes` is the
    /// size of the table: 16 for a block.
    ///
    /// # Errors
    /// When there is no such VM, or the kernel has no random bytes.
    pub fn track_residency(&self, vm: VmId, bytes: u64) -> Result<(), CacheError> {
        let residency = Residency::new(bytes).map_err(|e| {
            CacheError::Refused(format!(
                "cannot take random bytes for the residency table: {e}"
            ))
        })?;
        self.registry.lock().vm(vm)?.residency = Some(Arc::new(residency));
        Ok(())
    }

    /// Caches a block that the guest offers, if its content was last served to the guest and is still the disk's. `content`
    /// must not change meanwhile.
    pub(crate) fn offer(
        &self,
        disk: &DiskHandle,
        pool: &PoolHandle,
        block: u64,
        content: &Block,
    ) -> Verdict {
        // Take the token before looking up the hash. A later write voids the token; an earlier one has removed the hash or is
        // still in flight.
        let token = disk.token(block);
        let (Some(residency), Some(key)) = (&disk.residency, disk.key(block)) else {
            return Verdict::Unknown;
        };
        if self.holds(disk, block) {
            return Verdict::Held;
        }
        let Some(known) = residency.lock(key).get() else {
            return Verdict::Unknown;
        };
        if residency.hash(content, disk.id.generation) != known {
            return Verdict::Mismatch;
        }
        {
            // The guest has given the block away: it must read it before it can offer it again.
            let mut entry = residency.lock(key);
            if entry.get() != Some(known) {
                return Verdict::Raced;
            }
            entry.remove();
        }
        match self.insert(disk, pool, block, content, token) {
            Ok(()) => {
                pool.accessed(self.index.hash(key), Access::Put);
                Verdict::Accepted
            }
            Err(Refused::Raced) => Verdict::Raced,
            Err(Refused::NoRoom | Refused::NotWorthIt) => {
                let mut entry = residency.lock(key);
                if disk.allows_hash(&entry, block, token) {
                    entry.set(known);
                }
                Verdict::NoRoom
            }
        }
    }
}

impl DiskState {
    /// Notes that the guest holds this content of a block, which it has read or written. `token` was taken before the content
    /// was read. Only whole blocks count.
    pub(crate) fn served(&self, block: u64, content: &[u8], token: FillToken) {
        let Some(residency) = &self.residency else {
            return;
        };
        let (Ok(content), Some(key)) = (<&[u8; BLOCK_SIZE]>::try_from(content), self.key(block))
        else {
            return;
        };
        let hash = residency.hash(content, self.id.generation);
        let mut entry = residency.lock(key);
        if self.allows_hash(&entry, block, token) {
            entry.set(hash);
        }
    }
}
