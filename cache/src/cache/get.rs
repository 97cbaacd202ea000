//! Gets: copies blocks from memory, and reads blocks from the SSD.

use super::disk::DiskHandle;
use super::pool::PoolHandle;
use super::pool_curve::Access;
use super::remove::DetachedSlot;
use super::state::Cache;
use crate::block::Key;
use crate::clock;
use crate::index::{Location, SlotRef};
use crate::store::{Page, SsdReadRef, SsdStore};
use std::io;
use std::sync::Arc;
use std::time::Instant;

/// The result of a lookup.
pub(crate) enum Lookup {
    /// Copied.
    Hit,
    Miss,
    /// On the SSD: [`Cache::finish_ssd_reads`] reads it.
    OnSsd(PendingSsdRead),
}

/// A block to read from the SSD.
pub(crate) struct PendingSsdRead {
    pub(super) key: Key,
    pub(super) ssd: Arc<SsdStore>,
    pub(super) read_ref: SsdReadRef,
    take: bool,
}

impl Cache {
    /// Copies a part of a block out, if the cache has it. `take` also removes the block.
    pub(crate) fn get(
        &self,
        disk: &DiskHandle,
        pool: &PoolHandle,
        block: u64,
        at: usize,
        piece: &mut [u8],
        take: bool,
    ) -> Lookup {
        let found = match disk.key(block) {
            Some(key) => {
                let hash = self.index.hash(key);
                let how = if take { Access::Take } else { Access::Read };
                pool.accessed(hash, how);
                self.look_for(key, hash, at, piece, take)
            }
            None => Lookup::Miss,
        };
        match &found {
            Lookup::Hit => pool.count.memory_hits.add(1),
            Lookup::Miss => pool.count.misses.add(1),
            Lookup::OnSsd(_) => {}
        }
        found
    }

    /// As [`get`](Self::get), without counting.
    pub(super) fn look(
        &self,
        disk: &DiskHandle,
        block: u64,
        at: usize,
        piece: &mut [u8],
        take: bool,
    ) -> Lookup {
        disk.key(block).map_or(Lookup::Miss, |key| {
            self.look_for(key, self.index.hash(key), at, piece, take)
        })
    }

    fn look_for(&self, key: Key, hash: u64, at: usize, piece: &mut [u8], take: bool) -> Lookup {
        let mut entry = self.index.lock_hashed(key, hash);
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
                    if ssd.is_stalled() {
                        return Lookup::Miss;
                    }
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

    /// Reads blocks from the SSD in one batch. Returns each block's content, and whether it is valid. `None` when the SSD does
    /// not answer.
    pub(crate) fn finish_ssd_reads(
        &self,
        pool: &PoolHandle,
        pending: &[(u64, PendingSsdRead)],
    ) -> Option<(Vec<bool>, Vec<Page>)> {
        let (_, first) = pending.first()?;
        // All blocks are of one store, except during a replacement. Then those of the old store count as misses.
        let ssd = &first.ssd;
        let read_refs: Vec<_> = pending.iter().map(|(_, p)| (p.key, p.read_ref)).collect();
        let Some(read) = ssd.read(&read_refs) else {
            pool.count
                .misses
                .add(u64::try_from(pending.len()).unwrap_or(u64::MAX));
            return None;
        };
        let of = pending.iter().zip(read.results).zip(&read.pages);
        let hits = of.map(|(((_, p), result), page)| {
            let hit = Arc::ptr_eq(&p.ssd, ssd) && self.finish_ssd_read(p, result, page);
            match hit {
                true => pool.count.ssd_hits.add(1),
                false => pool.count.misses.add(1),
            }
            hit
        });
        Some((hits.collect(), read.pages))
    }

    /// Is `page` the block that was to be read? A block of a hybrid pool may then have moved.
    pub(super) fn finish_ssd_read(
        &self,
        pending: &PendingSsdRead,
        result: io::Result<()>,
        page: &Page,
    ) -> bool {
        let location = Location::ssd(pending.read_ref.slot);
        let to = match &result {
            Ok(()) if !pending.take => self.destination(pending, page),
            _ => None,
        };
        let stays = !pending.take && !self.bypasses_ssd(pending);
        let mut entry = self.index.lock(pending.key);
        let current = !pending.ssd.closed() && pending.ssd.is_current(pending.read_ref);
        let Some(entry_ref) = entry.find_at(location).filter(|_| current) else {
            // Changed or evicted meanwhile: the content read is not the block's.
            drop(entry);
            if let Some(to) = to {
                self.free(to, None);
            }
            return false;
        };
        let hash = (result.is_ok() && pending.take).then(|| entry.hash());
        match (&result, to) {
            (Ok(()), Some(to)) => {
                entry.relocated(entry_ref, to.location());
                entry.set_uses(entry_ref, 1);
                drop(entry);
                let from = DetachedSlot::Ssd(pending.ssd.clone(), pending.read_ref.slot);
                if let Some(pool) = self.free(from, None) {
                    pool.count.moved(to.location().slot());
                }
            }
            (Ok(()), None) if stays => entry.used(entry_ref),
            _ => {
                entry.remove(entry_ref);
                drop(entry);
                let from = DetachedSlot::Ssd(pending.ssd.clone(), pending.read_ref.slot);
                let pool = self.free(from, hash);
                if let (Some(pool), true, false) = (pool, result.is_ok(), pending.take) {
                    pool.count.evictions.add(1);
                }
            }
        }
        match result {
            Ok(()) => true,
            Err(error) => {
                self.ssd_error(&pending.ssd, &error);
                false
            }
        }
    }

    pub(crate) fn holds(&self, disk: &DiskHandle, block: u64) -> bool {
        disk.key(block)
            .is_some_and(|key| self.index.lock(key).find(&self.stores).is_some())
    }
}

// Reads of the SSD store are accounted to the pool that owns the blocks, and to the disk whose reads they replace.

impl Cache {
    /// Does the pool bypass the SSD, since that is no faster than the disk?
    fn bypasses_ssd(&self, pending: &PendingSsdRead) -> bool {
        self.owner(pending)
            .is_some_and(|pool| pool.ssd_admission.bypasses())
    }

    /// The pool that owns the block; it may differ from the pool of the read.
    pub(crate) fn owner(&self, pending: &PendingSsdRead) -> Option<PoolHandle> {
        self.pool_at(pending.ssd.pool_of(pending.read_ref.slot))
    }

    /// Notes that a read of the disk has read blocks from the SSD since `begun`. `pool` owns the first block. `served`: no
    /// block was missing.
    pub(crate) fn ssd_was_read(
        &self,
        disk: &DiskHandle,
        pool: &PoolHandle,
        begun: Instant,
        served: bool,
    ) {
        let write_ns = self.stores.working_ssd().map_or(0, |ssd| ssd.write_ns());
        pool.ssd_admission.set_disk_read(disk.read_ns());
        pool.ssd_admission
            .was_read(clock::since(begun), served, write_ns);
    }
}
