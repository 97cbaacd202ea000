//! How a change goes: with the cache out of its way.

use super::cached::CachedDisk;
use crate::block;
use crate::cache::{Cache, DiskHandle};
use std::sync::Arc;

/// A change of the backing store that is under way, from before it is submitted until it has ended, well,
/// badly or in a panic.
///
/// What it touches is removed at both ends: before, because reads must not find the old content once the
/// change is done, and after, because the generation check refuses fills only from then on that saw it half
/// done.
pub(crate) struct Change {
    cache: Arc<Cache>,
    disk: DiskHandle,
    off: u64,
    len: u64,
}

impl CachedDisk {
    /// A change of a byte range begins.
    pub(crate) fn change(&self, off: u64, len: u64) -> Change {
        self.disk.begin(off, len);
        self.cache.invalidate(&self.disk, block::touching(off, len));
        Change {
            cache: Arc::clone(&self.cache),
            disk: Arc::clone(&self.disk),
            off,
            len,
        }
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        let blocks = block::touching(self.off, self.len);
        self.cache.invalidate(&self.disk, blocks);
        self.disk.end(self.off, self.len);
    }
}
