//! How a change goes: with the cache out of its way.

use super::disk::DiskHandle;
use crate::block;
use std::ops::Range;

/// A change of the backing store that is under way, from before it is submitted until it has ended, well,
/// badly or in a panic. While it lasts, nothing that it touches is filled.
///
/// [`Cache::invalidate`](crate::Cache::invalidate) wants one, so that what a change touches cannot be removed
/// before fills are refused: a fill in between would stay.
pub(crate) struct WriteGuard {
    disk: DiskHandle,
    off: u64,
    len: u64,
}

impl WriteGuard {
    pub(crate) fn begin(disk: &DiskHandle, off: u64, len: u64) -> Self {
        disk.begin(off, len);
        Self {
            disk: DiskHandle::clone(disk),
            off,
            len,
        }
    }

    /// The disk that changes.
    pub(crate) fn disk(&self) -> &DiskHandle {
        &self.disk
    }

    /// The blocks that it touches.
    pub(crate) fn blocks(&self) -> Range<u64> {
        block::touching(self.off, self.len)
    }
}

impl Drop for WriteGuard {
    fn drop(&mut self) {
        self.disk.end(self.off, self.len);
    }
}
