//! Writes that are under way.

use super::disk::DiskHandle;
use crate::block::{self, BLOCK_BYTES, BLOCK_SIZE};
use crate::write_epochs::WriteTokens;
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
    /// Of a tracked disk: with which it may say what the blocks hold.
    tokens: WriteTokens,
}

impl WriteGuard {
    pub(crate) fn begin(disk: &DiskHandle, off: u64, len: u64) -> Self {
        let tokens = disk.begin(off, len);
        Self {
            disk: DiskHandle::clone(disk),
            off,
            len,
            tokens,
        }
    }

    /// The write has ended well: the disk holds `content`, all of the range, which nobody has changed since before it was
    /// submitted. The guest holds its whole blocks.
    pub(crate) fn completed(mut self, content: &[u8]) {
        let (disk, off) = (DiskHandle::clone(&self.disk), self.off);
        let tokens = std::mem::take(&mut self.tokens);
        drop(self);
        if !disk.is_tracked() {
            return;
        }
        let first = off.div_ceil(BLOCK_BYTES);
        let skip = usize::try_from(first * BLOCK_BYTES - off).unwrap_or(usize::MAX);
        let whole = content.get(skip..).unwrap_or_default();
        for (block, content) in (first..).zip(whole.chunks_exact(BLOCK_SIZE)) {
            if let Some(token) = tokens.of(block) {
                disk.served(block, content, token);
            }
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
