//! Leaves the blocks of the store to the next daemon, and restores them.

use super::device::{self, MARK_BYTES};
use super::device::{Device, FileDevice};
use super::log::SsdLog;
use super::store::SsdStore;
use super::store::{EXTENT_SLOTS, SEALED};
use crate::block::Key;
use crate::warm::{PAGE_BYTES, Place, Preamble};
use justitia_guest_protocol::puts::AlignedBuf;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;

/// Bytes of one read or write: direct I/O needs aligned memory.
const STEP: usize = 1 << 20;

impl Place for FileDevice {
    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let mut buf = AlignedBuf::new(STEP.min(bytes.len()));
        for (part, at) in bytes.chunks(STEP).zip((at + MARK_BYTES..).step_by(STEP)) {
            buf[..part.len()].copy_from_slice(part);
            self.file.write_all_at(&buf[..part.len()], at)?;
        }
        Ok(())
    }

    fn read(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        let mut buf = AlignedBuf::new(STEP.min(bytes.len()));
        for (part, at) in bytes
            .chunks_mut(STEP)
            .zip((at + MARK_BYTES..).step_by(STEP))
        {
            let len = part.len();
            self.file.read_exact_at(&mut buf[..len], at)?;
            part.copy_from_slice(&buf[..len]);
        }
        Ok(())
    }
}

impl FileDevice {
    /// The preamble that an earlier daemon has left, if it was not taken yet.
    pub(crate) fn take_left(&self) -> Option<Preamble> {
        self.left.lock().take()
    }

    /// The seed of its blocks' hashes.
    pub(crate) fn seed(&self) -> Option<u64> {
        self.left.lock().as_ref().map(|left| left.seed)
    }

    /// Leaves the blocks and their saved list to the next daemon: nothing is removed at the end. Write nothing to it
    /// afterwards.
    pub(crate) fn leave(&self, preamble: &Preamble) -> io::Result<()> {
        self.file.sync_data()?;
        device::leave(&self.file, preamble)?;
        self.kept.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// The end of its readable part.
    pub(crate) fn end(&self) -> io::Result<u64> {
        let end = rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0))?;
        Ok(end.saturating_sub(MARK_BYTES) / PAGE_BYTES * PAGE_BYTES)
    }
}

/// A block of an extent: its slot, its key, its checksum and its stamp.
pub(crate) type SavedSlot = (u32, Key, u32, u16);

impl SsdStore {
    /// Its device.
    pub(crate) fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// The seed of checksums.
    pub(crate) const fn seed(&self) -> u64 {
        self.seed
    }

    /// The checksum of the block in a slot.
    pub(crate) fn sum_of(&self, slot: u32) -> u32 {
        let (chunk, i) = self.slot(slot);
        chunk.sums[i].load(Ordering::Relaxed)
    }

    /// The slots of an extent that are in the index, or are being added.
    pub(crate) fn live_slots(&self, extent: u32) -> impl Iterator<Item = u32> + use<> {
        let live = self.extent(extent).live.load(Ordering::SeqCst);
        let bits = (0..EXTENT_SLOTS).filter(move |bit| live >> bit & 1 != 0);
        bits.map(move |bit| extent * EXTENT_SLOTS + bit)
    }

    /// Has any of these extents pending writes?
    pub(crate) fn is_pending(&self, extents: &[u32]) -> bool {
        let mut extents = extents.iter();
        extents.any(|extent| self.extent(*extent).pending.load(Ordering::SeqCst) != 0)
    }

    /// Sets the used extents of a new store.
    pub(crate) fn restored(&self, taken: &[bool]) {
        let mut free = self.free.lock();
        let end = taken
            .iter()
            .rposition(|taken| *taken)
            .map_or(0, |last| last + 1);
        free.fresh = u32::try_from(end).unwrap_or(0);
        for (extent, taken) in (0..).zip(&taken[..end]) {
            if !taken {
                free.stack.push(self, extent);
            }
        }
    }
}

impl SsdLog {
    /// Closes the open extent, and queues its unwritten segment.
    pub(crate) fn end(&mut self, ssd: &SsdStore) {
        self.seal(ssd);
    }

    /// Adds an extent of an earlier daemon, which no pool has, as the newest of the log.
    pub(crate) fn restore(&mut self, ssd: &SsdStore, pool: u32, extent: u32, slots: &[SavedSlot]) {
        let mut live = 0;
        for (slot, key, sum, stamp) in slots {
            let (chunk, i) = ssd.slot(*slot);
            chunk.keys[i].store(key.raw(), Ordering::Relaxed);
            chunk.sums[i].store(*sum, Ordering::Relaxed);
            chunk.stamps[i].store(*stamp, Ordering::Relaxed);
            live |= 1 << (slot % EXTENT_SLOTS);
        }
        let e = ssd.extent(extent);
        e.live.store(live, Ordering::SeqCst);
        e.pool.store(pool, Ordering::SeqCst);
        e.state.store(SEALED, Ordering::SeqCst);
        self.opened = self.opened.wrapping_add(1);
        e.opened.store(self.opened, Ordering::SeqCst);
        self.sealed.push(ssd, extent);
    }
}
