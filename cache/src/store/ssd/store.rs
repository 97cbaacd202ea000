//! The store: its device, its extents, whether it works.

use super::device::Device;
use super::extent::{CHUNK, Chunk, EXTENT_SLOTS, Extent, LIMIT, extents};
use super::stall::Stall;
use super::write_buffer::WriteBuffer;
use crate::block::{BLOCK_SIZE, Key};
use crate::store::list::{FreeList, Links};
use crate::worth::Mean;
use parking_lot::Mutex;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// Consecutive errors of the device after which the store is closed.
const MAX_ERRORS: u32 = 8;

/// The SSD store.
pub(crate) struct SsdStore {
    pub(super) device: Box<dyn Device>,
    pub(super) chunks: Box<[OnceLock<Chunk>]>,
    pub(super) free: Mutex<Free>,
    /// Extents that nobody has, and that are free once the device was told.
    pub(super) retired: Mutex<Vec<u32>>,
    /// Extents that may be used.
    pub(super) capacity: AtomicU32,
    /// What lies beyond a new end is not dropped yet.
    shrinks: AtomicBool,
    pub(super) write_buffer: WriteBuffer,
    pub(super) stall: Stall,
    /// Threads that write.
    writers: AtomicUsize,
    pub(super) seed: u64,
    pub(super) closed: AtomicBool,
    pub(super) failure: Mutex<Option<String>>,
    pub(super) errors: AtomicU64,
    pub(super) errors_in_a_row: AtomicU32,
    /// By block.
    pub(super) writes: Mutex<Mean>,
    /// Dropped last: after the device has given its file up.
    device_in_use: Arc<()>,
}

#[derive(Default)]
pub(super) struct Free {
    pub(super) stack: FreeList,
    /// From here on extents have never been used.
    pub(super) fresh: u32,
    /// Those beyond the capacity, for when the store grows again.
    pub(super) beyond: Vec<u32>,
}

/// How many times larger a store can become without being opened anew. All that costs is a place for each chunk that may
/// come, at most 128 bytes for 16 MiB of blocks.
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
            free: Mutex::default(),
            retired: Mutex::default(),
            capacity: AtomicU32::new(capacity),
            shrinks: AtomicBool::new(false),
            write_buffer: WriteBuffer::default(),
            stall: Stall::default(),
            writers: AtomicUsize::new(0),
            seed,
            closed: AtomicBool::new(false),
            failure: Mutex::new(None),
            errors: AtomicU64::new(0),
            errors_in_a_row: AtomicU32::new(0),
            writes: Mutex::default(),
            device_in_use: Arc::default(),
        }
    }

    /// Counts no owner once the device has given its file up.
    pub(crate) fn device_in_use(&self) -> Weak<()> {
        Arc::downgrade(&self.device_in_use)
    }

    /// Threads that write: without any, others do.
    pub(crate) fn set_writers(&self, writers: usize) {
        self.writers.store(writers, Ordering::Relaxed);
    }

    pub(crate) fn has_writers(&self) -> bool {
        self.writers.load(Ordering::Relaxed) > 0
    }

    /// Does something lie beyond a new end? Eviction frees little that may be used then, and much is evicted anyway.
    pub(crate) fn shrinks(&self) -> bool {
        self.shrinks.load(Ordering::SeqCst)
    }

    pub(crate) fn set_shrinks(&self, shrinks: bool) {
        self.shrinks.store(shrinks, Ordering::SeqCst);
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
        used * (slots * 14 + CHUNK * size_of::<Extent>()) + size_of_val(&*self.chunks)
    }

    /// A closed store takes no puts and answers no gets.
    pub(crate) fn closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Closes the store; `false` when it was already. Its blocks must then be swept out of the index.
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

    /// What a block that is written takes of the device, nanoseconds; 0 while that is not known.
    pub(crate) fn write_ns(&self) -> u64 {
        self.writes.lock().get().unwrap_or(0)
    }

    /// Counts an error of the device; `true` when the store must be closed.
    pub(crate) fn failed(&self, error: &io::Error) -> bool {
        self.errors.fetch_add(1, Ordering::Relaxed);
        let row = self.errors_in_a_row.fetch_add(1, Ordering::Relaxed) + 1;
        row >= MAX_ERRORS || error.kind() == io::ErrorKind::StorageFull
    }

    pub(super) fn worked(&self) {
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

    /// When the block of a slot was used last, as [`set_stamp`](Self::set_stamp) was told.
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
