//! The SSD store: a log of extents for each pool (the paper's section 4.2, asynchronous puts, synchronous
//! gets).
//!
//! A pool fills one extent (256 KiB) from its beginning to its end, in segments of 64 KiB that two writer
//! threads put on the device, each up to sixteen together; until a segment has arrived its blocks are read from memory. Extents are evicted whole,
//! oldest first. An extent is given to another pool only when none of its blocks is in the index and no
//! write to it is under way.
//!
//! The content means nothing to anyone but this process: every start has its own seed for the checksums,
//! which also cover the block's key, so that what another start, another block or another VM left on the
//! device never passes for the one that was put.

mod device;
mod log;
mod write_buffer;

pub(crate) use device::{Device, FileDevice, Page};
pub(crate) use log::{Append, SsdLog};
pub(crate) use write_buffer::Segment;

use super::list::{FreeList, Links};
use crate::block::{BLOCK_BYTES, BLOCK_SIZE, Block, Key};
use parking_lot::Mutex;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use write_buffer::WriteBuffer;

/// Slots of an extent: 256 KiB of blocks, one bit each in a word.
pub(crate) const EXTENT_SLOTS: u32 = 64;

/// Extents whose records are allocated together (16 MiB of blocks).
const CHUNK: usize = 64;

/// Units that a writer puts on the device together (1 MiB).
const WRITE_BATCH: usize = 16;

/// Errors of the device in a row after which it is used no more.
const MAX_ERRORS: u32 = 8;

/// What an extent is doing. Changed under the lock of the log of its owner.
const FREE: u32 = 0;
const OPEN: u32 = 1;
const SEALED: u32 = 2;

/// 12 bytes a slot and 40 an extent.
struct Chunk {
    keys: Box<[AtomicU64]>,
    sums: Box<[AtomicU32]>,
    extents: Box<[Extent]>,
}

#[derive(Default)]
pub(crate) struct Extent {
    /// A bit for each slot that is a block, or is being made or unmade one.
    live: AtomicU64,
    /// Advances whenever the extent is given away: a read that began before is void.
    epoch: AtomicU32,
    /// Units on their way to the device.
    pending: AtomicU32,
    state: AtomicU32,
    pool: AtomicU32,
    newer: AtomicU32,
    older: AtomicU32,
}

/// The SSD store.
pub(crate) struct SsdStore {
    device: Box<dyn Device>,
    chunks: Box<[OnceLock<Chunk>]>,
    free: Mutex<Free>,
    /// Extents that may be used.
    capacity: AtomicU32,
    write_buffer: WriteBuffer,
    seed: u64,
    closed: AtomicBool,
    failure: Mutex<Option<String>>,
    errors: AtomicU64,
    errors_in_a_row: AtomicU32,
}

#[derive(Default)]
struct Free {
    stack: FreeList,
    fresh: u32,
}

/// A block on the device that somebody is about to read.
#[derive(Clone, Copy)]
pub(crate) struct SsdReadRef {
    pub(crate) slot: u32,
    sum: u32,
    epoch: u32,
}

impl SsdStore {
    /// A store of `bytes` on `device`; it can grow eightfold. The seed must be random.
    pub(crate) fn new(device: Box<dyn Device>, bytes: u64, seed: u64) -> Self {
        let capacity = extents(bytes);
        let limit = capacity.saturating_mul(8).clamp(64, LIMIT);
        let chunks = usize::try_from(limit).unwrap_or(0).div_ceil(CHUNK);
        Self {
            device,
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            free: Mutex::default(),
            capacity: AtomicU32::new(capacity),
            write_buffer: WriteBuffer::default(),
            seed,
            closed: AtomicBool::new(false),
            failure: Mutex::new(None),
            errors: AtomicU64::new(0),
            errors_in_a_row: AtomicU32::new(0),
        }
    }

    /// Slots that may be used.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity.load(Ordering::SeqCst) * EXTENT_SLOTS
    }

    /// Bytes that the store can grow to.
    pub(crate) fn limit(&self) -> u64 {
        u64::try_from(self.chunks.len() * CHUNK * BLOCK_SIZE).unwrap_or(u64::MAX)
            * u64::from(EXTENT_SLOTS)
    }

    /// Heap bytes, blocks on their way not counted.
    pub(crate) fn bytes(&self) -> usize {
        let used = self.chunks.iter().filter(|c| c.get().is_some()).count();
        let slots = CHUNK * usize::try_from(EXTENT_SLOTS).unwrap_or(0);
        used * (slots * 12 + CHUNK * size_of::<Extent>()) + size_of_val(&*self.chunks)
    }

    /// Nothing is put any more, and nothing found.
    pub(crate) fn closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Closes the store; `false` when it was already. Its blocks must then be swept out of the index.
    pub(crate) fn close(&self, why: Option<String>) -> bool {
        let first = !self.closed.swap(true, Ordering::SeqCst);
        if first {
            *self.failure.lock() = why;
            self.write_buffer.stop();
        }
        first
    }

    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    pub(crate) fn errors(&self) -> u64 {
        self.errors.load(Ordering::Relaxed)
    }

    /// The device failed; `true` when that was once too often.
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

    fn chunk(&self, extent: u32) -> (&Chunk, usize) {
        let extent = usize::try_from(extent).unwrap_or(usize::MAX);
        let slots = CHUNK * usize::try_from(EXTENT_SLOTS).unwrap_or(0);
        let chunk = self.chunks[extent / CHUNK].get_or_init(|| Chunk {
            keys: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            sums: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            extents: (0..CHUNK).map(|_| Extent::default()).collect(),
        });
        (chunk, extent % CHUNK)
    }

    fn extent(&self, extent: u32) -> &Extent {
        let (chunk, i) = self.chunk(extent);
        &chunk.extents[i]
    }

    fn slot(&self, slot: u32) -> (&Chunk, usize) {
        let (chunk, i) = self.chunk(slot / EXTENT_SLOTS);
        let extent_slots = usize::try_from(EXTENT_SLOTS).unwrap_or(0);
        let within = usize::try_from(slot % EXTENT_SLOTS).unwrap_or(0);
        (chunk, i * extent_slots + within)
    }

    pub(crate) fn key(&self, slot: u32) -> Key {
        let (chunk, i) = self.slot(slot);
        Key::from_raw(chunk.keys[i].load(Ordering::Relaxed))
    }

    /// The pool that a slot's extent belongs to.
    pub(crate) fn pool_of(&self, slot: u32) -> u32 {
        self.extent(slot / EXTENT_SLOTS).pool.load(Ordering::SeqCst)
    }

    /// What stands for a block's content and name: the low half of a keyed hash.
    pub(crate) fn sum(&self, key: Key, content: &Block) -> u32 {
        let sum = xxhash_rust::xxh3::xxh3_64_with_seed(content, key.hash(self.seed));
        u32::try_from(sum & u64::from(u32::MAX)).unwrap_or(0)
    }

    /// Copies a part of a block that is not on the device yet. Call under the lock of its shard.
    pub(crate) fn read_buffered(&self, slot: u32, at: usize, piece: &mut [u8]) -> bool {
        let Some(segment) = self.write_buffer.find(slot) else {
            return false;
        };
        let bytes = segment.bytes.read();
        let block = bytes.block(slot - segment.first);
        piece.copy_from_slice(&block[at..at + piece.len()]);
        true
    }

    /// What a read from the device needs. Call under the lock of the shard.
    pub(crate) fn read_ref(&self, slot: u32) -> SsdReadRef {
        let (chunk, i) = self.slot(slot);
        let extent = self.extent(slot / EXTENT_SLOTS);
        SsdReadRef {
            slot,
            sum: chunk.sums[i].load(Ordering::Relaxed),
            epoch: extent.epoch.load(Ordering::SeqCst),
        }
    }

    /// Is the slot still what it was? Call under the lock of the shard, when the index names it.
    pub(crate) fn is_current(&self, read_ref: SsdReadRef) -> bool {
        let extent = self.extent(read_ref.slot / EXTENT_SLOTS);
        extent.epoch.load(Ordering::SeqCst) == read_ref.epoch
    }

    /// Reads blocks from the device, together, and checks their sums.
    pub(crate) fn read(
        &self,
        read_ref: &[(Key, SsdReadRef)],
        pages: &mut [Page],
    ) -> Vec<io::Result<()>> {
        let mut requests: Vec<_> = read_ref
            .iter()
            .map(|(_, w)| u64::from(w.slot) * BLOCK_BYTES)
            .zip(pages.iter_mut())
            .collect();
        let mut results = self.device.read(&mut requests);
        for ((result, (key, read_ref)), page) in results.iter_mut().zip(read_ref).zip(pages.iter())
        {
            if result.is_ok() && self.sum(*key, &page.0) != read_ref.sum {
                *result = Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!(
                        "block {} of the SSD store is not what was put",
                        read_ref.slot
                    ),
                ));
            }
        }
        if results.iter().all(Result::is_ok) {
            self.worked();
        }
        results
    }

    /// The next full segments, for a writer thread; none when the store has closed.
    pub(crate) fn next_full(&self) -> Vec<Arc<Segment>> {
        self.write_buffer.next(WRITE_BATCH)
    }

    /// The next full segment, if one waits.
    pub(crate) fn waiting_full(&self) -> Option<Arc<Segment>> {
        self.write_buffer.waiting()
    }

    /// Puts segments on the device, together; one result for each. Their blocks are found in memory until
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
        let results = self.device.write(&requests);
        if results.iter().all(Result::is_ok) {
            self.worked();
        }
        results
    }

    /// A segment has arrived, or is given up and out of the index. `true` when its extent may be free now.
    pub(crate) fn written(&self, segment: &Segment) -> bool {
        self.write_buffer.forget(segment.first);
        let extent = self.extent(segment.first / EXTENT_SLOTS);
        extent.pending.fetch_sub(1, Ordering::SeqCst) == 1
    }

    /// Slots of a segment.
    pub(crate) fn slots(segment: &Segment) -> std::ops::Range<u32> {
        segment.first..segment.first + write_buffer::SEGMENT_SLOTS
    }

    /// Is nothing on its way to the device?
    #[cfg(test)]
    pub(crate) fn settled(&self) -> bool {
        (0..self.free.lock().fresh).all(|e| self.extent(e).pending.load(Ordering::SeqCst) == 0)
    }

    /// Blocks of an extent.
    #[cfg(test)]
    pub(crate) fn live(&self, extent: u32) -> u32 {
        self.extent(extent).live.load(Ordering::SeqCst).count_ones()
    }

    #[cfg(test)]
    pub(crate) fn free_extents(&self) -> u32 {
        let free = self.free.lock();
        free.stack.len() + self.capacity.load(Ordering::SeqCst) - free.fresh
    }

    /// Is an extent free?
    pub(crate) fn has_free(&self) -> bool {
        let free = self.free.lock();
        free.stack.len() > 0 || free.fresh < self.capacity.load(Ordering::SeqCst)
    }

    fn take_extent(&self) -> Option<u32> {
        let mut free = self.free.lock();
        if let Some(extent) = free.stack.pop(self) {
            return Some(extent);
        }
        let next = free.fresh;
        (next < self.capacity.load(Ordering::SeqCst)).then(|| {
            free.fresh += 1;
            next
        })
    }

    fn return_extent(&self, extent: u32) {
        let mut free = self.free.lock();
        if extent < self.capacity.load(Ordering::SeqCst) {
            free.stack.push(self, extent);
        }
    }

    /// Changes the capacity. Extents beyond it are handed out no more; returns those that were in use.
    pub(crate) fn set_capacity(&self, bytes: u64) -> io::Result<std::ops::Range<u32>> {
        let new = extents(bytes);
        self.device.grow(bytes)?;
        let mut free = self.free.lock();
        let old = self.capacity.swap(new, Ordering::SeqCst);
        let used = free.fresh;
        if new >= old {
            return Ok(0..0);
        }
        let mut all = std::mem::take(&mut free.stack);
        while let Some(extent) = all.pop(self) {
            if extent < new {
                free.stack.push(self, extent);
            }
        }
        free.fresh = used.min(new);
        Ok(new..used.max(new))
    }

    /// The owner of an extent that is in use.
    pub(crate) fn pool_in_use(&self, extent: u32) -> Option<u32> {
        let e = self.extent(extent);
        (e.state.load(Ordering::SeqCst) != FREE).then(|| e.pool.load(Ordering::SeqCst))
    }

    /// Tells the device that an extent's content is not needed. A hint: what it says does not matter.
    fn discard(&self, extent: u32) {
        let len = u64::from(EXTENT_SLOTS) * BLOCK_BYTES;
        if let Err(error) = self.device.discard(u64::from(extent) * len, len) {
            tracing::debug!(%error, extent, "the SSD store's device takes no discards");
        }
    }
}

/// Extents that any SSD store can have: its slots fit a place of the index.
const LIMIT: u32 = crate::index::MAX_SLOTS / EXTENT_SLOTS;

/// Whole extents in this many bytes.
fn extents(bytes: u64) -> u32 {
    let extents = bytes / (u64::from(EXTENT_SLOTS) * BLOCK_BYTES);
    u32::try_from(extents).map_or(LIMIT, |e| e.min(LIMIT))
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
