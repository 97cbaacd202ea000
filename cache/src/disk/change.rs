//! How a change goes: with the cache out of its way.

use super::cached::CachedDisk;
use crate::block;
use crate::cache::DiskHandle;
use std::ops::Range;

/// A change of the backing store that is under way, from before it is submitted until it has ended, well,
/// badly or in a panic. While it lasts, nothing that it touches is filled.
///
/// [`Cache::invalidate`](crate::Cache::invalidate) wants one, so that what a change touches cannot be removed
/// before fills are refused: a fill in between would stay.
pub(crate) struct Change {
    disk: DiskHandle,
    off: u64,
    len: u64,
}

impl Change {
    fn begin(disk: &DiskHandle, off: u64, len: u64) -> Self {
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

impl CachedDisk {
    /// A change of a byte range begins, and the cache holds nothing of it any more.
    pub(crate) fn change(&self, off: u64, len: u64) -> Change {
        let change = Change::begin(&self.disk, off, len);
        self.cache.invalidate(&change);
        change
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        self.disk.end(self.off, self.len);
    }
}
