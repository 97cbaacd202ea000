//! The region of requests in flight, which the next server reads: `QueueRegionSplit` of QEMU's `docs/interop/vhost-user.rst`,
//! "Inflight I/O tracking".
//!
//! The front end keeps the region while no server runs. It could write anything into it, so every value is checked.

use super::limits::{MAX_QUEUE_SIZE, MAX_QUEUES};
use super::memory::Mapping;
use super::memory::{MemoryError, map, sealed, short};
use crate::frontend::Budget;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vm_memory::{AtomicAccess, Bytes};

/// Bytes of the header of a queue's part, and of each of its entries.
const HEADER: usize = 16;
const ENTRY: usize = 16;
/// Offsets of the header's fields.
const VERSION: usize = 8;
const ENTRIES: usize = 10;
const LAST_BATCH: usize = 12;
const USED: usize = 14;
/// Offsets of an entry's fields.
const IN_FLIGHT: usize = 0;
const NEXT: usize = 6;
const COUNTER: usize = 8;
/// The version of this layout.
const LAYOUT: u16 = 1;
/// The alignment of queues' parts.
const ALIGN: usize = 64;
/// Our trailer behind the queues' parts: a mark, and the guest's choice of the write cache.
const TRAILER: usize = 64;
const MARK: u64 = u64::from_le_bytes(*b"justitia");

/// The region of a disk.
pub(super) struct InflightRegion {
    mapping: Arc<Mapping>,
    queues: u16,
    queue_size: u16,
    /// The trailer's offset, if the region is large enough.
    trailer: Option<usize>,
}

/// Bytes of a queue's part.
fn part(queue_size: u16) -> usize {
    (HEADER + ENTRY * usize::from(queue_size)).next_multiple_of(ALIGN)
}

/// Does the device support this number and size of queues?
fn fits(queues: u16, queue_size: u16) -> bool {
    (1..=MAX_QUEUES).contains(&queues)
        && (1..=MAX_QUEUE_SIZE).contains(&queue_size)
        && queue_size.is_power_of_two()
}

/// Bytes of a region.
fn size(queues: u16, queue_size: u16) -> usize {
    part(queue_size) * usize::from(queues) + TRAILER
}

impl InflightRegion {
    /// Makes a new file for `queues` queues. Returns it with its size.
    ///
    /// # Errors
    /// When the device has no such queues, or the system refuses.
    pub(super) fn create(queues: u16, queue_size: u16) -> io::Result<(File, u64)> {
        if !fits(queues, queue_size) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let bytes = u64::try_from(size(queues, queue_size)).map_err(io::Error::other)?;
        Ok((sealed("justitia-inflight", bytes)?, bytes))
    }

    /// Uses a region that the front end has kept, or that another back end has made.
    ///
    /// # Errors
    /// When it is too small, or cannot be mapped.
    pub(super) fn open(
        file: File,
        offset: u64,
        bytes: u64,
        queues: u16,
        queue_size: u16,
        budget: &Arc<Budget>,
    ) -> Result<Self, MemoryError> {
        if !fits(queues, queue_size) {
            return Err(io::Error::from(io::ErrorKind::InvalidInput).into());
        }
        let parts = part(queue_size) * usize::from(queues);
        let found = usize::try_from(bytes).map_err(io::Error::other)?;
        if found < parts {
            return Err(short(u64::try_from(parts).unwrap_or(u64::MAX), bytes));
        }
        let bytes = bytes.min(u64::try_from(parts + TRAILER).unwrap_or(u64::MAX));
        Ok(Self {
            mapping: Arc::new(map(&file, offset, bytes, budget)?),
            queues,
            queue_size,
            trailer: (found >= parts + TRAILER).then_some(parts),
        })
    }

    /// The part of a queue, if it exists and is large enough for rings of this size.
    pub(super) fn queue(&self, index: u16, size: u16) -> Option<InflightQueue> {
        (index < self.queues && size <= self.queue_size).then(|| InflightQueue {
            mapping: Arc::clone(&self.mapping),
            start: part(self.queue_size) * usize::from(index),
            size,
            counter: 0,
        })
    }

    /// The guest's choice of the write cache: `true` for write-back. `None` in a new region.
    pub(super) fn write_back(&self) -> Option<bool> {
        let at = self.trailer?;
        let marked = load::<u64>(&self.mapping, at) == MARK;
        marked.then(|| load::<u64>(&self.mapping, at + 8) != 0)
    }

    /// Stores the guest's choice of the write cache.
    pub(super) fn set_write_back(&self, yes: bool) {
        if let Some(at) = self.trailer {
            store(&self.mapping, at + 8, u64::from(yes));
            store(&self.mapping, at, MARK);
        }
    }
}

/// The part of one queue.
pub(super) struct InflightQueue {
    mapping: Arc<Mapping>,
    start: usize,
    size: u16,
    /// The next request's place in the order.
    counter: u64,
}

/// The requests that a server has left unanswered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unanswered {
    /// Heads of the requests, in the order in which they were taken.
    pub(super) heads: Vec<u16>,
    /// The next index of the available ring.
    pub(super) next_available: u16,
}

impl InflightQueue {
    /// Finds the requests that the last server of the queue left unanswered. The guest's used ring is at `used`. `None` in a
    /// new region.
    pub(super) fn recover(&mut self, used: u16) -> Option<Unanswered> {
        let old = self.get::<u16>(VERSION);
        if old == 0 {
            self.put(ENTRIES, self.size);
            self.put(USED, used);
            self.put(VERSION, LAYOUT);
            return None;
        }
        // The last answers may still be marked in flight.
        let batch = used.wrapping_sub(self.get(USED)).min(self.size);
        let mut head: u16 = self.get(LAST_BATCH);
        for _ in 0..batch {
            if head >= self.size {
                break;
            }
            self.put(entry(head) + IN_FLIGHT, 0u8);
            head = self.get(entry(head) + NEXT);
        }
        self.put(USED, used);
        let mut found: Vec<(u64, u16)> = (0..self.size)
            .filter(|head| self.get::<u8>(entry(*head) + IN_FLIGHT) == 1)
            .map(|head| (self.get(entry(head) + COUNTER), head))
            .collect();
        found.sort_unstable();
        self.counter = found
            .last()
            .map_or(0, |(counter, _)| counter.wrapping_add(1));
        let heads: Vec<u16> = found.into_iter().map(|(_, head)| head).collect();
        let count = u16::try_from(heads.len()).unwrap_or(u16::MAX);
        Some(Unanswered {
            heads,
            next_available: used.wrapping_add(count),
        })
    }

    /// Marks a request as taken. A request of the last server keeps its place in the order.
    pub(super) fn taken(&mut self, head: u16) {
        if head < self.size && self.get::<u8>(entry(head) + IN_FLIGHT) != 1 {
            self.put(entry(head) + COUNTER, self.counter);
            self.counter = self.counter.wrapping_add(1);
            self.put(entry(head) + IN_FLIGHT, 1u8);
        }
    }

    /// Notes that a request is about to be answered.
    pub(super) fn answering(&mut self, head: u16) {
        if head < self.size {
            let last = self.get::<u16>(LAST_BATCH);
            self.put(entry(head) + NEXT, last);
            self.put(LAST_BATCH, head);
        }
    }

    /// Notes that a request was answered, and that the guest's used ring is now at `used`.
    pub(super) fn answered(&mut self, head: u16, used: u16) {
        if head < self.size {
            self.put(entry(head) + IN_FLIGHT, 0u8);
            self.put(USED, used);
        }
    }

    /// Has the front end truncated it?
    pub(super) fn is_lost(&self) -> bool {
        self.mapping.is_lost()
    }

    fn get<T: AtomicAccess + Default>(&self, at: usize) -> T {
        load(&self.mapping, self.start + at)
    }

    fn put<T: AtomicAccess>(&self, at: usize, value: T) {
        store(&self.mapping, self.start + at, value);
    }
}

/// Recovers from a region with these bytes. Checks that its heads are in the ring, each once.
///
/// # Panics
/// When they are not.
pub fn recover_from(bytes: &[u8], used: u16) {
    const SIZE: u16 = 16;
    let Ok((file, length)) = InflightRegion::create(1, SIZE) else {
        return;
    };
    let filled = bytes.get(..size(1, SIZE)).unwrap_or(bytes);
    if std::os::unix::fs::FileExt::write_all_at(&file, filled, 0).is_err() {
        return;
    }
    let budget = Budget::of_vm().for_front_end();
    let region = InflightRegion::open(file, 0, length, 1, SIZE, &budget);
    let Some(mut queue) = region.ok().and_then(|r| r.queue(0, SIZE)) else {
        return;
    };
    if let Some(mut found) = queue.recover(used) {
        let count = found.heads.len();
        found.heads.sort_unstable();
        found.heads.dedup();
        assert!(found.heads.len() == count && found.heads.iter().all(|head| *head < SIZE));
    }
    assert!(queue.recover(used).is_some(), "it is not new any more");
}

/// An entry's offset in its queue's part.
fn entry(head: u16) -> usize {
    HEADER + ENTRY * usize::from(head)
}

/// Offsets are inside and aligned, so neither fails.
fn load<T: AtomicAccess + Default>(mapping: &Mapping, at: usize) -> T {
    mapping
        .slice()
        .load(at, Ordering::SeqCst)
        .unwrap_or_default()
}

fn store<T: AtomicAccess>(mapping: &Mapping, at: usize, value: T) {
    if let Err(e) = mapping.slice().store(value, at, Ordering::Release) {
        tracing::error!("cannot note a request in flight: {e}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(
        file: &File,
        bytes: u64,
        queues: u16,
        size: u16,
    ) -> Result<InflightRegion, MemoryError> {
        let budget = Budget::of_vm().for_front_end();
        InflightRegion::open(file.try_clone().unwrap(), 0, bytes, queues, size, &budget)
    }

    fn queue(file: &File, bytes: u64) -> InflightQueue {
        let region = open(file, bytes, 2, 8).unwrap();
        region.queue(1, 8).unwrap()
    }

    #[test]
    fn what_was_taken_and_not_answered_is_found_in_order() {
        let (file, bytes) = InflightRegion::create(2, 8).unwrap();
        let mut first = queue(&file, bytes);
        assert_eq!(first.recover(65534), None, "a new region");
        for head in [5, 2, 7, 0] {
            first.taken(head);
        }
        first.answering(2);
        first.answered(2, 65535);
        let mut second = queue(&file, bytes);
        let found = second.recover(65535).unwrap();
        assert_eq!(found.heads, [5, 7, 0]);
        assert_eq!(found.next_available, 2);
        // The order goes on where it was, also when the second server has taken a part of it and ends.
        second.taken(5);
        second.taken(1);
        assert_eq!(
            queue(&file, bytes).recover(65535).unwrap().heads,
            [5, 7, 0, 1]
        );
    }

    #[test]
    fn a_crash_at_any_step_neither_loses_nor_repeats() {
        // Steps of an answer: noted, in the ring, cleared, counted.
        for step in 0..=4 {
            let (file, bytes) = InflightRegion::create(2, 8).unwrap();
            let mut q = queue(&file, bytes);
            q.recover(0);
            q.taken(3);
            q.taken(4);
            q.answering(4);
            q.answered(4, 1);
            q.taken(6);
            let mut used = 1;
            if step >= 1 {
                q.answering(3);
            }
            if step >= 2 {
                used = 2;
            }
            if step >= 3 {
                q.put(entry(3) + IN_FLIGHT, 0u8);
            }
            if step >= 4 {
                q.put(USED, 2u16);
            }
            let found = queue(&file, bytes).recover(used).unwrap();
            let expected: &[u16] = if step >= 2 { &[6] } else { &[3, 6] };
            assert_eq!(found.heads, expected, "after step {step}");
            assert_eq!(found.next_available, 3);
        }
    }

    #[test]
    fn the_layout_is_the_specifications() {
        let (file, bytes) = InflightRegion::create(2, 8).unwrap();
        let mut q = queue(&file, bytes);
        q.recover(9);
        q.taken(3);
        q.taken(4);
        q.answering(3);
        let mut raw = vec![0; usize::try_from(bytes).unwrap()];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut raw, 0).unwrap();
        // The second queue: 16 bytes, and 16 for each of 8 entries, rounded to 64.
        let part = &raw[192..];
        assert_eq!(part[..16], [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 8, 0, 3, 0, 9, 0]);
        let third = &part[16 + 3 * 16..][..32];
        assert_eq!(
            third[..16],
            [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(
            third[16..],
            [1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]
        );
    }

    #[test]
    fn nonsense_in_a_region_leads_nowhere() {
        let (file, bytes) = InflightRegion::create(2, 8).unwrap();
        let garbage = vec![0xff; usize::try_from(bytes).unwrap()];
        std::os::unix::fs::FileExt::write_all_at(&file, &garbage, 0).unwrap();
        let mut q = queue(&file, bytes);
        let found = q.recover(7).unwrap();
        assert_eq!(found.heads, [0; 0]);
        q.taken(u16::MAX);
        q.answered(u16::MAX, 8);
        for (queues, size) in [(0, 8), (1, 0), (1, 3), (65, 8), (1, 2048)] {
            assert!(InflightRegion::create(queues, size).is_err());
            assert!(open(&file, bytes, queues, size).is_err());
        }
        assert!(open(&file, bytes + 4096, 2, 1024).is_err());
    }

    #[test]
    fn the_choice_of_the_write_cache_is_kept() {
        let (file, bytes) = InflightRegion::create(2, 8).unwrap();
        let open = || open(&file, bytes, 2, 8).unwrap();
        assert_eq!(open().write_back(), None);
        open().set_write_back(false);
        assert_eq!(open().write_back(), Some(false));
        open().set_write_back(true);
        assert_eq!(open().write_back(), Some(true));
    }
}
