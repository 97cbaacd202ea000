//! What happens to blocks: get, put, invalidate, migrate.

use super::Cache;
use super::disks::DiskHandle;
use super::pool::PoolHandle;
use super::write_guard::WriteGuard;
use crate::block::{Block, Key};
use crate::config::StoreKind;
use crate::fill_guard::FillToken;
use crate::index::{Location, REGION, SlotRef};
use crate::store::{Page, SsdReadRef, SsdStore};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Blocks looked for one by one before it is worth asking where there are some.
/// So few in tests that the model's disks, which are small, have larger ranges.
const SWEEP: u64 = if cfg!(test) { 8 } else { 4096 };

/// What a lookup found.
pub(crate) enum Lookup {
    /// Copied.
    Hit,
    Miss,
    /// On the SSD: [`Cache::finish_ssd_reads`] reads it.
    OnSsd(PendingSsdRead),
}

/// A block that is to be read from the SSD.
pub(crate) struct PendingSsdRead {
    key: Key,
    ssd: Arc<SsdStore>,
    read_ref: SsdReadRef,
    take: bool,
}

/// A slot that is out of the index: whoever has this must free it.
pub(super) enum DetachedSlot {
    Memory(u32),
    Ssd(Arc<SsdStore>, u32),
}

impl Cache {
    /// Copies a part of a block out, if the cache has it; with `take` the block goes.
    pub(crate) fn get(
        &self,
        disk: &DiskHandle,
        pool: &PoolHandle,
        block: u64,
        at: usize,
        piece: &mut [u8],
        take: bool,
    ) -> Lookup {
        let found = self.look(disk, block, at, piece, take);
        match &found {
            Lookup::Hit => pool.count.memory_hits.add(1),
            Lookup::Miss => pool.count.misses.add(1),
            Lookup::OnSsd(_) => {}
        }
        found
    }

    fn look(
        &self,
        disk: &DiskHandle,
        block: u64,
        at: usize,
        piece: &mut [u8],
        take: bool,
    ) -> Lookup {
        let Some(key) = disk.key(block) else {
            return Lookup::Miss;
        };
        let mut entry = self.index.lock(key);
        let Some(entry_ref) = entry.find(&self.stores) else {
            return Lookup::Miss;
        };
        let detached = match entry.location(entry_ref).slot() {
            SlotRef::Memory(slot) => {
                // SAFETY: the index names the slot and its shard is locked. A slot is written only before the
                // index names it and after it no longer does.
                unsafe { self.stores.memory.arena.read(slot, at, piece) };
                DetachedSlot::Memory(slot)
            }
            SlotRef::Ssd(slot) => {
                let Some(ssd) = self.stores.working_ssd() else {
                    return Lookup::Miss;
                };
                if !ssd.read_buffered(slot, at, piece) {
                    let read_ref = ssd.read_ref(slot);
                    return Lookup::OnSsd(PendingSsdRead {
                        key,
                        ssd,
                        read_ref,
                        take,
                    });
                }
                DetachedSlot::Ssd(ssd, slot)
            }
        };
        if take {
            entry.remove(entry_ref);
            let hash = entry.hash();
            drop(entry);
            self.free(detached, Some(hash));
        } else {
            entry.used(entry_ref);
        }
        Lookup::Hit
    }

    /// Reads blocks from the SSD, together, into `pages`. For each (by its number): was it the block?
    pub(crate) fn finish_ssd_reads(
        &self,
        pool: &PoolHandle,
        pending: &[(u64, PendingSsdRead)],
        pages: &mut [Page],
    ) -> Vec<bool> {
        let Some((_, first)) = pending.first() else {
            return Vec::new();
        };
        // All of one store, but for those around a replacement, whose blocks are gone anyway.
        let ssd = &first.ssd;
        let read_ref: Vec<_> = pending.iter().map(|(_, p)| (p.key, p.read_ref)).collect();
        let results = ssd.read(&read_ref, pages);
        let hits: Vec<_> = pending
            .iter()
            .zip(results)
            .map(|((_, p), result)| Arc::ptr_eq(&p.ssd, ssd) && self.finish_ssd_read(p, result))
            .collect();
        for hit in &hits {
            if *hit {
                pool.count.ssd_hits.add(1);
            } else {
                pool.count.misses.add(1);
            }
        }
        hits
    }

    fn finish_ssd_read(&self, p: &PendingSsdRead, result: io::Result<()>) -> bool {
        let location = Location::ssd(p.read_ref.slot);
        let mut entry = self.index.lock(p.key);
        let current = !p.ssd.closed() && p.ssd.is_current(p.read_ref);
        let Some(entry_ref) = entry.find_at(location).filter(|_| current) else {
            // Changed or evicted meanwhile: whatever was read is not it.
            return false;
        };
        match result {
            Ok(()) if !p.take => entry.used(entry_ref),
            _ => {
                entry.remove(entry_ref);
                drop(entry);
                self.free(DetachedSlot::Ssd(p.ssd.clone(), p.read_ref.slot), None);
            }
        }
        match result {
            Ok(()) => true,
            Err(error) => {
                self.ssd_error(&p.ssd, &error);
                false
            }
        }
    }

    pub(crate) fn holds(&self, disk: &DiskHandle, block: u64) -> bool {
        disk.key(block)
            .is_some_and(|key| self.index.lock(key).find(&self.stores).is_some())
    }

    /// Inserts a block that was read under `token`; `false` when it was not.
    pub(crate) fn insert(
        &self,
        disk: &DiskHandle,
        pool: &PoolHandle,
        block: u64,
        content: &Block,
        token: FillToken,
    ) -> bool {
        let done = self.try_insert(disk, pool, block, content, token);
        if done.is_some() {
            pool.count.puts.add(1);
        } else {
            pool.count.puts_dropped.add(1);
        }
        done.is_some()
    }

    fn try_insert(
        &self,
        disk: &DiskHandle,
        pool: &PoolHandle,
        block: u64,
        content: &Block,
        token: FillToken,
    ) -> Option<()> {
        let key = disk.key(block)?;
        let ssd = match pool.spec().store {
            StoreKind::Memory => None,
            StoreKind::Ssd => self.stores.working_ssd(),
        };
        let detached = match ssd {
            Some(ssd) => {
                let slot = self.ssd_slot(&ssd, pool, key, content)?;
                DetachedSlot::Ssd(ssd, slot)
            }
            None => {
                let slot = self.memory_slot(pool, key)?;
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
            return None;
        }
        let old = entry.set(&self.stores, detached.location());
        let old = old.and_then(|location| self.detach(location));
        drop(entry);
        if let Some(old) = old {
            self.free(old, None);
        }
        Some(())
    }

    /// Removes what the cache holds of a change that has begun.
    pub(crate) fn invalidate(&self, change: &WriteGuard) {
        self.remove(change.disk(), change.blocks());
    }

    /// Removes all of a disk's blocks, for ever: nothing of it is filled any more.
    pub(super) fn purge(&self, disk: &DiskHandle) {
        disk.close();
        self.remove(disk, 0..u64::MAX);
    }

    fn remove(&self, disk: &DiskHandle, blocks: Range<u64>) {
        if blocks.end.saturating_sub(blocks.start) <= SWEEP {
            return self.remove_each(disk, blocks);
        }
        let number = u64::from(disk.id.number);
        let held = u64::try_from(self.index.len()).unwrap_or(u64::MAX);
        // Nothing of the range is put any more, so the second time there is nothing else to be found than the first.
        let parts = || self.index.occupied(number, blocks.clone());
        // To ask for a region costs about as much as to look at a block.
        let regions = (blocks.end - blocks.start) / REGION;
        if regions > held || parts().map(|part| part.end - part.start).sum::<u64>() > held {
            self.index.sweep(
                &self.stores,
                |key, _| key.disk() == number && blocks.contains(&key.block()),
                |location| self.detach(location),
                |detached| self.invalidated(detached),
            );
        } else {
            parts().for_each(|part| self.remove_each(disk, part));
        }
    }

    fn remove_each(&self, disk: &DiskHandle, blocks: Range<u64>) {
        for key in blocks.map_while(|block| disk.key(block)) {
            let mut entry = self.index.lock(key);
            if let Some(entry_ref) = entry.find(&self.stores) {
                let location = entry.remove(entry_ref);
                let detached = self.detach(location);
                drop(entry);
                self.invalidated(detached);
            }
        }
    }

    fn invalidated(&self, detached: Option<DetachedSlot>) {
        if let Some(pool) = detached.and_then(|detached| self.free(detached, None)) {
            pool.count.invalidations.add(1);
        }
    }

    /// What the cache holds of the disk's blocks becomes the pool's; how many did.
    pub(super) fn reassign(&self, disk: &DiskHandle, blocks: Range<u64>, to: &PoolHandle) -> u64 {
        let mut moved = 0;
        let count = blocks.end.saturating_sub(blocks.start);
        if count > SWEEP {
            let number = u64::from(disk.id.number);
            let keys = self.index.keys(&self.stores, |key| {
                key.disk() == number && blocks.contains(&key.block())
            });
            for key in keys {
                moved += u64::from(self.reassign_block(disk, key, to));
            }
        } else {
            for key in blocks.map_while(|block| disk.key(block)) {
                moved += u64::from(self.reassign_block(disk, key, to));
            }
        }
        moved
    }

    fn reassign_block(&self, disk: &DiskHandle, key: Key, to: &PoolHandle) -> bool {
        let token = disk.token(key.block());
        let location = {
            let entry = self.index.lock(key);
            entry
                .find(&self.stores)
                .map(|entry_ref| entry.location(entry_ref))
        };
        let Some(location) = location else {
            return false;
        };
        match location.slot() {
            SlotRef::Memory(slot) => self.reassign_slot(key, slot, to),
            SlotRef::Ssd(slot) => {
                // Extents belong to one pool: the block is read and put again.
                let from = self.stores.working_ssd().map(|ssd| ssd.pool_of(slot));
                if from.is_none_or(|from| from == to.id.index) {
                    return false;
                }
                let mut page = Page::new();
                let hit = match self.look(disk, key.block(), 0, &mut page.0, false) {
                    Lookup::Hit => true,
                    Lookup::Miss => false,
                    Lookup::OnSsd(pending) => {
                        let read = pending.ssd.clone().read(
                            &[(pending.key, pending.read_ref)],
                            std::slice::from_mut(&mut page),
                        );
                        read.into_iter()
                            .all(|result| self.finish_ssd_read(&pending, result))
                    }
                };
                hit && self
                    .try_insert(disk, to, key.block(), &page.0, token)
                    .is_some()
            }
        }
    }

    fn reassign_slot(&self, key: Key, slot: u32, to: &PoolHandle) -> bool {
        let memory = &self.stores.memory;
        let Some(from) = self.pool_at(memory.meta(slot).pool) else {
            return false;
        };
        if from.id == to.id {
            return false;
        }
        // Two pools at once: always the lower index first.
        let (mut from_policy, mut to_policy) = if from.id.index < to.id.index {
            let a = from.policy.lock();
            (a, to.policy.lock())
        } else {
            let b = to.policy.lock();
            (from.policy.lock(), b)
        };
        let entry = self.index.lock(key);
        let here = entry.find_at(Location::memory(slot)).is_some();
        if !here || memory.meta(slot).pool != from.id.index || to_policy.closed {
            return false;
        }
        from_policy.unlink(memory, slot);
        to_policy.adopt(memory, to.id.index, slot);
        from.memory_used
            .fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        to.memory_used
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        true
    }

    /// What has just been taken out of the index. Call while its shard is locked: once it is not, the store
    /// may be replaced, and the slot be another's.
    fn detach(&self, location: Location) -> Option<DetachedSlot> {
        Some(match location.slot() {
            SlotRef::Memory(slot) => DetachedSlot::Memory(slot),
            SlotRef::Ssd(slot) => DetachedSlot::Ssd(self.stores.ssd.load_full()?, slot),
        })
    }

    /// Gives a slot back to its pool, which is returned. With the hash of its key when a hit took it.
    pub(super) fn free(&self, detached: DetachedSlot, promoted: Option<u64>) -> Option<PoolHandle> {
        match detached {
            DetachedSlot::Memory(slot) => {
                let memory = &self.stores.memory;
                let pool = self.pool_at(memory.meta(slot).pool)?;
                let mut policy = pool.policy.lock();
                policy.unlink(memory, slot);
                if let Some(hash) = promoted {
                    policy.promoted(hash);
                }
                self.keep_free(&pool, &mut policy, slot);
                drop(policy);
                Some(pool)
            }
            DetachedSlot::Ssd(ssd, slot) => {
                let pool = self.pool_at(ssd.pool_of(slot))?;
                if ssd.free(slot) {
                    self.release_extent(&ssd, &pool, slot);
                }
                Some(pool)
            }
        }
    }
}

impl DetachedSlot {
    const fn location(&self) -> Location {
        match self {
            Self::Memory(slot) => Location::memory(*slot),
            Self::Ssd(_, slot) => Location::ssd(*slot),
        }
    }
}
