//! The memory that blocks lie in: address space reserved once, backed by memory as it is used, in huge pages
//! where the kernel has them, and returned to the kernel in the same pieces.

use crate::block::{BLOCK_SIZE, Block};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::io;
use std::ptr::{NonNull, null_mut};

/// The unit in which memory is returned: a huge page of x86-64 and arm64.
pub(crate) const HUGE: usize = 2 << 20;

/// Slots in a huge page.
pub(crate) const HUGE_SLOTS: u32 = 512;

/// A reserved range of [`Block`]s. Blocks that were never written read as zeroes and take no memory.
pub(crate) struct Arena {
    /// What was mapped.
    map: NonNull<c_void>,
    map_bytes: usize,
    /// The first block, at a multiple of [`HUGE`].
    first: NonNull<u8>,
    slots: u32,
}

// SAFETY: the mapping belongs to the arena alone and is not tied to a thread; when a slot may be accessed is the contract of
// the methods that access one.
unsafe impl Send for Arena {}
// SAFETY: as above: the methods that touch slots are unsafe and say when they may be called at the same time.
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves address space for this many slots, rounded up to whole huge pages.
    pub(crate) fn reserve(slots: u32) -> io::Result<Self> {
        let slots = slots.max(1).next_multiple_of(HUGE_SLOTS);
        let bytes = usize::try_from(slots)
            .ok()
            .and_then(|s| s.checked_mul(BLOCK_SIZE))
            .and_then(|b| b.checked_add(HUGE))
            .ok_or(io::ErrorKind::OutOfMemory)?;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let map = unsafe {
            mmap_anonymous(
                null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let map = NonNull::new(map).ok_or(io::ErrorKind::OutOfMemory)?;
        let skip = map.as_ptr().cast::<u8>().align_offset(HUGE);
        // SAFETY: `skip` is below HUGE, and the mapping is HUGE longer than the slots.
        let first = unsafe { map.cast::<u8>().add(skip) };
        let arena = Self {
            map,
            map_bytes: bytes,
            first,
            slots,
        };
        // SAFETY: the range lies inside the mapping; the advice changes no content. A kernel without huge
        // pages refuses it, and small pages serve as well.
        let _ = unsafe { madvise(first.as_ptr().cast(), bytes - HUGE, Advice::LinuxHugepage) };
        Ok(arena)
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
        let first = self.at(huge.start * HUGE_SLOTS).cast();
        // SAFETY: the range lies inside the mapping (asserted); the caller needs nothing of it.
        unsafe { madvise(first, count * HUGE, Advice::LinuxDontNeed) }?;
        Ok(())
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping is the arena's, and no reference to it is left. It cannot fail for a whole mapping.
        let _ = unsafe { munmap(self.map.as_ptr(), self.map_bytes) };
    }
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
}
