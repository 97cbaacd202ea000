//! A part of a file in this process, as guests' memory is.

use super::sigbus::Guard;
use crate::frontend::BudgetShare;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::AsFd;
use vm_memory::VolatileSlice;

/// A mapping. It may be lost, see [`is_lost`](Self::is_lost).
#[derive(Debug)]
pub(super) struct Mapping {
    start: *mut u8,
    size: usize,
    /// Ends before the mapping does.
    guard: Option<Guard>,
    _share: BudgetShare,
}

// SAFETY: the memory is mapped for all threads, and only volatile accesses use it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps a part of a file for reading and writing. The file need not stay open.
    ///
    /// # Errors
    /// When the system refuses.
    pub(super) fn new(
        file: impl AsFd,
        offset: u64,
        size: usize,
        share: BudgetShare,
    ) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping, wherever the kernel puts it.
        let start = unsafe { mmap(std::ptr::null_mut(), size, access, flags, file, offset) }?;
        let mut new = Self {
            start: start.cast(),
            size,
            guard: None,
            _share: share,
        };
        // SAFETY: the guard ends before the mapping, and `slice` gives volatile accesses alone.
        new.guard = Some(unsafe { Guard::new(start.expose_provenance(), size) }?);
        Ok(new)
    }

    /// Its bytes.
    pub(super) const fn size(&self) -> usize {
        self.size
    }

    /// All of it.
    pub(super) fn slice(&self) -> VolatileSlice<'_> {
        // SAFETY: mapped for as long as `self` is there, and so is what is returned at most.
        unsafe { VolatileSlice::new(self.start, self.size) }
    }

    /// Was its content taken away? What was read since is zero.
    pub(super) fn is_lost(&self) -> bool {
        self.guard.as_ref().is_some_and(Guard::is_lost)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.guard = None;
        // SAFETY: it was mapped here, and nothing uses it any more.
        if let Err(e) = unsafe { munmap(self.start.cast(), self.size) } {
            tracing::error!("cannot unmap {} bytes of a guest's memory: {e}", self.size);
        }
    }
}
