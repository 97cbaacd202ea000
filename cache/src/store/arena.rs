//! The memory that blocks lie in: address space reserved once, backed by memory as it is used, in huge pages
//! where the kernel has them, and returned to the kernel in the same pieces.
//!
//! It is a memfd, so that it can be handed to the next daemon. Kernels give memfds small pages unless asked for huge ones
//! (`MADV_COLLAPSE`, Linux 6.1), with which a hit takes as long as in anonymous memory; with small ones it takes a quarter
//! longer. Where a memfd cannot have them the memory is anonymous, and ends with the daemon.

use super::mapping::{self, HUGE, Mapping};
use crate::block::{BLOCK_SIZE, Block};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::mm::{Advice, madvise};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, OnceLock, mpsc};

/// Slots in a huge page.
pub(crate) const HUGE_SLOTS: u32 = 512;

/// A reserved range of [`Block`]s. Blocks that were never written read as zeroes and take no memory.
pub(crate) struct Arena {
    map: Arc<Mapping>,
    /// The first block, at a multiple of [`HUGE`].
    first: NonNull<u8>,
    slots: u32,
    /// To the thread that asks for huge pages; `None` where it could not be started.
    collapser: OnceLock<Option<mpsc::Sender<Range<usize>>>>,
}

// SAFETY: the mapping belongs to the arena alone and is not tied to a thread; when a slot may be accessed is the contract of
// the methods that access one.
unsafe impl Send for Arena {}
// SAFETY: as above: the methods that touch slots are unsafe and say when they may be called at the same time.
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves address space for this many slots, rounded up to whole huge pages.
    pub(crate) fn reserve(slots: u32) -> io::Result<Self> {
        let (slots, bytes) = rounded(slots)?;
        let file = match mapping::has_huge_memfds() {
            true => Some(mapping::memfd(bytes)?),
            false => None,
        };
        Ok(Self::of(Mapping::new(file, bytes)?, slots))
    }

    /// The memory of an earlier arena, with what is in it; `file` was [checked](mapping::check_arena). What of it lies behind
    /// this many slots is given up.
    pub(crate) fn adopt(file: File, slots: u32) -> io::Result<Self> {
        let (slots, bytes) = rounded(slots)?;
        let len = u64::try_from(bytes).map_err(io::Error::other)?;
        let found = file.metadata()?.len();
        if found < len {
            file.set_len(len)?;
        } else if found > len {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            fallocate(&file, hole, len, found - len)?;
        }
        Ok(Self::of(Mapping::new(Some(file), bytes)?, slots))
    }

    fn of(map: Mapping, slots: u32) -> Self {
        Self {
            first: map.first(),
            map: Arc::new(map),
            slots,
            collapser: OnceLock::new(),
        }
    }

    /// The memfd, if it is one.
    pub(crate) fn file(&self) -> Option<&File> {
        self.map.file()
    }

    /// Slots that are in use now; from `slots.start` on they were not before. Memory that is a memfd gets huge pages for them,
    /// by a thread of its own: that takes milliseconds.
    pub(crate) fn used(&self, slots: Range<u32>) {
        if self.file().is_none() {
            return;
        }
        let huge = |slot: u32| usize::try_from(slot / HUGE_SLOTS).unwrap_or(0);
        let range = huge(slots.start)..huge(slots.end.next_multiple_of(HUGE_SLOTS));
        let collapser = self.collapser.get_or_init(|| {
            let (send, receive) = mpsc::channel::<Range<usize>>();
            let map = Arc::clone(&self.map);
            std::thread::Builder::new()
                .name("arena-huge".into())
                .spawn(move || {
                    for range in receive {
                        // Small pages serve as well.
                        let _ = map.collapse(range);
                    }
                })
                .ok()
                .map(|_| send)
        });
        if let Some(collapser) = collapser {
            let _ = collapser.send(range);
        }
    }

    pub(crate) const fn slots(&self) -> u32 {
        self.slots
    }

    fn at(&self, slot: u32) -> *mut u8 {
        assert!(slot < self.slots, "a slot of the arena");
        let offset = usize::try_from(slot).unwrap_or(0) * BLOCK_SIZE;
        // SAFETY: the slot exists, so the offset lies inside the mapping.
        unsafe { self.first.as_ptr().add(offset) }
    }

    /// Copies a part of a slot out.
    ///
    /// # Safety
    /// The slot is not written meanwhile.
    ///
    /// # Panics
    /// If the part does not lie inside the block.
    pub(crate) unsafe fn read(&self, slot: u32, at: usize, to: &mut [u8]) {
        assert!(at <= BLOCK_SIZE && to.len() <= BLOCK_SIZE - at);
        // SAFETY: the source lies inside the slot (asserted) and is not written (the caller's promise); a
        // mutable slice cannot overlap the arena, which hands none out.
        unsafe { std::ptr::copy_nonoverlapping(self.at(slot).add(at), to.as_mut_ptr(), to.len()) };
    }

    /// Writes a slot.
    ///
    /// # Safety
    /// The slot is not read or written by others meanwhile.
    pub(crate) unsafe fn write(&self, slot: u32, from: &Block) {
        // SAFETY: the target is the slot, which no other thread accesses (the caller's promise); a slice from
        // outside cannot overlap the arena.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.at(slot), BLOCK_SIZE) };
    }

    /// Copies a slot to another.
    ///
    /// # Safety
    /// The slots differ; `from` is not written, and `to` not read or written by others meanwhile.
    pub(crate) unsafe fn copy(&self, from: u32, to: u32) {
        // SAFETY: two different slots do not overlap; the rest is the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(self.at(from), self.at(to), BLOCK_SIZE) };
    }

    /// Returns the memory of these huge pages to the kernel.
    ///
    /// # Safety
    /// Their slots are not read or written meanwhile, and their content is not needed.
    ///
    /// # Panics
    /// If they are not the arena's.
    pub(crate) unsafe fn release(&self, huge: std::ops::Range<u32>) -> io::Result<()> {
        if huge.is_empty() {
            return Ok(());
        }
        assert!(
            huge.end <= self.slots / HUGE_SLOTS,
            "huge pages of the arena"
        );
        let count = usize::try_from(huge.end - huge.start).unwrap_or(0);
        if let Some(file) = self.file() {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let huge_bytes = u64::try_from(HUGE).map_err(io::Error::other)?;
            let bytes = u64::try_from(count).map_err(io::Error::other)? * huge_bytes;
            fallocate(file, hole, u64::from(huge.start) * huge_bytes, bytes)?;
            return Ok(());
        }
        let first = self.at(huge.start * HUGE_SLOTS).cast();
        // SAFETY: the range lies inside the mapping (asserted); the caller needs nothing of it.
        unsafe { madvise(first, count * HUGE, Advice::LinuxDontNeed) }?;
        Ok(())
    }
}

/// Whole huge pages for this many slots: slots, and bytes.
fn rounded(slots: u32) -> io::Result<(u32, usize)> {
    let slots = slots.max(1).next_multiple_of(HUGE_SLOTS);
    let bytes = usize::try_from(slots).ok();
    let bytes = bytes.and_then(|slots| slots.checked_mul(BLOCK_SIZE));
    Ok((slots, bytes.ok_or(io::ErrorKind::OutOfMemory)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_keep_their_content_until_they_are_released() {
        let arena = Arena::reserve(HUGE_SLOTS + 1).unwrap();
        assert_eq!(arena.slots(), 2 * HUGE_SLOTS);
        let mut out = [1; BLOCK_SIZE];
        // SAFETY: one thread, and the slots copied differ.
        unsafe {
            arena.write(HUGE_SLOTS, &[7; BLOCK_SIZE]);
            arena.copy(HUGE_SLOTS, 2);
            arena.read(2, 0, &mut out);
            assert_eq!(out, [7; BLOCK_SIZE]);
            arena.release(0..1).unwrap();
            arena.read(2, 0, &mut out);
            assert_eq!(out, [0; BLOCK_SIZE]);
            arena.read(HUGE_SLOTS, 4090, &mut out[..6]);
            assert_eq!(out[..7], [7, 7, 7, 7, 7, 7, 0]);
        }
    }

    #[test]
    fn the_memory_of_an_arena_can_be_taken_over_in_another_size() {
        if !mapping::has_huge_memfds() {
            return;
        }
        let arena = Arena::reserve(3 * HUGE_SLOTS).unwrap();
        // SAFETY: one thread.
        unsafe { arena.write(HUGE_SLOTS + 3, &[7; BLOCK_SIZE]) };
        arena.used(0..2 * HUGE_SLOTS);
        let file = || arena.file().unwrap().try_clone().unwrap();
        mapping::check_arena(&file()).unwrap();
        for slots in [5 * HUGE_SLOTS, 2 * HUGE_SLOTS] {
            let taken = Arena::adopt(file(), slots).unwrap();
            assert_eq!(taken.slots(), slots);
            let mut out = [0; BLOCK_SIZE];
            // SAFETY: one thread.
            unsafe { taken.read(HUGE_SLOTS + 3, 0, &mut out) };
            assert_eq!(out, [7; BLOCK_SIZE]);
        }
    }

    /// Processor time of a copy of 4 KiB at random, nanoseconds, of each of these arenas in turn.
    fn copies(arenas: &[Arena], slots: u32) -> Vec<f64> {
        let mut random = crate::bench::Random::new(7);
        let mut out = [0; BLOCK_SIZE];
        let count = 200_000_u32;
        let each = arenas.iter().map(|arena| {
            let begun = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            for _ in 0..count {
                let slot = u32::try_from(random.below(slots.into())).unwrap();
                // SAFETY: one thread.
                unsafe { arena.read(slot, 0, &mut out) };
                std::hint::black_box(&mut out);
            }
            let ended = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            let took = std::time::Duration::try_from(ended).unwrap()
                - std::time::Duration::try_from(begun).unwrap();
            took.as_secs_f64() * 1e9 / f64::from(count)
        });
        each.collect()
    }

    #[test]
    #[ignore = "a measurement: of 3 GiB"]
    fn measured_memfd_against_anonymous_memory() {
        let slots = 1 << 18;
        let (rounded, bytes) = rounded(slots).unwrap();
        let memfd = || Some(mapping::memfd(bytes).unwrap());
        let arenas = [None, memfd(), memfd()].map(|file| {
            let arena = Arena::of(Mapping::new(file, bytes).unwrap(), rounded);
            // SAFETY: one thread.
            (0..slots).for_each(|slot| unsafe { arena.write(slot, &[7; BLOCK_SIZE]) });
            arena
        });
        let all = usize::try_from(slots / HUGE_SLOTS).unwrap();
        arenas[2].map.collapse(0..all).unwrap();
        let mut ratios = [Vec::new(), Vec::new()];
        for _ in 0..31 {
            let took = copies(&arenas, slots);
            for (ratio, memfd) in ratios.iter_mut().zip(&took[1..]) {
                ratio.push(memfd / took[0]);
            }
        }
        for (what, ratio) in ["small pages", "huge pages"].iter().zip(&mut ratios) {
            ratio.sort_by(f64::total_cmp);
            println!(
                "memfd with {what} : anonymous {:.3} ({:.3} to {:.3})",
                ratio[15], ratio[7], ratio[23]
            );
        }
    }
}
