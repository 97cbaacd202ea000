//! The store: its device, its extents and its state.

use super::device::Device;
use super::transfer::{READ_PATIENCE, Stall};
use super::write_buffer::{BlocksRead, SEGMENT_SLOTS, Segment, WriteBuffer};
use crate::block::{BLOCK_BYTES, BLOCK_SIZE, Block, Key};
use crate::clock;
use crate::index::MAX_SLOTS;
use crate::lock_rank::{LEAF, Ranked};
use crate::ssd_admission::Mean;
use crate::store::list::{FreeList, Links};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

/// Consecutive errors of the device after which the store is closed.
const MAX_ERRORS: u32 = 8;

/// The SSD store.
pub(crate) struct SsdStore {
    pub(super) device: Box<dyn Device>,
    pub(super) chunks: Box<[OnceLock<Chunk>]>,
    pub(super) free: Ranked<Free, LEAF>,
    /// Extents without a pool that become free after their discard.
    retired: Ranked<Vec<u32>, LEAF>,
    /// The number of usable extents.
    pub(super) capacity: AtomicU32,
    /// Blocks beyond a new end are not dropped yet.
    shrinks: AtomicBool,
    pub(super) write_buffer: WriteBuffer,
    stall: Stall,
    /// The number of writer threads.
    writers: AtomicUsize,
    pub(super) seed: u64,
    pub(super) closed: AtomicBool,
    pub(super) failure: Ranked<Option<String>, LEAF>,
    pub(super) errors: AtomicU64,
    errors_in_a_row: AtomicU32,
    /// The mean time of a written block.
    pub(super) writes: Ranked<Mean, LEAF>,
    /// Dropped last, after the device has closed its file.
    device_in_use: Arc<()>,
}

#[derive(Default)]
pub(super) struct Free {
    pub(super) stack: FreeList,
    /// Extents from this one on were never used.
    pub(super) fresh: u32,
    /// Extents beyond the capacity, kept for later growth.
    pub(super) beyond: Vec<u32>,
}

/// The factor by which a store can grow without being opened anew. It costs a place for each possible chunk: at most 128 bytes
/// for 16 MiB of blocks.
const GROWTH: u32 = 8;
const _: () = assert!(size_of::<OnceLock<Chunk>>() <= 128);

impl SsdStore {
    /// A store of `bytes` on `device`; it can become [`GROWTH`] times as large. The seed must be random.
    pub(crate) fn new(device: Box<dyn Device>, bytes: u64, seed: u64) -> Self {
        let capacity = extents(bytes);
        let limit = capacity.saturating_mul(GROWTH).clamp(64, LIMIT);
        let chunks = usize::try_from(limit).unwrap_or(0).div_ceil(CHUNK);
        Self {
            device,
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            free: Ranked::default(),
            retired: Ranked::default(),
            capacity: AtomicU32::new(capacity),
            shrinks: AtomicBool::new(false),
            write_buffer: WriteBuffer::default(),
            stall: Stall::default(),
            writers: AtomicUsize::new(0),
            seed,
            closed: AtomicBool::new(false),
            failure: Ranked::default(),
            errors: AtomicU64::new(0),
            errors_in_a_row: AtomicU32::new(0),
            writes: Ranked::default(),
            device_in_use: Arc::default(),
        }
    }

    /// A reference that is dead once the device has closed its file.
    pub(crate) fn device_in_use(&self) -> Weak<()> {
        Arc::downgrade(&self.device_in_use)
    }

    /// Sets the number of writer threads; without any, other threads write.
    pub(crate) fn set_writers(&self, writers: usize) {
        self.writers.store(writers, Ordering::Relaxed);
    }

    pub(crate) fn has_writers(&self) -> bool {
        self.writers.load(Ordering::Relaxed) > 0
    }

    /// Are there blocks beyond a new end? Then puts must not evict: eviction would free few usable slots, and many blocks are
    /// evicted anyway.
    pub(crate) fn shrinks(&self) -> bool {
        self.shrinks.load(Ordering::SeqCst)
    }

    pub(crate) fn set_shrinks(&self, shrinks: bool) {
        self.shrinks.store(shrinks, Ordering::SeqCst);
    }

    /// The number of usable slots.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity.load(Ordering::SeqCst) * EXTENT_SLOTS
    }

    /// Bytes that the store can grow to.
    pub(crate) fn limit(&self) -> u64 {
        u64::try_from(self.chunks.len() * CHUNK * BLOCK_SIZE).unwrap_or(u64::MAX)
            * u64::from(EXTENT_SLOTS)
    }

    /// Heap bytes, without the write buffer.
    pub(crate) fn bytes(&self) -> usize {
        let used = self.chunks.iter().filter(|c| c.get().is_some()).count();
        let slots = CHUNK * usize::try_from(EXTENT_SLOTS).unwrap_or(0);
        used * (slots * 14 + CHUNK * size_of::<Extent>()) + size_of_val(&*self.chunks)
    }

    /// A closed store takes no puts and answers no gets.
    pub(crate) fn closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Closes the store. Returns `false` when it was closed already. The caller must then sweep its blocks out of the index.
    pub(crate) fn close(&self, why: Option<String>) -> bool {
        let first = !self.closed.swap(true, Ordering::SeqCst);
        if first {
            *self.failure.lock() = why;
            self.write_buffer.stop();
            self.stall.stop();
        }
        first
    }

    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    pub(crate) fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// The device time of a written block, nanoseconds; 0 while unknown.
    pub(crate) fn write_ns(&self) -> u64 {
        self.writes.lock().get().unwrap_or(0)
    }

    /// Counts an error of the device. Returns `true` when the store must be closed.
    pub(crate) fn failed(&self, error: &io::Error) -> bool {
        self.errors.fetch_add(1, Ordering::Relaxed);
        let row = self.errors_in_a_row.fetch_add(1, Ordering::Relaxed) + 1;
        row >= MAX_ERRORS || error.kind() == io::ErrorKind::StorageFull
    }

    fn worked(&self) {
        if self.errors_in_a_row.load(Ordering::Relaxed) > 0 {
            self.errors_in_a_row.store(0, Ordering::Relaxed);
        }
    }

    pub(super) fn chunk(&self, extent: u32) -> (&Chunk, usize) {
        let extent = usize::try_from(extent).unwrap_or(usize::MAX);
        let slots = CHUNK * usize::try_from(EXTENT_SLOTS).unwrap_or(0);
        let chunk = self.chunks[extent / CHUNK].get_or_init(|| Chunk {
            keys: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            sums: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            stamps: (0..slots).map(|_| AtomicU16::new(0)).collect(),
            extents: (0..CHUNK).map(|_| Extent::default()).collect(),
        });
        (chunk, extent % CHUNK)
    }

    pub(super) fn extent(&self, extent: u32) -> &Extent {
        let (chunk, i) = self.chunk(extent);
        &chunk.extents[i]
    }

    pub(super) fn slot(&self, slot: u32) -> (&Chunk, usize) {
        let (chunk, i) = self.chunk(slot / EXTENT_SLOTS);
        let extent_slots = usize::try_from(EXTENT_SLOTS).unwrap_or(0);
        let within = usize::try_from(slot % EXTENT_SLOTS).unwrap_or(0);
        (chunk, i * extent_slots + within)
    }

    pub(crate) fn key(&self, slot: u32) -> Key {
        let (chunk, i) = self.slot(slot);
        Key::from_raw(chunk.keys[i].load(Ordering::Relaxed))
    }

    /// The time of the last use of a slot's block, as set by [`set_stamp`](Self::set_stamp).
    pub(crate) fn stamp(&self, slot: u32) -> u16 {
        let (chunk, i) = self.slot(slot);
        chunk.stamps[i].load(Ordering::Relaxed)
    }

    pub(crate) fn set_stamp(&self, slot: u32, stamp: u16) {
        let (chunk, i) = self.slot(slot);
        chunk.stamps[i].store(stamp, Ordering::Relaxed);
    }

    /// The pool that a slot's extent belongs to.
    pub(crate) fn pool_of(&self, slot: u32) -> u32 {
        self.extent(slot / EXTENT_SLOTS).pool.load(Ordering::SeqCst)
    }
}

impl Links for SsdStore {
    fn newer(&self, at: u32) -> u32 {
        self.extent(at).newer.load(Ordering::Relaxed)
    }
    fn older(&self, at: u32) -> u32 {
        self.extent(at).older.load(Ordering::Relaxed)
    }
    fn set_newer(&self, at: u32, to: u32) {
        self.extent(at).newer.store(to, Ordering::Relaxed);
    }
    fn set_older(&self, at: u32, to: u32) {
        self.extent(at).older.store(to, Ordering::Relaxed);
    }
}

// Free extents and the capacity.

impl SsdStore {
    /// Is no write pending?
    #[cfg(test)]
    pub(crate) fn settled(&self) -> bool {
        (0..self.free.lock().fresh).all(|e| self.extent(e).pending.load(Ordering::SeqCst) == 0)
    }

    /// The number of an extent's blocks.
    #[cfg(test)]
    pub(crate) fn live(&self, extent: u32) -> u32 {
        self.extent(extent).live.load(Ordering::SeqCst).count_ones()
    }

    #[cfg(test)]
    pub(crate) fn free_extents(&self) -> u32 {
        let free = self.free.lock();
        free.stack.len()
            + self
                .capacity
                .load(Ordering::SeqCst)
                .saturating_sub(free.fresh)
    }

    /// Is an extent free?
    pub(crate) fn has_free(&self) -> bool {
        let free = self.free.lock();
        free.stack.len() > 0 || free.fresh < self.capacity.load(Ordering::SeqCst)
    }

    /// Takes a free extent for the pool. It is open before the lock is released: a store that shrinks meanwhile either takes it
    /// from the free ones or sees that it is in use.
    pub(super) fn take_extent(&self, pool: u32) -> Option<u32> {
        let mut free = self.free.lock();
        let extent = match free.stack.pop(self) {
            Some(extent) => extent,
            None if free.fresh < self.capacity.load(Ordering::SeqCst) => {
                free.fresh += 1;
                free.fresh - 1
            }
            None => return None,
        };
        let e = self.extent(extent);
        e.pool.store(pool, Ordering::SeqCst);
        e.state.store(OPEN, Ordering::SeqCst);
        Some(extent)
    }

    pub(super) fn return_extent(&self, extent: u32) {
        let mut free = self.free.lock();
        if extent < self.capacity.load(Ordering::SeqCst) {
            free.stack.push(self, extent);
        } else {
            free.beyond.push(extent);
        }
    }

    /// Marks an extent to be discarded before it is used again.
    pub(super) fn retire(&self, extent: u32) {
        self.retired.lock().push(extent);
    }

    /// Discards the retired extents, neighbours in one call, and frees them. Call it without locks: it may take long. It is a
    /// hint, so errors are ignored.
    pub(crate) fn discard_retired(&self) {
        let mut retired = std::mem::take(&mut *self.retired.lock());
        retired.sort_unstable();
        let len = u64::from(EXTENT_SLOTS) * BLOCK_BYTES;
        for run in retired.chunk_by(|one, next| one + 1 == *next) {
            let (first, count) = (run.first().copied().unwrap_or(0), run.len());
            let bytes = u64::try_from(count).unwrap_or(0) * len;
            if let Err(error) = self.device.discard(u64::from(first) * len, bytes) {
                tracing::debug!(%error, first, count, "the SSD store's device takes no discards");
            }
            run.iter().for_each(|extent| self.return_extent(*extent));
        }
    }

    /// Changes the capacity. Extents beyond it are no longer handed out. Returns those that were in use.
    pub(crate) fn set_capacity(&self, bytes: u64) -> io::Result<std::ops::Range<u32>> {
        let new = extents(self.device.grow(bytes)?);
        let mut free = self.free.lock();
        let old = self.capacity.swap(new, Ordering::SeqCst);
        let mut all = std::mem::take(&mut free.stack);
        let mut known = std::mem::take(&mut free.beyond);
        known.extend(std::iter::from_fn(|| all.pop(self)));
        for extent in known {
            if extent < new {
                free.stack.push(self, extent);
            } else {
                free.beyond.push(extent);
            }
        }
        Ok(if new < old {
            new..free.fresh.max(new)
        } else {
            0..0
        })
    }

    /// The owner of an extent that is in use.
    pub(crate) fn pool_in_use(&self, extent: u32) -> Option<u32> {
        let e = self.extent(extent);
        (e.state.load(Ordering::SeqCst) != FREE).then(|| e.pool.load(Ordering::SeqCst))
    }
}

// Extents: their records and states.

/// Slots of an extent: 256 KiB of blocks, one bit each in a word.
pub(crate) const EXTENT_SLOTS: u32 = 64;

/// Extents whose records are allocated together (16 MiB of blocks).
pub(super) const CHUNK: usize = 64;

/// States of an extent. Changed under the lock of its owner's log.
pub(super) const FREE: u32 = 0;
pub(super) const OPEN: u32 = 1;
pub(super) const SEALED: u32 = 2;

/// 14 bytes a slot and 48 an extent.
pub(super) struct Chunk {
    pub(super) keys: Box<[AtomicU64]>,
    pub(super) sums: Box<[AtomicU32]>,
    /// The time of the block's last use, by the clock of its pool.
    pub(super) stamps: Box<[AtomicU16]>,
    pub(super) extents: Box<[Extent]>,
}

#[derive(Default)]
pub(super) struct Extent {
    /// A bit for each slot that is in the index, or is being added or removed.
    pub(super) live: AtomicU64,
    /// Advances whenever the extent changes its pool: earlier reads are void.
    pub(super) epoch: AtomicU32,
    /// The number of segments with pending writes.
    pub(super) pending: AtomicU32,
    pub(super) state: AtomicU32,
    pub(super) pool: AtomicU32,
    /// Its number among its pool's extents, in the order of opening.
    pub(super) opened: AtomicU32,
    pub(super) newer: AtomicU32,
    pub(super) older: AtomicU32,
}

/// The most extents of an SSD store: its slots fit a location of the index.
const LIMIT: u32 = MAX_SLOTS / EXTENT_SLOTS;

/// The number of whole extents in `bytes`.
pub(super) fn extents(bytes: u64) -> u32 {
    let extents = bytes / (u64::from(EXTENT_SLOTS) * BLOCK_BYTES);
    u32::try_from(extents).map_or(LIMIT, |e| e.min(LIMIT))
}

// Reads of blocks: from the write buffer, or from the device with their checksums verified.

/// A block to read from the device.
#[derive(Clone, Copy)]
pub(crate) struct SsdReadRef {
    pub(crate) slot: u32,
    sum: u32,
    epoch: u32,
}

impl SsdStore {
    /// Is a read of the device overdue?
    pub(crate) fn is_stalled(&self) -> bool {
        self.stall.is_stalled()
    }

    /// The time since a read became overdue.
    pub(crate) fn stalled_for(&self) -> Option<Duration> {
        self.stall.time()
    }

    /// The time since the oldest pending write began.
    pub(crate) fn writing_for(&self) -> Option<Duration> {
        self.stall.write_time()
    }

    /// Waits until a read is overdue, or a write takes long. Returns `false` when the store has closed.
    pub(crate) fn wait_for_stall(&self) -> bool {
        self.stall.wait()
    }

    /// The checksum of a block's content and key: the low half of a keyed hash.
    pub(crate) fn sum(&self, key: Key, content: &Block) -> u32 {
        let sum = xxhash_rust::xxh3::xxh3_64_with_seed(content, key.hash(self.seed));
        u32::try_from(sum & u64::from(u32::MAX)).unwrap_or(0)
    }

    /// Copies a part of a block that is not yet on the device. Call it under the lock of its shard.
    pub(crate) fn read_buffered(&self, slot: u32, at: usize, piece: &mut [u8]) -> bool {
        let Some(segment) = self.write_buffer.find(slot) else {
            return false;
        };
        let bytes = segment.bytes.read();
        let block = bytes.block(slot - segment.first);
        piece.copy_from_slice(&block[at..at + piece.len()]);
        true
    }

    /// The reference for a read from the device. Call it under the lock of the shard.
    pub(crate) fn read_ref(&self, slot: u32) -> SsdReadRef {
        let (chunk, i) = self.slot(slot);
        let extent = self.extent(slot / EXTENT_SLOTS);
        SsdReadRef {
            slot,
            sum: chunk.sums[i].load(Ordering::Relaxed),
            epoch: extent.epoch.load(Ordering::SeqCst),
        }
    }

    /// Is the slot unchanged? Call it under the lock of the shard, when the index names it.
    pub(crate) fn is_current(&self, read_ref: SsdReadRef) -> bool {
        let extent = self.extent(read_ref.slot / EXTENT_SLOTS);
        extent.epoch.load(Ordering::SeqCst) == read_ref.epoch
    }

    /// Reads blocks from the device in one batch, and verifies their checksums. `None` when the device does not answer in time;
    /// at once while it is stalled.
    pub(crate) fn read(&self, read_refs: &[(Key, SsdReadRef)]) -> Option<BlocksRead> {
        if self.closed() || self.is_stalled() {
            return None;
        }
        let offset = |(_, read_ref): &(_, SsdReadRef)| u64::from(read_ref.slot) * BLOCK_BYTES;
        let offsets: Vec<_> = read_refs.iter().map(offset).collect();
        let read = self.device.read(&offsets, READ_PATIENCE);
        let mut read = read.map_err(|overdue| self.stall.begin(overdue)).ok()?;
        let results = read.results.iter_mut().zip(&read.pages);
        for ((result, page), (key, read_ref)) in results.zip(read_refs) {
            if result.is_ok() && self.sum(*key, &page.0) != read_ref.sum {
                *result = Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!(
                        "block {} of the SSD store has a wrong checksum",
                        read_ref.slot
                    ),
                ));
            }
        }
        if read.results.iter().all(Result::is_ok) {
            self.worked();
        }
        Some(read)
    }
}

// Writes of full segments to the device.

/// The segments that a writer writes in one batch (1 MiB).
const WRITE_BATCH: usize = 16;

impl SsdStore {
    /// Bytes of a segment.
    pub(crate) const SEGMENT_BYTES: u64 = SEGMENT_SLOTS as u64 * BLOCK_BYTES;

    /// The next full segments, for a writer thread; none when the store has closed.
    pub(crate) fn next_full(&self) -> Vec<Arc<Segment>> {
        self.write_buffer.next(WRITE_BATCH)
    }

    /// The next full segment, if one waits.
    pub(crate) fn waiting_full(&self) -> Option<Arc<Segment>> {
        self.write_buffer.waiting()
    }

    /// Writes segments in one batch. Returns a result for each. Their blocks are found in memory until
    /// [`written`](Self::written).
    pub(crate) fn write(&self, segments: &[Arc<Segment>]) -> Vec<io::Result<()>> {
        let bytes: Vec<_> = segments
            .iter()
            .map(|segment| segment.bytes.read())
            .collect();
        let requests: Vec<_> = segments
            .iter()
            .zip(&bytes)
            .map(|(segment, bytes)| (u64::from(segment.first) * BLOCK_BYTES, bytes.as_bytes()))
            .collect();
        let begun = clock::now();
        let results = self.stall.write(|| self.device.write(&requests));
        let took = u64::try_from(clock::since(begun).as_nanos()).unwrap_or(u64::MAX);
        let blocks = u64::try_from(segments.len()).unwrap_or(0) * u64::from(SEGMENT_SLOTS);
        self.writes.lock().add(blocks, took);
        if results.iter().all(Result::is_ok) {
            self.worked();
        }
        results
    }

    /// Notes that a segment is written, or has failed and is out of the index. Returns `true` when its extent may be free now.
    pub(crate) fn written(&self, segment: &Segment) -> bool {
        self.write_buffer.forget(segment.first);
        let extent = self.extent(segment.first / EXTENT_SLOTS);
        extent.pending.fetch_sub(1, Ordering::SeqCst) == 1
    }

    /// Slots of a segment.
    pub(crate) fn slots(segment: &Segment) -> std::ops::Range<u32> {
        segment.first..segment.first + SEGMENT_SLOTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::fault::FaultSsd;

    #[test]
    fn a_store_that_shrinks_sees_an_extent_that_was_just_taken() {
        let bytes = 4 * u64::from(EXTENT_SLOTS) * BLOCK_BYTES;
        let device = FaultSsd::new();
        let ssd = SsdStore::new(Box::new(device), bytes, 1);
        let extent = ssd.take_extent(7).unwrap();
        let beyond = ssd.set_capacity(0).unwrap();
        assert!(beyond.contains(&extent));
        assert_eq!(ssd.pool_in_use(extent), Some(7));
    }
}
