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

/// A disk of a VM, read through the cache. Writes go to the backing store and remove what they touch.
///
/// The cache never answers for durability: [`flush`](BlockDevice::flush) and `fua` are the backing store's.
pub struct CachedDisk {
    pub(super) backing: Arc<dyn BlockDevice>,
    pub(super) cache: Arc<Cache>,
    pub(super) disk: DiskHandle,
    /// The VM's first: what clients that know no containers read.
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

    /// What the cache knows it by, or knew.
    pub(crate) fn id(&self) -> DiskId {
        self.disk.id
    }

    /// What the cache knows it by; `None` when it is not cached any more.
    pub(crate) fn disk_id(&self) -> Option<DiskId> {
        (!self.disk.is_closed()).then_some(self.disk.id)
    }

    /// The backing store.
    pub(crate) fn backing(&self) -> &dyn BlockDevice {
        &*self.backing
    }

    /// Reads what the cache has in memory, and never waits: `true` when that was everything. Otherwise, too,
    /// it counts as looked up, and blocks that were found (exclusive mode) are removed.
    ///
    /// A range beyond the disk is not in the cache.
    #[must_use]
    #[cfg(any(test, feature = "lab"))]
    pub fn read_cached(&self, buf: &mut [u8], off: u64) -> bool {
        check_range(self.size(), off, len(buf)).is_ok()
            && self.look_up(&self.pool, buf, off).is_none()
    }

    /// Reads for a container: what is missing is filled into `pool` (inclusive mode).
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

    /// Takes a clean block that the guest evicted (the paper's put), if it is what the guest was served last and the disk
    /// still holds. That is known of disks of VMs that are tracked ([`Cache::track_residency`]), and of whole blocks.
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

    /// Caches a block that the caller has read from the backing store while nothing was written, as a miss does: the
    /// content is believed. `false` when no slot can be had, when a write to its range is in flight, or when the pool is not
    /// the disk's VM's.
    pub fn fill(&self, pool: PoolId, block: u64, content: &block::Block) -> bool {
        let token = self.disk.token(block);
        let pool = self.cache.pool_of(&self.disk, pool);
        let insert = |pool| self.cache.insert(&self.disk, &pool, block, content, token);
        self.has_block(block) && pool.is_ok_and(|pool| insert(pool).is_ok())
    }

    /// Has the disk this block as a whole?
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

    /// Begins a write, discard or write-zeroes of a byte range: the cache holds nothing of it from now on, and nothing
    /// of it is filled until the guard is dropped.
    pub(crate) fn begin_write(&self, off: u64, len: u64) -> WriteGuard {
        let guard = WriteGuard::begin(&self.disk, off, len);
        self.cache.invalidate(&guard);
        guard
    }

    /// The paper's get: one block, from the cache alone. In exclusive mode a hit takes it out. `false` when
    /// the cache does not have it, or the pool is not the disk's VM's.
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

    /// What lies beyond a new end is removed: it may come back with another content.
    fn refresh_size(&self) -> io::Result<u64> {
        let old = self.size();
        let new = self.backing.refresh_size()?;
        drop(self.begin_write(new, old.saturating_sub(new)));
        Ok(new)
    }

    /// What was read up to the old end is not taken for what the last block holds now.
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

// A read: what the cache has is copied ([`CachedDisk::look_up`]); blocks that are on the SSD are read
// together; what is missing is read from the backing store as one piece ([`CachedDisk::begin_fill`]) and, in
// inclusive mode, inserted ([`CachedDisk::end_fill`]). Front ends that do not wait do the reading between the last
// two themselves; [`CachedDisk::finish`] does all of it for those that do.

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
    fn read_into(&self, pool: &PoolHandle, buf: &mut [u8], off: u64) -> io::Result<()> {
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

// What of a read the cache did not answer, and how it is filled in.

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
    /// What is to be read of the disk, in bytes.
    pub(crate) span: Range<u64>,
    /// The first block of which it reads all.
    pub(super) first: u64,
    /// One for each block from there on; none when neither the cache nor the residency table wants them.
    pub(super) tokens: Vec<FillToken>,
    /// Whether the blocks are inserted.
    inserts: bool,
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
