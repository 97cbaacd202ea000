//! How a read goes: what the cache has is copied ([`CachedDisk::look_up`]); blocks that are on the SSD are read
//! together; what is missing is read from the backing store as one piece ([`CachedDisk::begin_fill`]) and, in
//! inclusive mode, put ([`CachedDisk::end_fill`]). Front ends that do not wait do the reading between the last
//! two themselves; [`CachedDisk::finish`] does all of it for those that do.

use super::cached::CachedDisk;
use crate::block::{BLOCK_BYTES, BLOCK_SIZE, len};
use crate::block_dev::{Disk, check_range};
use crate::cache::{Lookup, PendingSsdRead, PoolHandle};
use crate::config::Mode;
use crate::fill_guard::FillToken;
use crate::store::Page;
use std::io;
use std::ops::Range;

/// Blocks that are read from the SSD store together.
const SSD_READS: usize = 32;

/// What of a read the cache did not answer from memory.
#[derive(Default)]
pub(crate) struct MissRemainder {
    /// From the first block that it lacks to the last.
    missing: Option<Range<u64>>,
    /// On the SSD.
    pending: Vec<(u64, PendingSsdRead)>,
    /// Blocks of the request that are in its buffer.
    pub(crate) copied: usize,
}

impl MissRemainder {
    /// Must something be read from the SSD store first?
    pub(crate) fn is_on_ssd(&self) -> bool {
        !self.pending.is_empty()
    }

    fn lacks(&mut self, block: u64) {
        self.missing = Some(match self.missing.take() {
            None => block..block + 1,
            Some(m) => m.start.min(block)..m.end.max(block + 1),
        });
    }
}

/// A read of the backing store, and what it may put.
pub(crate) struct MissFill {
    /// What is to be read of the disk, in bytes.
    pub(crate) span: Range<u64>,
    first: u64,
    /// One for each block that may be put.
    tokens: Vec<FillToken>,
}

impl MissFill {
    /// A read that puts nothing.
    pub(crate) const fn only(span: Range<u64>) -> Self {
        Self {
            span,
            first: 0,
            tokens: Vec::new(),
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

impl CachedDisk {
    /// Copies what the cache has in memory; `None` when that is all.
    pub(crate) fn look_up(
        &self,
        pool: &PoolHandle,
        buf: &mut [u8],
        off: u64,
    ) -> Option<MissRemainder> {
        let take = self.mode == Mode::Exclusive;
        let mut remainder = MissRemainder::default();
        let mut blocks = 0;
        for (block, at, piece) in pieces(buf, off) {
            blocks += 1;
            match self.cache.get(&self.disk, pool, block, at, piece, take) {
                Lookup::Hit => remainder.copied += 1,
                Lookup::Miss => remainder.lacks(block),
                Lookup::OnSsd(p) => remainder.pending.push((block, p)),
            }
        }
        (remainder.copied < blocks).then_some(remainder)
    }

    /// Begins to read what is missing of a request: `None` when nothing is. Nothing must be on the SSD any
    /// more.
    pub(crate) fn begin_fill(
        &self,
        remainder: &MissRemainder,
        off: u64,
        count: u64,
    ) -> Option<MissFill> {
        let missing = remainder.missing.clone()?;
        let (from, to) = (missing.start * BLOCK_BYTES, missing.end * BLOCK_BYTES);
        Some(match self.mode {
            // Blocks are read as a whole, so that they can be put.
            Mode::Inclusive => MissFill {
                span: from..to.min(self.size()),
                first: missing.start,
                tokens: missing.map(|b| self.disk.token(b)).collect(),
            },
            Mode::Exclusive => MissFill::only(from.max(off)..to.min(off + count)),
        })
    }

    /// Puts the whole blocks of what was read.
    pub(crate) fn end_fill(&self, pool: &PoolHandle, fill: &MissFill, content: &[u8]) {
        let blocks = (fill.first..).zip(&fill.tokens);
        for ((block, token), content) in blocks.zip(content.chunks_exact(BLOCK_SIZE)) {
            if let Ok(content) = content.try_into() {
                self.cache.insert(&self.disk, pool, block, content, *token);
            }
        }
    }

    /// Reads what [`look_up`](Self::look_up) left.
    pub(crate) fn finish(
        &self,
        pool: &PoolHandle,
        mut remainder: MissRemainder,
        buf: &mut [u8],
        off: u64,
    ) -> io::Result<()> {
        self.read_pending(pool, &mut remainder, buf, off);
        let Some(fill) = self.begin_fill(&remainder, off, len(buf)) else {
            return Ok(());
        };
        if let Some(range) = fill.range_in(buf, off) {
            let content = &mut buf[range];
            self.backing.read_at(content, fill.span.start)?;
            self.end_fill(pool, &fill, content);
        } else {
            let mut content = vec![0; fill.len()];
            self.backing.read_at(&mut content, fill.span.start)?;
            self.end_fill(pool, &fill, &content);
            fill.copy(&content, buf, off);
        }
        Ok(())
    }

    /// Reads for a pool of the disk's VM, and waits for it.
    pub(super) fn read_into(&self, pool: &PoolHandle, buf: &mut [u8], off: u64) -> io::Result<()> {
        check_range(self.size(), off, len(buf))?;
        match self.look_up(pool, buf, off) {
            None => Ok(()),
            Some(remainder) => self.finish(pool, remainder, buf, off),
        }
    }

    /// Reads what is on the SSD; `true` when nothing is missing then.
    pub(crate) fn read_pending(
        &self,
        pool: &PoolHandle,
        remainder: &mut MissRemainder,
        buf: &mut [u8],
        off: u64,
    ) -> bool {
        let pending = std::mem::take(&mut remainder.pending);
        for part in pending.chunks(SSD_READS) {
            self.read_ssd(pool, part, buf, off, remainder);
        }
        remainder.missing.is_none()
    }

    /// Reads blocks that are on the SSD, together.
    fn read_ssd(
        &self,
        pool: &PoolHandle,
        pending: &[(u64, PendingSsdRead)],
        buf: &mut [u8],
        off: u64,
        remainder: &mut MissRemainder,
    ) {
        let mut pages: Vec<_> = pending.iter().map(|_| Page::new()).collect();
        let hits = self.cache.finish_ssd_reads(pool, pending, &mut pages);
        for (((block, _), page), hit) in pending.iter().zip(&pages).zip(hits) {
            if !hit {
                remainder.lacks(*block);
                continue;
            }
            let start = block * BLOCK_BYTES;
            let from = start.max(off);
            let to = (start + BLOCK_BYTES).min(off + len(buf));
            buf[index(from - off)..index(to - off)]
                .copy_from_slice(&page.0[index(from - start)..index(to - start)]);
        }
    }
}

/// The parts of a request by block: its number, where in the block the part begins, the part.
fn pieces(buf: &mut [u8], off: u64) -> impl Iterator<Item = (u64, usize, &mut [u8])> {
    let mut rest = buf;
    let mut off = off;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let at = index(off % BLOCK_BYTES);
        let count = (BLOCK_SIZE - at).min(rest.len());
        let (piece, tail) = std::mem::take(&mut rest).split_at_mut(count);
        let item = (off / BLOCK_BYTES, at, piece);
        off += len(item.2);
        rest = tail;
        Some(item)
    })
}

/// An offset inside a buffer. Offsets come from buffers' lengths, so they fit.
pub(super) fn index(off: u64) -> usize {
    usize::try_from(off).unwrap_or(usize::MAX)
}
