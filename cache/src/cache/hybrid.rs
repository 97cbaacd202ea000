//! Hybrid pools: blocks that move between memory and the SSD (the paper, section 3.3, which leaves them open).
//!
//! The rule and why: `docs/design/hypervisor-cache.md`, "Hybrid pools".

use super::get::PendingSsdRead;
use super::partition::EVICTION_BATCH;
use super::partition::WeightTable;
use super::pool::Pool;
use super::remove::DetachedSlot;
use super::state::Cache;
use crate::block::{BLOCK_SIZE, Key};
use crate::config::StoreKind;
use crate::index::{Location, SlotRef};
use crate::policy::Demotion;
use crate::store::{Append, EXTENT_SLOTS, Page, SsdStore};
use std::sync::Arc;

/// Blocks that are demoted at a time: a segment of the SSD store, 64 KiB.
const QUANTUM: u64 = 16;

/// A block is promoted when its reuse time is at most this part of the time for which unused blocks stay in memory. One reuse
/// time predicts the next poorly: if memory holds one in `k` of equally used blocks, one in `k` of the reuse times is within
/// the whole time, though no block is used more than another.
const FITS_PART: u64 = 4;

/// Stamps of blocks on the SSD advance by this many steps in one turn of the memory store. Stamps count modulo 2^16.
const STAMPS: u32 = 1024;

/// Writes blocks that are evicted from memory to the SSD.
struct PoolDemotion<'a> {
    cache: &'a Cache,
    pool: &'a Pool,
    ssd: &'a Arc<SsdStore>,
    /// The assumed time of the blocks' last use.
    stamp: u16,
}

impl Demotion for PoolDemotion<'_> {
    fn copy(&self, key: Key, slot: u32) -> Option<Location> {
        if !self.pool.ssd_admission.admits() {
            return None;
        }
        let mut content = [0; BLOCK_SIZE];
        // SAFETY: the pool's list is locked, so the slot is given to no other block. The index has named it under the lock, so
        // its content was written before. It is not written again until the slot is taken off the list.
        unsafe { self.cache.stores.memory.arena.read(slot, 0, &mut content) };
        let sum = self.ssd.sum(key, &content);
        let mut log = self.pool.log_on(self.ssd)?;
        match self
            .pool
            .append(&mut log, self.ssd, key, &content, sum, false)
        {
            Append::Done(slot) => {
                self.ssd.set_stamp(slot, self.stamp);
                Some(Location::ssd(slot))
            }
            Append::Full | Append::Refused => None,
        }
    }

    fn is_valid(&self) -> bool {
        !self.ssd.closed()
    }

    fn undo(&self, location: Location) {
        if let SlotRef::Ssd(slot) = location.slot() {
            let detached = DetachedSlot::Ssd(Arc::clone(self.ssd), slot);
            self.cache.free(detached, None);
        }
    }
}

impl Cache {
    /// Evicts blocks of a pool from memory. Used blocks go to the SSD, if the pool has a weight there. Returns how many slots
    /// became free. Demotion is in portions, so that the pool's puts wait for one portion at most.
    pub(super) fn evict_from_memory(&self, weights: &WeightTable, pool: &Pool, blocks: u64) -> u64 {
        let ssd = pool
            .spec()
            .weight(StoreKind::Ssd)
            .and_then(|_| self.stores.working_ssd());
        let Some(ssd) = ssd else {
            return self.evict(pool, StoreKind::Memory, blocks);
        };
        let mut freed = 0;
        let mut has_room = true;
        while freed < blocks {
            if has_room
                && pool.ssd_admission.admits_all()
                && !ssd.has_free()
                && self.room_for_demotion(pool, &ssd) < QUANTUM
            {
                has_room = self.reclaim(weights, StoreKind::Ssd, EXTENT_SLOTS.into()) > 0;
            }
            let demotion = PoolDemotion {
                cache: self,
                pool,
                ssd: &ssd,
                stamp: self.stamp_of_evicted(pool),
            };
            let want = QUANTUM.min(blocks - freed);
            let some = self.evict_to(pool, want, Some(&demotion));
            if some == 0 {
                break;
            }
            freed += some;
        }
        freed
    }

    /// Free slots in the extent that the pool fills.
    fn room_for_demotion(&self, pool: &Pool, ssd: &SsdStore) -> u64 {
        pool.log_on(ssd).map_or(0, |log| log.room().into())
    }

    /// Accesses in a step of the stamps.
    fn stamp_unit(&self) -> u64 {
        u64::from((self.stores.memory.capacity() / STAMPS).max(1))
    }

    fn stamp(&self, clock: u64) -> u16 {
        u16::try_from((clock / self.stamp_unit()) & u64::from(u16::MAX)).unwrap_or(0)
    }

    /// The stamp of a block that is put on the SSD or read there now.
    pub(super) fn stamp_of_used(&self, pool: &Pool) -> u16 {
        self.stamp(pool.curve.clock())
    }

    /// The stamp of a block that memory evicts now. It was not used during its whole stay in memory.
    pub(super) fn stamp_of_evicted(&self, pool: &Pool) -> u16 {
        let stayed = pool.curve.eviction_time().min(self.stamp_unit() << 15);
        self.stamp(pool.curve.clock())
            .wrapping_sub(self.stamp(stayed))
    }

    /// Has the memory store more free slots than an eviction leaves?
    fn has_spare_memory(&self) -> bool {
        let batch = EVICTION_BATCH.min(self.most_at_once(StoreKind::Memory));
        u64::from(self.stores.memory.available()) > 2 * batch
    }

    /// Would the block of an SSD slot, which is used now, have stayed in the pool's share of the memory store?
    fn fits_memory(&self, ssd: &SsdStore, pool: &Pool, slot: u32) -> bool {
        let now = self.stamp_of_used(pool);
        let age = u64::from(now.wrapping_sub(ssd.stamp(slot))) * self.stamp_unit();
        ssd.set_stamp(slot, now);
        self.has_spare_memory() || age * FITS_PART <= pool.curve.eviction_time()
    }

    /// Notes that a hit takes a block from the SSD, and decides where its next put goes.
    pub(super) fn taken_from_ssd(&self, ssd: &SsdStore, pool: &Pool, slot: u32, hash: u64) {
        if pool.spec().is_hybrid() {
            let fits = self.fits_memory(ssd, pool, slot);
            pool.policy.lock().taken_from_ssd(hash, fits);
        }
    }

    /// Copies a block that was just read from the SSD to its new place: memory, or the newest end of the pool's log. `None`
    /// when it stays, as most do.
    pub(super) fn destination(
        &self,
        pending: &PendingSsdRead,
        content: &Page,
    ) -> Option<DetachedSlot> {
        let (ssd, slot) = (&pending.ssd, pending.read_ref.slot);
        let pool = self.pool_at(ssd.pool_of(slot))?;
        if !pool.spec().is_hybrid() {
            return None;
        }
        if !self.fits_memory(ssd, &pool, slot) {
            return self.reinsert(&pool, pending, content);
        }
        let slot = self.memory_slot(&pool, pending.key)?;
        // SAFETY: the slot is the caller's until the index names it.
        unsafe { self.stores.memory.arena.write(slot, &content.0) };
        Some(DetachedSlot::Memory(slot))
    }

    /// Writes a used block again that would soon be evicted with its extent. Not when that needs an eviction, and not more
    /// blocks than were inserted since: only insertions turn the log.
    fn reinsert(
        &self,
        pool: &Pool,
        pending: &PendingSsdRead,
        content: &Page,
    ) -> Option<DetachedSlot> {
        let (ssd, key) = (&pending.ssd, pending.key);
        let most = pool.entitlement(StoreKind::Ssd) / u64::from(EXTENT_SLOTS);
        let mut log = pool.log_on(ssd)?;
        let is_young = u64::from(log.age(ssd, pending.read_ref.slot)) * 4 <= most * 3;
        if is_young || !log.may_reinsert() || !pool.ssd_admission.admits_all() {
            return None;
        }
        let sum = ssd.sum(key, &content.0);
        let reinserted = pool.append(&mut log, ssd, key, &content.0, sum, true);
        let Append::Done(slot) = reinserted else {
            return None;
        };
        ssd.set_stamp(slot, self.stamp_of_used(pool));
        Some(DetachedSlot::Ssd(Arc::clone(ssd), slot))
    }
}
