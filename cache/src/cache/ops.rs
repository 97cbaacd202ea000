//! What happens to blocks: get, put, invalidate, migrate.

use super::{Cache, DiskHandle, PoolHandle, StoreKind};
use crate::block::{Block, Key};
use crate::disk::{Change, Ticket};
use crate::index::{Place, REGION, Slot};
use crate::store::{Page, SsdStore, Wanted};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Blocks looked for one by one before it is worth asking where there are some.
/// So few in tests that the model's disks, which are small, have larger ranges.
const SWEEP: u64 = if cfg!(test) { 8 } else { 4096 };

/// What a lookup found.
pub(crate) enum Found {
    /// Copied.
    Hit,
    Miss,
    /// On the SSD: [`Cache::finish`] reads it.
    OnSsd(Pending),
}

/// A block that is to be read from the SSD.
pub(crate) struct Pending {
    key: Key,
    ssd: Arc<SsdStore>,
    wanted: Wanted,
    take: bool,
}

/// A slot that is out of the index: whoever has this must free it.
pub(super) enum Owned {
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
    ) -> Found {
        let found = self.look(disk, block, at, piece, take);
        match &found {
            Found::Hit => pool.count.memory_hits.add(1),
            Found::Miss => pool.count.misses.add(1),
            Found::OnSsd(_) => {}
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
    ) -> Found {
        let Some(key) = disk.key(block) else {
            return Found::Miss;
        };
        let mut entry = self.index.lock(key);
        let Some(spot) = entry.find(&self.stores) else {
            return Found::Miss;
        };
        let owned = match entry.place(spot).slot() {
            Slot::Memory(slot) => {
                // SAFETY: the index names the slot and its shard is locked. A slot is written only before the
                // index names it and after it no longer does.
                unsafe { self.stores.memory.arena.read(slot, at, piece) };
                Owned::Memory(slot)
            }
            Slot::Ssd(slot) => {
                let Some(ssd) = self.stores.working_ssd() else {
                    return Found::Miss;
                };
                if !ssd.read_staged(slot, at, piece) {
                    let wanted = ssd.wanted(slot);
                    return Found::OnSsd(Pending {
                        key,
                        ssd,
                        wanted,
                        take,
                    });
                }
                Owned::Ssd(ssd, slot)
            }
        };
        if take {
            entry.remove(spot);
            let hash = entry.hash();
            drop(entry);
            self.free(owned, Some(hash));
        } else {
            entry.used(spot);
        }
        Found::Hit
    }

    /// Reads blocks from the SSD, together, into `pages`. For each (by its number): was it the block?
    pub(crate) fn finish(
        &self,
        pool: &PoolHandle,
        pending: &[(u64, Pending)],
        pages: &mut [Page],
    ) -> Vec<bool> {
        let Some((_, first)) = pending.first() else {
            return Vec::new();
        };
        // All of one store, but for those around a replacement, whose blocks are gone anyway.
        let ssd = &first.ssd;
        let wanted: Vec<_> = pending.iter().map(|(_, p)| (p.key, p.wanted)).collect();
        let results = ssd.read(&wanted, pages);
        let hits: Vec<_> = pending
            .iter()
            .zip(results)
            .map(|((_, p), result)| Arc::ptr_eq(&p.ssd, ssd) && self.finish_one(p, result))
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

    fn finish_one(&self, p: &Pending, result: io::Result<()>) -> bool {
        let place = Place::ssd(p.wanted.slot);
        let mut entry = self.index.lock(p.key);
        let current = !p.ssd.closed() && p.ssd.same(p.wanted);
        let Some(spot) = entry.find_at(place).filter(|_| current) else {
            // Changed or evicted meanwhile: whatever was read is not it.
            return false;
        };
        match result {
            Ok(()) if !p.take => entry.used(spot),
            _ => {
                entry.remove(spot);
                drop(entry);
                self.free(Owned::Ssd(p.ssd.clone(), p.wanted.slot), None);
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

    /// Inserts a block that was read under `ticket`; `false` when it was not.
    pub(crate) fn insert(
        &self,
        disk: &DiskHandle,
        pool: &PoolHandle,
        block: u64,
        content: &Block,
        ticket: Ticket,
    ) -> bool {
        let done = self.try_insert(disk, pool, block, content, ticket);
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
        ticket: Ticket,
    ) -> Option<()> {
        let key = disk.key(block)?;
        let ssd = match pool.spec().store {
            StoreKind::Memory => None,
            StoreKind::Ssd => self.stores.working_ssd(),
        };
        let owned = match ssd {
            Some(ssd) => {
                let slot = self.ssd_slot(&ssd, pool, key, content)?;
                Owned::Ssd(ssd, slot)
            }
            None => {
                let slot = self.memory_slot(pool, key)?;
                // SAFETY: the slot is ours until the index names it, below.
                unsafe { self.stores.memory.arena.write(slot, content) };
                Owned::Memory(slot)
            }
        };
        let mut entry = self.index.lock(key);
        let closed = matches!(&owned, Owned::Ssd(ssd, _) if ssd.closed());
        if closed || !disk.good(&entry, block, ticket) {
            drop(entry);
            self.free(owned, None);
            return None;
        }
        let old = entry.set(&self.stores, owned.place());
        let old = old.and_then(|place| self.own(place));
        drop(entry);
        if let Some(old) = old {
            self.free(old, None);
        }
        Some(())
    }

    /// Removes what the cache holds of a change that has begun.
    pub(crate) fn invalidate(&self, change: &Change) {
        self.remove(change.disk(), change.blocks());
    }

    /// Removes all of a disk's blocks, for ever: nothing of it is filled any more.
    pub(super) fn expel(&self, disk: &DiskHandle) {
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
                |place| self.own(place),
                |owned| self.invalidated(owned),
            );
        } else {
            parts().for_each(|part| self.remove_each(disk, part));
        }
    }

    fn remove_each(&self, disk: &DiskHandle, blocks: Range<u64>) {
        for key in blocks.map_while(|block| disk.key(block)) {
            let mut entry = self.index.lock(key);
            if let Some(spot) = entry.find(&self.stores) {
                let place = entry.remove(spot);
                let owned = self.own(place);
                drop(entry);
                self.invalidated(owned);
            }
        }
    }

    fn invalidated(&self, owned: Option<Owned>) {
        if let Some(pool) = owned.and_then(|owned| self.free(owned, None)) {
            pool.count.invalidations.add(1);
        }
    }

    /// What the cache holds of the disk's blocks becomes the pool's; how many did.
    pub(super) fn hand_over(&self, disk: &DiskHandle, blocks: Range<u64>, to: &PoolHandle) -> u64 {
        let mut moved = 0;
        let count = blocks.end.saturating_sub(blocks.start);
        if count > SWEEP {
            let number = u64::from(disk.id.number);
            let keys = self.index.keys(&self.stores, |key| {
                key.disk() == number && blocks.contains(&key.block())
            });
            for key in keys {
                moved += u64::from(self.hand_over_one(disk, key, to));
            }
        } else {
            for key in blocks.map_while(|block| disk.key(block)) {
                moved += u64::from(self.hand_over_one(disk, key, to));
            }
        }
        moved
    }

    fn hand_over_one(&self, disk: &DiskHandle, key: Key, to: &PoolHandle) -> bool {
        let ticket = disk.ticket(key.block());
        let place = {
            let entry = self.index.lock(key);
            entry.find(&self.stores).map(|spot| entry.place(spot))
        };
        let Some(place) = place else {
            return false;
        };
        match place.slot() {
            Slot::Memory(slot) => self.hand_over_slot(key, slot, to),
            Slot::Ssd(slot) => {
                // Extents belong to one pool: the block is read and put again.
                let from = self.stores.working_ssd().map(|ssd| ssd.owner(slot));
                if from.is_none_or(|from| from == to.id.index) {
                    return false;
                }
                let mut page = Page::new();
                let hit = match self.look(disk, key.block(), 0, &mut page.0, false) {
                    Found::Hit => true,
                    Found::Miss => false,
                    Found::OnSsd(pending) => {
                        let read = pending.ssd.clone().read(
                            &[(pending.key, pending.wanted)],
                            std::slice::from_mut(&mut page),
                        );
                        read.into_iter()
                            .all(|result| self.finish_one(&pending, result))
                    }
                };
                hit && self
                    .try_insert(disk, to, key.block(), &page.0, ticket)
                    .is_some()
            }
        }
    }

    fn hand_over_slot(&self, key: Key, slot: u32, to: &PoolHandle) -> bool {
        let memory = &self.stores.memory;
        let Some(from) = self.pool_at(memory.owner(slot).pool) else {
            return false;
        };
        if from.id == to.id {
            return false;
        }
        // Two pools at once: always the lower index first.
        let (mut from_shelf, mut to_shelf) = if from.id.index < to.id.index {
            let a = from.shelf.lock();
            (a, to.shelf.lock())
        } else {
            let b = to.shelf.lock();
            (from.shelf.lock(), b)
        };
        let entry = self.index.lock(key);
        let here = entry.find_at(Place::memory(slot)).is_some();
        if !here || memory.owner(slot).pool != from.id.index || to_shelf.closed {
            return false;
        }
        from_shelf.unlink(memory, slot);
        to_shelf.adopt(memory, to.id.index, slot);
        from.memory_used
            .fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
        to.memory_used
            .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        true
    }

    /// What has just been taken out of the index. Call while its shard is locked: once it is not, the store
    /// may be replaced, and the slot be another's.
    fn own(&self, place: Place) -> Option<Owned> {
        Some(match place.slot() {
            Slot::Memory(slot) => Owned::Memory(slot),
            Slot::Ssd(slot) => Owned::Ssd(self.stores.ssd.load_full()?, slot),
        })
    }

    /// Gives a slot back to its pool, which is returned. With the hash of its key when a hit took it.
    pub(super) fn free(&self, owned: Owned, taken: Option<u64>) -> Option<PoolHandle> {
        match owned {
            Owned::Memory(slot) => {
                let memory = &self.stores.memory;
                let pool = self.pool_at(memory.owner(slot).pool)?;
                let mut shelf = pool.shelf.lock();
                shelf.unlink(memory, slot);
                if let Some(hash) = taken {
                    shelf.taken(hash);
                }
                self.keep_spare(&pool, &mut shelf, slot);
                drop(shelf);
                Some(pool)
            }
            Owned::Ssd(ssd, slot) => {
                let pool = self.pool_at(ssd.owner(slot))?;
                if ssd.free(slot) {
                    self.release_extent(&ssd, &pool, slot);
                }
                Some(pool)
            }
        }
    }
}

impl Owned {
    const fn place(&self) -> Place {
        match self {
            Self::Memory(slot) => Place::memory(*slot),
            Self::Ssd(_, slot) => Place::ssd(*slot),
        }
    }
}
