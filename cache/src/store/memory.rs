//! The memory store: slots, their pools, and free slots.
//!
//! A pool takes slots in small batches and keeps freed ones for its next puts, so that neither touches shared state. Pools own
//! slots, not larger extents: blocks of different pools may be neighbours in a huge page. So a pool of any entitlement gets
//! exactly that, and no compaction moves slots between pools. Only a shrinking store moves blocks.

use super::arena::{Arena, HUGE_SLOTS};
use super::list::{FreeList, Links};
use crate::block::Key;
use crate::lock_rank::{FRESH, LEAF, Ranked};
use std::fs::File;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Slots whose records are allocated together (16 MiB of blocks).
const CHUNK: usize = 4096;

/// The unit of requests for huge pages, slots (16 MiB).
const GROUP: u32 = 4096;

/// The number of stacks of free slots. A pool starts at its own, and tries the others when that is empty.
const STACKS: usize = 16;

/// 20 bytes a slot. The slot's owner sets the key; it is read under the lock of the shard that names the slot. The rest belongs
/// to the holder of the slot's list.
struct Chunk {
    keys: Box<[AtomicU64]>,
    links: Box<[[AtomicU32; 3]]>,
}

const NEWER: usize = 0;
const OLDER: usize = 1;
const META: usize = 2;

/// A slot's record: its pool's index (19 bits), whether its block was used again (1 bit), its list of the two (1 bit), and its
/// time of arrival by the pool's clock (11 bits).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotMeta {
    pub(crate) pool: u32,
    pub(crate) list: usize,
    pub(crate) time: u32,
    /// The block was used after it was put, apart from uses that the index counts; or the ghost list recalled it.
    pub(crate) reused: bool,
}

const SECOND_LIST: u32 = 1 << 31;
const TIME: u32 = 20;
const REUSED: u32 = 1 << 19;
const POOL: u32 = REUSED - 1;

/// The memory store.
pub(crate) struct MemoryStore {
    pub(crate) arena: Arena,
    chunks: Box<[OnceLock<Chunk>]>,
    free: Box<[Stack]>,
    /// Slots from here up to the capacity were never used.
    fresh: Ranked<u32, FRESH>,
    capacity: AtomicU32,
}

#[repr(align(128))]
#[derive(Default)]
struct Stack(Ranked<FreeList, LEAF>);

impl MemoryStore {
    /// A store of `capacity` slots that can grow to `limit`. It uses `memory`, the memory of an earlier store, if given.
    pub(crate) fn new(capacity: u32, limit: u32, memory: Option<File>) -> io::Result<Self> {
        let limit = limit.max(capacity);
        let arena = match memory {
            Some(file) => Arena::adopt(file, limit)?,
            None => Arena::reserve(limit)?,
        };
        let chunks = usize::try_from(arena.slots()).unwrap_or(0).div_ceil(CHUNK);
        Ok(Self {
            arena,
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            free: (0..STACKS).map(|_| Stack::default()).collect(),
            fresh: Ranked::default(),
            capacity: AtomicU32::new(capacity),
        })
    }

    /// Usable slots.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Slots that the store can grow to.
    pub(crate) fn limit(&self) -> u32 {
        self.arena.slots()
    }

    /// Changes the capacity. Slots beyond it are no longer handed out; the caller moves the blocks out of used ones.
    pub(crate) fn set_capacity(&self, slots: u32) {
        let mut fresh = self.fresh.lock();
        let old = self.capacity.swap(slots, Ordering::Relaxed);
        if slots < old {
            // Free slots beyond the end leave the stacks; growing brings them back as fresh ones.
            for stack in &self.free {
                let mut stack = stack.0.lock();
                let mut all = std::mem::take(&mut *stack);
                while let Some(slot) = all.pop(self) {
                    if slot < slots {
                        stack.push(self, slot);
                    }
                }
            }
            *fresh = (*fresh).min(slots);
        }
    }

    /// Takes up to `count` free slots, first from the stack of `near`. Empty when none is free.
    pub(crate) fn take(&self, near: u32, count: u32) -> FreeList {
        let start = usize::try_from(near).unwrap_or(0);
        for i in 0..STACKS {
            let mut stack = self.free[(start + i) % STACKS].0.lock();
            if stack.len() > 0 {
                return stack.split(self, count);
            }
        }
        let mut free = FreeList::default();
        let mut fresh = self.fresh.lock();
        let first = *fresh;
        let end = first.saturating_add(count).min(self.capacity());
        while *fresh < end {
            free.push(self, *fresh);
            *fresh += 1;
        }
        drop(fresh);
        // Only groups with all slots handed out: most of their memory is in use.
        let group = |slot: u32| slot / GROUP * GROUP;
        if first < end && group(first) < group(end) {
            self.arena.used(group(first)..group(end));
        } else if first < end && end == self.capacity() {
            self.arena.used(group(first)..end);
        }
        free
    }

    /// Returns free slots; those beyond the capacity are not used again until the store grows.
    pub(crate) fn return_slots(&self, near: u32, mut free: FreeList) {
        let start = usize::try_from(near).unwrap_or(0) % STACKS;
        let mut stack = self.free[start].0.lock();
        // Read under the stack's lock: a shrink sets it before it looks through the stacks.
        let capacity = self.capacity();
        while let Some(slot) = free.pop(self) {
            if slot < capacity {
                stack.push(self, slot);
            }
        }
    }

    /// Sets the used slots of a new store.
    pub(crate) fn restored(&self, taken: &[bool]) {
        let end = taken
            .iter()
            .rposition(|taken| *taken)
            .map_or(0, |last| last + 1);
        *self.fresh.lock() = u32::try_from(end).unwrap_or(0);
        let free = (0..).zip(&taken[..end]).filter(|(_, taken)| !**taken);
        for (n, (slot, _)) in free.enumerate() {
            self.free[n % STACKS].0.lock().push(self, slot);
        }
    }

    /// Free slots and slots never used.
    pub(crate) fn available(&self) -> u32 {
        let stacked: u32 = self.free.iter().map(|s| s.0.lock().len()).sum();
        stacked + self.capacity().saturating_sub(*self.fresh.lock())
    }

    /// The huge pages from the first without a usable slot to the end.
    pub(crate) fn huge_pages_beyond(&self) -> std::ops::Range<u32> {
        self.capacity().div_ceil(HUGE_SLOTS)..self.limit() / HUGE_SLOTS
    }

    /// Heap bytes.
    pub(crate) fn bytes(&self) -> usize {
        let used = self.chunks.iter().filter(|c| c.get().is_some()).count();
        used * CHUNK * (size_of::<AtomicU64>() + size_of::<[AtomicU32; 3]>())
            + size_of_val(&*self.chunks)
            + size_of_val(&*self.free)
    }

    fn chunk(&self, slot: u32) -> (&Chunk, usize) {
        let slot = usize::try_from(slot).unwrap_or(usize::MAX);
        let chunk = self.chunks[slot / CHUNK].get_or_init(|| Chunk {
            keys: (0..CHUNK).map(|_| AtomicU64::new(0)).collect(),
            links: (0..CHUNK).map(|_| Default::default()).collect(),
        });
        (chunk, slot % CHUNK)
    }

    fn link(&self, slot: u32, which: usize) -> &AtomicU32 {
        let (chunk, i) = self.chunk(slot);
        &chunk.links[i][which]
    }

    pub(crate) fn key(&self, slot: u32) -> Key {
        let (chunk, i) = self.chunk(slot);
        Key::from_raw(chunk.keys[i].load(Ordering::Relaxed))
    }

    pub(crate) fn set_key(&self, slot: u32, key: Key) {
        let (chunk, i) = self.chunk(slot);
        chunk.keys[i].store(key.raw(), Ordering::Relaxed);
    }

    pub(crate) fn meta(&self, slot: u32) -> SlotMeta {
        let raw = self.link(slot, META).load(Ordering::Relaxed);
        SlotMeta {
            pool: raw & POOL,
            list: usize::from(raw & SECOND_LIST != 0),
            time: (raw & !SECOND_LIST) >> TIME,
            reused: raw & REUSED != 0,
        }
    }

    pub(crate) fn set_meta(&self, slot: u32, meta: SlotMeta) {
        let list = if meta.list == 0 { 0 } else { SECOND_LIST };
        let reused = if meta.reused { REUSED } else { 0 };
        let raw = meta.pool | reused | meta.time << TIME | list;
        self.link(slot, META).store(raw, Ordering::Relaxed);
    }
}

impl Links for MemoryStore {
    fn newer(&self, at: u32) -> u32 {
        self.link(at, NEWER).load(Ordering::Relaxed)
    }
    fn older(&self, at: u32) -> u32 {
        self.link(at, OLDER).load(Ordering::Relaxed)
    }
    fn set_newer(&self, at: u32, to: u32) {
        self.link(at, NEWER).store(to, Ordering::Relaxed);
    }
    fn set_older(&self, at: u32, to: u32) {
        self.link(at, OLDER).store(to, Ordering::Relaxed);
    }
}
