//! The memory of blocks: address space that is reserved once, and backed by memory on use. It uses huge pages where the kernel
//! has them, and returns memory to the kernel in the same units.
//!
//! It is a memfd, so that it can be handed over to the next daemon. Kernels give memfds small pages unless asked for huge ones
//! (`MADV_COLLAPSE`, Linux 6.1). With huge pages a hit is as fast as in anonymous memory; with small ones it takes a quarter
//! longer. Where a memfd cannot have huge pages the memory is anonymous, and ends with the daemon.

use crate::block::{BLOCK_SIZE, Block};
use nix::libc;
use rustix::fs::{
    FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, fcntl_get_seals,
    memfd_create,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, OnceLock, mpsc};

/// Slots in a huge page.
pub(crate) const HUGE_SLOTS: u32 = 512;

/// A reserved range of [`Block`]s. Blocks that were never written read as zeroes and take no memory.
pub(crate) struct Arena {
    map: Arc<Mapping>,
    /// The first block, at a multiple of [`HUGE`].
    first: NonNull<u8>,
    slots: u32,
    /// The channel to the thread that asks for huge pages; `None` if it could not be started.
    collapser: OnceLock<Option<mpsc::Sender<Range<usize>>>>,
}

// SAFETY: the arena owns the mapping, which is not tied to a thread. The contracts of the methods tell when a slot may be
// accessed.
unsafe impl Send for Arena {}
// SAFETY: as above: methods that access slots are unsafe and tell when they may run concurrently.
unsafe impl Sync for Arena {}

impl Arena {
    /// Reserves address space for `slots` slots, rounded up to whole huge pages.
    pub(crate) fn reserve(slots: u32) -> io::Result<Self> {
        let (slots, bytes) = rounded(slots)?;
        let file = match has_huge_memfds() {
            true => Some(memfd(bytes)?),
            false => None,
        };
        Ok(Self::of(Mapping::new(file, bytes)?, slots))
    }

    /// Takes over the memory of an earlier arena, with its content. `file` was [checked](check_arena). Memory behind `slots`
    /// slots is given up.
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

    /// Notes that these slots are newly in use. If the memory is a memfd, a separate thread asks for huge pages for them, which
    /// takes milliseconds.
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
                        // On failure small pages remain.
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
        // SAFETY: the source lies inside the slot (asserted) and is not written (the caller's promise). A mutable slice cannot
        // overlap the arena, which hands none out.
        unsafe { std::ptr::copy_nonoverlapping(self.at(slot).add(at), to.as_mut_ptr(), to.len()) };
    }

    /// Writes a slot.
    ///
    /// # Safety
    /// The slot is not read or written by others meanwhile.
    pub(crate) unsafe fn write(&self, slot: u32, from: &Block) {
        // SAFETY: the target is the slot, which no other thread accesses (the caller's promise). A slice from outside cannot
        // overlap the arena.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.at(slot), BLOCK_SIZE) };
    }

    /// Copies a slot to another.
    ///
    /// # Safety
    /// The slots differ; `from` is not written, and `to` not read or written by others meanwhile.
    pub(crate) unsafe fn copy(&self, from: u32, to: u32) {
        // SAFETY: two different slots do not overlap; the caller promises the rest.
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
        // SAFETY: the range lies inside the mapping (asserted); the caller needs none of its content.
        unsafe { madvise(first, count * HUGE, Advice::LinuxDontNeed) }?;
        Ok(())
    }
}

/// Rounds slots up to whole huge pages. Returns slots, and bytes.
fn rounded(slots: u32) -> io::Result<(u32, usize)> {
    let slots = slots.max(1).next_multiple_of(HUGE_SLOTS);
    let bytes = usize::try_from(slots).ok();
    let bytes = bytes.and_then(|slots| slots.checked_mul(BLOCK_SIZE));
    Ok((slots, bytes.ok_or(io::ErrorKind::OutOfMemory)?))
}

// The mapping under an arena: of a memfd, or anonymous.

/// The unit in which memory is returned: a huge page of x86-64 and arm64.
const HUGE: usize = 2 << 20;

/// Mapped memory that begins at a multiple of [`HUGE`].
pub(super) struct Mapping {
    /// The start of the whole mapping.
    map: NonNull<c_void>,
    map_bytes: usize,
    first: NonNull<u8>,
    bytes: usize,
    file: Option<File>,
}

// SAFETY: the mapping is not tied to a thread, and hands out no reference to its memory.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of a memfd that cannot shrink, or anonymous memory. `bytes` is a multiple of [`HUGE`].
    pub(super) fn new(file: Option<File>, bytes: usize) -> io::Result<Self> {
        let map_bytes = bytes.checked_add(HUGE).ok_or(io::ErrorKind::OutOfMemory)?;
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::NORESERVE);
        // SAFETY: a new anonymous mapping at an address of the kernel's choice touches nothing that exists.
        let map =
            unsafe { mmap_anonymous(null_mut(), map_bytes, access, MapFlags::PRIVATE | flags) }?;
        let map = NonNull::new(map).ok_or(io::ErrorKind::OutOfMemory)?;
        let skip = map.as_ptr().cast::<u8>().align_offset(HUGE);
        // SAFETY: `skip` is below HUGE, and the mapping is HUGE longer than `bytes`.
        let first = unsafe { map.cast::<u8>().add(skip) };
        let mapping = Self {
            map,
            map_bytes,
            first,
            bytes,
            file,
        };
        let at = first.as_ptr().cast();
        match &mapping.file {
            Some(file) => {
                let flags = MapFlags::SHARED | MapFlags::FIXED | flags;
                // SAFETY: the range lies inside the mapping that was just made, which is not used yet.
                unsafe { mmap(at, bytes, access, flags, file, 0) }?;
            }
            None => {
                // SAFETY: the range lies inside the mapping; the advice changes no content. A kernel without huge pages refuses
                // it; small pages remain.
                let _ = unsafe { madvise(at, bytes, Advice::LinuxHugepage) };
            }
        }
        Ok(mapping)
    }

    pub(super) const fn first(&self) -> NonNull<u8> {
        self.first
    }

    pub(super) const fn file(&self) -> Option<&File> {
        self.file.as_ref()
    }

    /// Asks the kernel to collapse the pages of this range to huge pages.
    fn collapse(&self, huge: Range<usize>) -> io::Result<()> {
        let end = huge.end.min(self.bytes / HUGE);
        let count = end.saturating_sub(huge.start);
        // SAFETY: the range lies inside the mapping; the advice changes no content.
        let done = unsafe {
            let at = self.first.as_ptr().add(huge.start.min(end) * HUGE);
            libc::madvise(at.cast(), count * HUGE, libc::MADV_COLLAPSE)
        };
        match done {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this owns the mapping, and no reference to it remains. It cannot fail for a whole mapping.
        let _ = unsafe { munmap(self.map.as_ptr(), self.map_bytes) };
    }
}

/// A memfd of this size, which cannot shrink: a mapping of it stays valid.
pub(crate) fn memfd(bytes: usize) -> io::Result<File> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("justitia-cache", flags)?);
    file.set_len(u64::try_from(bytes).map_err(io::Error::other)?)?;
    fcntl_add_seals(&file, SealFlags::SHRINK)?;
    Ok(file)
}

/// Checks that it is a writable memfd whose mapping stays valid.
///
/// # Errors
/// The reason if it is not.
pub(crate) fn check_arena(file: &File) -> io::Result<()> {
    let seals =
        fcntl_get_seals(file).map_err(|_| invalid("a memfd", "a descriptor of another kind"))?;
    if !seals.contains(SealFlags::SHRINK) {
        return Err(invalid(
            "a memfd that cannot shrink",
            "one without F_SEAL_SHRINK",
        ));
    }
    if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE | SealFlags::GROW) {
        return Err(invalid(
            "a memfd that can be written and grow",
            "one whose seals forbid that",
        ));
    }
    // An access to hugetlbfs may fail for want of pages.
    let of = rustix::fs::fstatfs(file)?.f_type;
    if of != TMPFS {
        return Err(invalid(
            "a memfd of ordinary pages",
            "one of huge pages of hugetlbfs",
        ));
    }
    Ok(())
}

const TMPFS: rustix::fs::FsWord = 0x0102_1994;

fn invalid(expected: &str, found: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("expected {expected}, found {found}"),
    )
}

/// Can memfds have huge pages here? Also `true` if no memory can. Tested once.
pub(crate) fn has_huge_memfds() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        let found = probe();
        if let Err(e) = &found {
            tracing::info!(
                "the memory store ends with this daemon: the kernel has no huge pages for memfds (MADV_COLLAPSE, Linux 6.1): {e}"
            );
        }
        found.is_ok()
    })
}

fn probe() -> io::Result<()> {
    let mapping = Mapping::new(Some(memfd(HUGE)?), HUGE)?;
    // SAFETY: the byte lies inside the mapping, which has no other user.
    unsafe { mapping.first().write_volatile(1) };
    match mapping.collapse(0..1) {
        // No huge page is free right now.
        Err(e)
            if matches!(
                e.raw_os_error(),
                Some(libc::ENOMEM | libc::EAGAIN | libc::EBUSY)
            ) =>
        {
            Ok(())
        }
        Err(e) if anonymous_has_none() => {
            tracing::debug!("no huge pages for memfds, nor for other memory: {e}");
            Ok(())
        }
        done => done,
    }
}

/// Are huge pages off for anonymous memory, too?
fn anonymous_has_none() -> bool {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    enabled.is_ok_and(|text| text.contains("[never]"))
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
        if !has_huge_memfds() {
            return;
        }
        let arena = Arena::reserve(3 * HUGE_SLOTS).unwrap();
        // SAFETY: one thread.
        unsafe { arena.write(HUGE_SLOTS + 3, &[7; BLOCK_SIZE]) };
        arena.used(0..2 * HUGE_SLOTS);
        let file = || arena.file().unwrap().try_clone().unwrap();
        check_arena(&file()).unwrap();
        for slots in [5 * HUGE_SLOTS, 2 * HUGE_SLOTS] {
            let taken = Arena::adopt(file(), slots).unwrap();
            assert_eq!(taken.slots(), slots);
            let mut out = [0; BLOCK_SIZE];
            // SAFETY: one thread.
            unsafe { taken.read(HUGE_SLOTS + 3, 0, &mut out) };
            assert_eq!(out, [7; BLOCK_SIZE]);
        }
    }

    /// Processor time of a random copy of 4 KiB, nanoseconds, for each of these arenas in turn.
    fn copies(arenas: &[Arena], slots: u32) -> Vec<f64> {
        let mut random = crate::testing::Random::new(7);
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
        let memfd = || Some(memfd(bytes).unwrap());
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
