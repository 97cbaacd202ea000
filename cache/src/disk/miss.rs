//! What of a read the cache did not answer, and how it is filled in.

use crate::block::len;
use crate::cache::{DiskRead, PendingSsdRead, PoolHandle};
use crate::write_epochs::FillToken;
use std::ops::Range;

/// What of a read the cache did not answer from memory.
#[derive(Default)]
pub(crate) struct MissRemainder {
    /// From the first block that it lacks to the last.
    pub(super) missing: Option<Range<u64>>,
    /// On the SSD.
    pub(super) pending: Vec<(u64, PendingSsdRead)>,
    /// Blocks of the request that are in its buffer.
    pub(crate) copied: usize,
    /// Where what is missing is inserted; the disk's own without.
    pub(crate) pool: Option<PoolHandle>,
}

impl MissRemainder {
    /// Must something be read from the SSD store first?
    pub(crate) fn is_on_ssd(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Blocks that must be read from the SSD store.
    pub(crate) fn on_ssd(&self) -> u64 {
        u64::try_from(self.pending.len()).unwrap_or(u64::MAX)
    }

    pub(super) fn lacks(&mut self, block: u64) {
        self.missing = Some(match self.missing.take() {
            None => block..block + 1,
            Some(m) => m.start.min(block)..m.end.max(block + 1),
        });
    }
}

/// A read of the backing store, and what it may insert.
pub(crate) struct MissFill {
    /// What is to be read of the disk, in bytes.
    pub(crate) span: Range<u64>,
    /// The first block of which it reads all.
    pub(super) first: u64,
    /// One for each block from there on; none when neither the cache nor the residency table wants them.
    pub(super) tokens: Vec<FillToken>,
    /// Whether the blocks are inserted.
    pub(super) inserts: bool,
    /// Where they are inserted, and the read is counted; the disk's own without.
    pub(crate) pool: Option<PoolHandle>,
    /// The disk is busy with it; `None` where there is no cache.
    pub(super) read: Option<DiskRead>,
}

impl MissFill {
    /// A read that inserts nothing.
    pub(crate) fn only(span: Range<u64>) -> Self {
        Self {
            span,
            first: 0,
            tokens: Vec::new(),
            inserts: false,
            pool: None,
            read: None,
        }
    }

    /// Bytes that are to be read.
    pub(crate) fn len(&self) -> usize {
        index(self.span.end - self.span.start)
    }

    /// Where its bytes are in the buffer of a request at `off`; `None` when they do not lie inside.
    pub(crate) fn range_in(&self, buf: &[u8], off: u64) -> Option<Range<usize>> {
        (self.span.start >= off && self.span.end <= off + len(buf))
            .then(|| index(self.span.start - off)..index(self.span.end - off))
    }

    /// Copies from what was read what belongs into the buffer of a request at `off`.
    pub(crate) fn copy(&self, content: &[u8], buf: &mut [u8], off: u64) {
        let from = self.span.start.max(off);
        let to = self.span.end.min(off + len(buf));
        let content = &content[index(from - self.span.start)..index(to - self.span.start)];
        buf[index(from - off)..index(to - off)].copy_from_slice(content);
    }
}

/// An offset inside a buffer. Offsets come from buffers' lengths, so they fit.
pub(super) fn index(off: u64) -> usize {
    usize::try_from(off).unwrap_or(usize::MAX)
}
