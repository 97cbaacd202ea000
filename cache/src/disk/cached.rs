//! A disk that is read through the cache.

use super::miss::index;
use crate::block::{self, BLOCK_BYTES, MAX_BLOCK, len};
use crate::block_dev::{Disk, check_range};
use crate::cache::{Cache, DiskHandle, PoolHandle, WriteGuard};
use crate::config::Mode;
use crate::error::CacheError;
use crate::ids::{DiskId, PoolId};
use justitia_link::Verdict;
use std::io;
use std::sync::Arc;

/// A disk of a VM, read through the cache. Writes go to the backing store and remove what they touch.
///
/// The cache never answers for durability: [`flush`](Disk::flush) and `fua` are the backing store's.
pub struct CachedDisk {
    pub(super) backing: Arc<dyn Disk>,
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
        backing: Arc<dyn Disk>,
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
    pub(crate) fn backing(&self) -> &dyn Disk {
        &self.backing
    }

    /// Reads what the cache has in memory, and never waits: `true` when that was everything. Otherwise, too,
    /// it counts as looked up, and blocks that were found (exclusive mode) are removed.
    ///
    /// A range beyond the disk is not in the cache.
    #[must_use]
    pub(crate) fn read_cached(&self, buf: &mut [u8], off: u64) -> bool {
        check_range(self.size(), off, len(buf)).is_ok()
            && self.look_up(&self.pool, buf, off).is_none()
    }

    /// Reads for a container: what is missing is filled into `pool` (inclusive mode).
    ///
    /// # Errors
    /// What the backing store reports; [`io::ErrorKind::InvalidInput`] when the pool does not exist or
    /// belongs to another VM.
    pub(crate) fn read_for(&self, pool: PoolId, buf: &mut [u8], off: u64) -> io::Result<()> {
        let pool = self
            .cache
            .pool_of(&self.disk, pool)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        self.read_into(&pool, buf, off)
    }

    /// Takes a clean block that the guest evicted (the paper's put), if it is what the guest was served last and the disk
    /// still holds. That is known of disks of VMs that are tracked ([`Cache::track_residency`]), and of whole blocks.
    ///
    /// Nobody else may change `content` meanwhile: a guest's memory is copied first.
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
    pub(crate) fn holds(&self, block: u64) -> bool {
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
    pub(crate) fn get(&self, pool: PoolId, block: u64, content: &mut block::Block) -> bool {
        self.cache.pool_of(&self.disk, pool).is_ok_and(|pool| {
            let off = block.saturating_mul(BLOCK_BYTES);
            let remainder = self.look_up(&pool, content, off);
            remainder
                .is_none_or(|mut remainder| self.read_pending(&pool, &mut remainder, content, off))
        })
    }
}

impl Disk for CachedDisk {
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

    /// Inclusive: reads what is missing into the cache. Exclusive: asks the backing store, as a block that
    /// the cache held would be taken out by the read that follows, and one that it lacks is not filled.
    fn prefetch(&self, off: u64, len: u64) -> io::Result<()> {
        check_range(self.size(), off, len)?;
        if self.mode == Mode::Exclusive {
            return self.backing.prefetch(off, len);
        }
        let end = off + len;
        let mut buf = Vec::new();
        let mut at = off / BLOCK_BYTES * BLOCK_BYTES;
        while at < end {
            let to = end.next_multiple_of(BLOCK_BYTES).min(self.size());
            // The disk may have become smaller meanwhile.
            let step = PREFETCH_STEP.min(to.saturating_sub(at));
            if step == 0 {
                break;
            }
            let blocks = block::touching(at, step);
            if !blocks.clone().all(|b| self.cache.holds(&self.disk, b)) {
                buf.resize(index(step), 0);
                self.read_into(&self.pool, &mut buf, at)?;
            }
            at += step;
        }
        Ok(())
    }
}

/// Bytes that a prefetch reads at a time.
const PREFETCH_STEP: u64 = 256 << 10;
