//! A read: what the cache has is copied ([`CachedDisk::look_up`]); blocks that are on the SSD are read
//! together; what is missing is read from the backing store as one piece ([`CachedDisk::begin_fill`]) and, in
//! inclusive mode, inserted ([`CachedDisk::end_fill`]). Front ends that do not wait do the reading between the last
//! two themselves; [`CachedDisk::finish`] does all of it for those that do.

use super::cached::CachedDisk;
use super::miss::{MissFill, MissRemainder, index};
use crate::block::{BLOCK_BYTES, BLOCK_SIZE, len};
use crate::block_dev::{Disk, check_range};
use crate::cache::{DiskRead, Lookup, PendingSsdRead, PoolHandle};
use crate::clock;
use crate::config::Mode;
use std::io;

/// Blocks that are read from the SSD store together.
const SSD_READS: usize = 32;

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
        let mut blocks = 0_u64;
        let begun = pool.count.begin_hit(len(buf).div_ceil(BLOCK_BYTES));
        for (block, at, piece) in pieces(buf, off) {
            blocks += 1;
            let token = self.disk.token(block);
            match self.cache.get(&self.disk, pool, block, at, piece, take) {
                Lookup::Hit => {
                    self.disk.served(block, piece, token);
                    remainder.copied += 1;
                }
                Lookup::Miss => remainder.lacks(block),
                Lookup::OnSsd(p) => remainder.pending.push((block, p)),
            }
        }
        if u64::try_from(remainder.copied).is_ok_and(|copied| copied < blocks) {
            return Some(remainder);
        }
        if let Some(begun) = begun {
            pool.count.memory_hit(blocks, begun);
        }
        None
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
            // Blocks are read as a whole, so that they can be inserted. A disk that has become smaller meanwhile is read
            // where it was asked for.
            Mode::Inclusive => MissFill {
                span: from..to.min(self.size().max(off + count)),
                first: missing.start,
                tokens: missing.map(|b| self.disk.token(b)).collect(),
                inserts: true,
                pool: remainder.pool.clone(),
                read: Some(self.disk.begin_read()),
            },
            Mode::Exclusive => {
                let mut fill = MissFill::only(from.max(off)..to.min(off + count));
                fill.pool.clone_from(&remainder.pool);
                fill.read = Some(self.disk.begin_read());
                if self.disk.is_tracked() {
                    fill.first = fill.span.start.div_ceil(BLOCK_BYTES);
                    let whole = fill.first..fill.span.end / BLOCK_BYTES;
                    fill.tokens = whole.map(|b| self.disk.token(b)).collect();
                }
                fill
            }
        })
    }

    /// Counts a read that has ended, inserts the whole blocks of it, and remembers that the guest holds them.
    pub(crate) fn end_fill(&self, pool: &PoolHandle, fill: &MissFill, content: &[u8]) {
        let blocks = (fill.span.end - fill.span.start).div_ceil(BLOCK_BYTES);
        let time = fill.read.as_ref().map(DiskRead::elapsed);
        pool.count.disk_read(blocks, time.unwrap_or_default());
        if fill.tokens.is_empty() {
            return;
        }
        let blocks = (fill.first..).zip(&fill.tokens);
        let skip = index(fill.first * BLOCK_BYTES - fill.span.start);
        let contents = content.get(skip..).unwrap_or_default();
        for ((block, token), content) in blocks.zip(contents.chunks_exact(BLOCK_SIZE)) {
            if let (true, Ok(content)) = (fill.inserts, content.try_into()) {
                // One that is not inserted is read again.
                let _ = self.cache.insert(&self.disk, pool, block, content, *token);
            }
            self.disk.served(block, content, *token);
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
        let first = pending.first();
        let owner = first.and_then(|(_, pending)| self.cache.owner(pending));
        let begun = clock::now();
        let mut answers = true;
        for part in pending.chunks(SSD_READS) {
            answers &= self.read_ssd(pool, part, buf, off, remainder);
        }
        let served = remainder.missing.is_none();
        // What a read takes that is given up says nothing of those that are not.
        if let Some(owner) = owner.filter(|_| answers) {
            self.cache.ssd_was_read(&self.disk, &owner, begun, served);
        }
        served
    }

    /// Reads blocks that are on the SSD, together; `false` when it does not answer.
    fn read_ssd(
        &self,
        pool: &PoolHandle,
        pending: &[(u64, PendingSsdRead)],
        buf: &mut [u8],
        off: u64,
        remainder: &mut MissRemainder,
    ) -> bool {
        let tokens: Vec<_> = pending.iter().map(|(b, _)| self.disk.token(*b)).collect();
        let begun = clock::now();
        // Whether they are still the blocks is decided after the tokens were taken.
        let Some((hits, pages)) = self.cache.finish_ssd_reads(pool, pending) else {
            for (block, _) in pending {
                remainder.lacks(*block);
            }
            return false;
        };
        if let (true, Ok(blocks)) = (hits.iter().all(|hit| *hit), u64::try_from(hits.len())) {
            pool.count.ssd_hit(blocks, begun);
        }
        let read = pending.iter().zip(&pages).zip(tokens);
        for ((((block, _), page), token), hit) in read.zip(hits) {
            if !hit {
                remainder.lacks(*block);
                continue;
            }
            self.disk.served(*block, &page.0, token);
            let start = block * BLOCK_BYTES;
            let from = start.max(off);
            let to = (start + BLOCK_BYTES).min(off + len(buf));
            buf[index(from - off)..index(to - off)]
                .copy_from_slice(&page.0[index(from - start)..index(to - start)]);
        }
        true
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
