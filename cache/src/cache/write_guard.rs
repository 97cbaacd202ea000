//! Writes that are under way.

use super::disk::DiskHandle;
use crate::block;
use std::ops::Range;

/// A write, discard or write-zeroes of the backing store, from before it is submitted until it has ended, well, badly or in
/// a panic. While the guard exists, no block that the range touches is filled.
///
/// [`Cache::invalidate`](crate::Cache::invalidate) takes one, so that blocks are not removed before fills are
/// refused: a fill in between would stay.
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

    /// The disk that is written.
    pub(crate) fn disk(&self) -> &DiskHandle {
        &self.disk
    }

    /// The blocks that the range touches.
    pub(crate) fn blocks(&self) -> Range<u64> {
        block::touching(self.off, self.len)
    }
}

impl Drop for WriteGuard {
    fn drop(&mut self) {
        self.disk.end(self.off, self.len);
    }
}
