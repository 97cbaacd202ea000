//! A disk that is read through the cache.

use crate::block::{self, BLOCK_BYTES, BLOCK_SIZE, MAX_BLOCK, len};
use crate::block_dev::{BlockDevice, check_range};
use crate::cache::{Cache, DiskHandle, DiskRead, Lookup, PendingSsdRead, PoolHandle, WriteGuard};
use crate::clock;
use crate::config::Mode;
use crate::error::CacheError;
use crate::ids::{DiskId, PoolId};
use crate::write_epochs::FillToken;
use justitia_guest_protocol::puts::Verdict;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// A disk of a VM, read through the cache. Writes go to the backing store and remove the written blocks from the cache.
///
/// Durability is the backing store's: [`flush`](BlockDevice::flush) and `fua` go to it.
pub struct CachedDisk {
    pub(super) backing: Arc<dyn BlockDevice>,
    pub(super) cache: Arc<Cache>,
    pub(super) disk: DiskHandle,
    /// The VM's first pool, for clients without containers.
    pub(crate) pool: PoolHandle,
    pub(super) mode: Mode,
}

impl CachedDisk {
    /// Serves `backing` as `disk`, with its blocks in the VM's first pool.
    ///
    /// # Errors
    /// When the disk is not known.
    pub fn new(
        backing: Arc<dyn BlockDevice>,
        cache: Arc<Cache>,
        disk: DiskId,
        mode: Mode,
    ) -> Result<Self, CacheError> {
        let (disk, pool) = cache.attach(disk)?;
        Ok(Self {
            backing,
            cache,
            disk,
            pool,
            mode,
        })
    }

    /// Its id in the cache, even after its removal.
    pub(crate) fn id(&self) -> DiskId {
        self.disk.id
    }

    /// Its id in the cache; `None` when it has become uncached.
    pub(crate) fn disk_id(&self) -> Option<DiskId> {
        (!self.disk.is_closed()).then_some(self.disk.id)
    }

    /// The backing store.
    pub(crate) fn backing(&self) -> &dyn BlockDevice {
        &*self.backing
    }

    /// Copies blocks that are cached in memory, without waiting. Returns `true` when none is missing. In any case it counts as
    /// a lookup, and removes found blocks (exclusive mode).
    ///
    /// A range beyond the disk is not in the cache.
    #[must_use]
    #[cfg(any(test, feature = "lab"))]
    pub fn read_cached(&self, buf: &mut [u8], off: u64) -> bool {
        check_range(self.size(), off, len(buf)).is_ok()
            && self.look_up(&self.pool, buf, off).is_none()
    }

    /// Reads for a container: missing blocks are filled into `pool` (inclusive mode).
    ///
    /// # Errors
    /// What the backing store reports; [`io::ErrorKind::InvalidInput`] when the pool does not exist or
    /// belongs to another VM.
    #[cfg(any(test, feature = "lab"))]
    pub fn read_for(&self, pool: PoolId, buf: &mut [u8], off: u64) -> io::Result<()> {
        let pool = self
            .cache
            .pool_of(&self.disk, pool)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        self.read_into(&pool, buf, off)
    }

    /// Takes a clean block that the guest evicted (the paper's put), if its content was last served to the guest and is still
    /// the disk's. Only whole blocks of disks of tracked VMs ([`Cache::track_residency`]) are accepted.
    ///
    /// `content` must not change meanwhile: a guest's memory is copied first.
    pub fn offer(&self, pool: PoolId, block: u64, content: &block::Block) -> Verdict {
        if self.disk.is_closed() {
            return Verdict::NoDisk;
        }
        if !self.has_block(block) {
            return Verdict::OutOfRange;
        }
        match self.cache.pool_of(&self.disk, pool) {
            Ok(pool) => self.cache.offer(&self.disk, &pool, block, content),
            Err(_) => Verdict::NoRoom,
        }
    }

    /// Caches a block that the caller has read from the backing store while no write was in flight, as a miss does. The content
    /// is trusted. Returns `false` without a free slot, with a write to its range in flight, or for a pool of another VM.
    pub fn fill(&self, pool: PoolId, block: u64, content: &block::Block) -> bool {
        let token = self.disk.token(block);
        let pool = self.cache.pool_of(&self.disk, pool);
        let insert = |pool| self.cache.insert(&self.disk, &pool, block, content, token);
        self.has_block(block) && pool.is_ok_and(|pool| insert(pool).is_ok())
    }

    /// Does the block lie completely inside the disk?
    fn has_block(&self, block: u64) -> bool {
        let end = block
            .checked_add(1)
            .and_then(|end| end.checked_mul(BLOCK_BYTES));
        block <= MAX_BLOCK && end.is_some_and(|end| end <= self.backing.size())
    }

    /// A pool of the disk's VM; `None` when there is no such pool, or it belongs to another VM.
    pub(crate) fn pool_of(&self, pool: PoolId) -> Option<PoolHandle> {
        self.cache.pool_of(&self.disk, pool).ok()
    }

    /// Does the cache hold the block?
    #[cfg(any(test, feature = "lab"))]
    pub fn holds(&self, block: u64) -> bool {
        self.cache.holds(&self.disk, block)
    }

    /// Begins a write, discard or write-zeroes of a byte range. Removes its blocks from the cache, and refuses fills of it
    /// until the guard is dropped.
    pub(crate) fn begin_write(&self, off: u64, len: u64) -> WriteGuard {
        let guard = WriteGuard::begin(&self.disk, off, len);
        self.cache.invalidate(&guard);
        guard
    }

    /// The paper's get: one block, only from the cache. In exclusive mode a hit removes it. `false` on a miss, or for a pool of
    /// another VM.
    #[must_use]
    #[cfg(any(test, feature = "lab"))]
    pub fn get(&self, pool: PoolId, block: u64, content: &mut block::Block) -> bool {
        self.cache.pool_of(&self.disk, pool).is_ok_and(|pool| {
            let off = block.saturating_mul(BLOCK_BYTES);
            let remainder = self.look_up(&pool, content, off);
            remainder
                .is_none_or(|mut remainder| self.read_pending(&pool, &mut remainder, content, off))
        })
    }
}

impl BlockDevice for CachedDisk {
    fn size(&self) -> u64 {
        self.backing.size()
    }

    /// Removes blocks beyond a new end: they may come back with another content.
    fn refresh_size(&self) -> io::Result<u64> {
        let old = self.size();
        let new = self.backing.refresh_size()?;
        drop(self.begin_write(new, old.saturating_sub(new)));
        Ok(new)
    }

    /// Invalidates the new range, including the last block: its cached content ended at the old end.
    fn grow(&self, size: u64) -> io::Result<u64> {
        let old = self.size();
        let new = self.backing.grow(size)?;
        drop(self.begin_write(old, new.saturating_sub(old)));
        Ok(new)
    }

    fn read_at(&self, buf: &mut [u8], off: u64) -> io::Result<()> {
        self.read_into(&self.pool, buf, off)
    }

    fn write_at(&self, buf: &[u8], off: u64, fua: bool) -> io::Result<()> {
        check_range(self.size(), off, len(buf))?;
        let guard = self.begin_write(off, len(buf));
        self.backing.write_at(buf, off, fua)?;
        guard.completed(buf);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.backing.flush()
    }

    fn discard(&self, off: u64, len: u64) -> io::Result<()> {
        check_range(self.size(), off, len)?;
        let _guard = self.begin_write(off, len);
        self.backing.discard(off, len)
    }

    fn write_zeroes(&self, off: u64, len: u64, fua: bool, may_unmap: bool) -> io::Result<()> {
        check_range(self.size(), off, len)?;
        let _guard = self.begin_write(off, len);
        self.backing.write_zeroes(off, len, fua, may_unmap)
    }

    fn write_zeroes_fast(&self, off: u64, len: u64, fua: bool, may_unmap: bool) -> io::Result<()> {
        check_range(self.size(), off, len)?;
        let _guard = self.begin_write(off, len);
        self.backing.write_zeroes_fast(off, len, fua, may_unmap)
    }

    fn sync_failure(&self) -> Option<String> {
        self.backing.sync_failure()
    }
}

// A read: [`CachedDisk::look_up`] copies cached blocks. Then blocks on the SSD are read in one batch. The missing range is read
// from the backing store in one piece ([`CachedDisk::begin_fill`]). In inclusive mode it is inserted
// ([`CachedDisk::end_fill`]). Front ends that do not wait read between the last two themselves; [`CachedDisk::finish`] does all
// of it for those that wait.

/// The most blocks of one batch of SSD reads.
const SSD_READS: usize = 32;

impl CachedDisk {
    /// Copies blocks that are cached in memory; `None` when none is missing.
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

    /// Begins to read the missing range of a request; `None` when nothing is missing. No block may be pending on the SSD.
    pub(crate) fn begin_fill(
        &self,
        remainder: &MissRemainder,
        off: u64,
        count: u64,
    ) -> Option<MissFill> {
        let missing = remainder.missing.clone()?;
        let (from, to) = (missing.start * BLOCK_BYTES, missing.end * BLOCK_BYTES);
        Some(match self.mode {
            // Whole blocks are read, so that they can be inserted. If the disk has shrunk meanwhile, only the requested range
            // is read.
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

    /// Counts a finished read, inserts its whole blocks, and records that the guest holds them.
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
                // A block that is not inserted is read again later.
                let _ = self.cache.insert(&self.disk, pool, block, content, *token);
            }
            self.disk.served(block, content, *token);
        }
    }

    /// Reads the blocks that [`look_up`](Self::look_up) did not find in memory.
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
    fn read_into(&self, pool: &PoolHandle, buf: &mut [u8], off: u64) -> io::Result<()> {
        check_range(self.size(), off, len(buf))?;
        match self.look_up(pool, buf, off) {
            None => Ok(()),
            Some(remainder) => self.finish(pool, remainder, buf, off),
        }
    }

    /// Reads blocks on the SSD. Returns `true` when nothing is missing then.
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
        // The time of an abandoned read tells nothing about others.
        if let Some(owner) = owner.filter(|_| answers) {
            self.cache.ssd_was_read(&self.disk, &owner, begun, served);
        }
        served
    }

    /// Reads blocks on the SSD in one batch. Returns `false` when it does not answer.
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
        // Validate the blocks after the tokens were taken.
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

/// The parts of a request by block: the block's number, the part's offset in the block, the part.
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

// The unanswered part of a read, and its fill.

/// The part of a read that the cache did not answer from memory.
#[derive(Default)]
pub(crate) struct MissRemainder {
    /// From the first missing block to the last.
    pub(super) missing: Option<Range<u64>>,
    /// Blocks on the SSD.
    pub(super) pending: Vec<(u64, PendingSsdRead)>,
    /// Blocks of the request that are in its buffer.
    pub(crate) copied: usize,
    /// The pool for missing blocks; `None`: the disk's own.
    pub(crate) pool: Option<PoolHandle>,
}

impl MissRemainder {
    /// Must blocks be read from the SSD store first?
    pub(crate) fn is_on_ssd(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Blocks that must be read from the SSD store.
    #[cfg(any(test, feature = "lab"))]
    pub(crate) fn on_ssd(&self) -> u64 {
        u64::try_from(self.pending.len()).unwrap_or(u64::MAX)
    }

    fn lacks(&mut self, block: u64) {
        self.missing = Some(match self.missing.take() {
            None => block..block + 1,
            Some(m) => m.start.min(block)..m.end.max(block + 1),
        });
    }
}

/// A read of the backing store, and what it may insert.
pub(crate) struct MissFill {
    /// The range to read from the disk, in bytes.
    pub(crate) span: Range<u64>,
    /// The first block that it reads completely.
    pub(super) first: u64,
    /// A token for each block from there on. Empty when neither the cache nor the residency table wants them.
    pub(super) tokens: Vec<FillToken>,
    /// Are the blocks inserted?
    inserts: bool,
    /// The pool for insertion and for counting the read; `None`: the disk's own.
    pub(crate) pool: Option<PoolHandle>,
    /// The timed read of the disk; `None` without a cache.
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

    /// Bytes to read.
    pub(crate) fn len(&self) -> usize {
        index(self.span.end - self.span.start)
    }

    /// The place of its bytes in the buffer of a request at `off`; `None` when they do not lie inside.
    pub(crate) fn range_in(&self, buf: &[u8], off: u64) -> Option<Range<usize>> {
        (self.span.start >= off && self.span.end <= off + len(buf))
            .then(|| index(self.span.start - off)..index(self.span.end - off))
    }

    /// Copies the requested part of the read content into the buffer of a request at `off`.
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
