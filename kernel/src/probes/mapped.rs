//! An array map of 64-bit words, mapped into memory: read without a system call while programs
//! write it.

#![expect(
    unsafe_code,
    reason = "a map can be shared with the kernel's programs only by mapping its memory"
)]

use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

use super::limits::ProbeError;

/// The words of one map, mapped into memory. Unmapped when dropped.
#[derive(Debug)]
pub(super) struct MappedArray {
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: the mapping is memory of the process, used only through atomic operations.
unsafe impl Send for MappedArray {}
// SAFETY: as above.
unsafe impl Sync for MappedArray {}

impl MappedArray {
    /// Maps `words` words of the map `name`, which was made with `BPF_F_MMAPABLE` and has that many.
    pub(super) fn map(
        name: &'static str,
        map: &impl AsFd,
        words: usize,
    ) -> Result<Self, ProbeError> {
        // SAFETY: a new mapping at a place of the kernel's choice touches no memory in use.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                words * size_of::<AtomicU64>(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                map,
                0,
            )
        };
        let refused = |reason: String| ProbeError::Map { map: name, reason };
        let start = start.map_err(|errno| refused(format!("mmap: {errno}")))?;
        let start = NonNull::new(start.cast()).ok_or_else(|| refused("mmap: nothing".into()))?;
        Ok(Self { start, words })
    }

    /// The words, shared with the programs that write them.
    pub(super) fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping is page-aligned, `words` long, readable and writable, and lives as
        // long as `self`; all of this process uses it atomically.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }

    /// One word; 0 beyond the end.
    pub(super) fn get(&self, index: usize) -> u64 {
        self.words()
            .get(index)
            .map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// Sets one word; does nothing beyond the end.
    pub(super) fn set(&self, index: usize, value: u64) {
        if let Some(word) = self.words().get(index) {
            word.store(value, Ordering::Relaxed);
        }
    }

    /// Sets the words of a range to 0.
    pub(super) fn clear(&self, range: std::ops::Range<usize>) {
        for word in self.words().get(range).unwrap_or_default() {
            word.store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for MappedArray {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length, and nothing else has its address.
        let unmapped = unsafe {
            rustix::mm::munmap(
                self.start.as_ptr().cast(),
                self.words * size_of::<AtomicU64>(),
            )
        };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}
