//! A disk that is read through the cache.

use super::read::index;
use crate::block::{self, BLOCK_BYTES, len};
use crate::block_dev::{Disk, check_range};
use crate::cache::{Cache, DiskHandle, PoolHandle, WriteGuard};
use crate::config::Mode;
use crate::error::CacheError;
use crate::ids::{DiskId, PoolId};
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

    /// The backing store.
    pub(crate) fn backing(&self) -> &dyn Disk {
        &self.backing
    }

    /// The cache that this disk uses.
    #[must_use]
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Reads what the cache has in memory, and never waits: `true` when that was everything. Otherwise, too,
    /// it counts as looked up, and what was taken out of the cache (exclusive mode) is gone.
    ///
    /// A range beyond the disk is not in the cache.
    #[must_use]
    pub fn read_cached(&self, buf: &mut [u8], off: u64) -> bool {
        check_range(self.size(), off, len(buf)).is_ok()
            && self.look_up(&self.pool, buf, off).is_none()
    }

    /// Reads for a container: what is missing is filled into `pool` (inclusive mode).
    ///
    /// # Errors
    /// What the backing store reports; [`io::ErrorKind::InvalidInput`] when the pool does not exist or
    /// belongs to another VM.
    pub fn read_for(&self, pool: PoolId, buf: &mut [u8], off: u64) -> io::Result<()> {
        let pool = self
            .cache
            .pool_of(&self.disk, pool)
            .map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        self.read_into(&pool, buf, off)
    }

    /// Takes a clean block that the client evicted (the paper's put). `true` when it was cached; it is not
    /// when there is no room for it, when a write to its range is in flight, or when the pool is not the
    /// disk's VM's.
    ///
    /// The content must be what a read of the backing store would return: the client vouches for it.
    pub fn put(&self, pool: PoolId, block: u64, content: &block::Block) -> bool {
        let inside = block
            .checked_add(1)
            .and_then(|end| end.checked_mul(BLOCK_BYTES))
            .is_some_and(|end| end <= self.backing.size());
        let token = self.disk.token(block);
        inside
            && self
                .cache
                .pool_of(&self.disk, pool)
                .is_ok_and(|pool| self.cache.insert(&self.disk, &pool, block, content, token))
    }

    /// Removes what the cache holds of a byte range, rounded outwards: for changes that did not come
    /// through this disk (a snapshot revert, an external writer).
    pub fn invalidate(&self, off: u64, len: u64) {
        drop(self.begin_write(off, len));
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
    pub fn get(&self, pool: PoolId, block: u64, content: &mut block::Block) -> bool {
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

    fn read_at(&self, buf: &mut [u8], off: u64) -> io::Result<()> {
        self.read_into(&self.pool, buf, off)
    }

    fn write_at(&self, buf: &[u8], off: u64, fua: bool) -> io::Result<()> {
        check_range(self.size(), off, len(buf))?;
        let _guard = self.begin_write(off, len(buf));
        self.backing.write_at(buf, off, fua)
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
            let step = PREFETCH_STEP.min(end.next_multiple_of(BLOCK_BYTES).min(self.size()) - at);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BLOCK_SIZE;
    use crate::block::Block;
    use crate::block_dev::RamDisk;
    use crate::config::{CacheConfig, Policy, PoolSpec, StoreKind};
    use justitia_share::Weight;

    fn disk(mode: Mode) -> (Arc<Cache>, CachedDisk, PoolId) {
        let cache = Cache::new(CacheConfig {
            memory_bytes: 64 * BLOCK_BYTES,
            ..CacheConfig::default()
        })
        .unwrap();
        let vm = cache.add_vm("vm", Weight::default(), Policy::Fifo).unwrap();
        let pool = cache.default_pool(vm).unwrap();
        let id = cache.add_disk(vm, "disk").unwrap();
        let backing = Arc::new(RamDisk::new(16 * BLOCK_SIZE + 100));
        let disk = CachedDisk::new(backing, cache.clone(), id, mode).unwrap();
        (cache, disk, pool)
    }

    fn counts(cache: &Cache) -> crate::cache::Counts {
        cache.stats().vms[0].pools[0].counts
    }

    #[test]
    fn a_read_fills_and_the_next_is_a_hit_counted_once() {
        let (cache, disk, _) = disk(Mode::Inclusive);
        disk.write_at(&[7; 3 * BLOCK_SIZE], 0, false).unwrap();
        let mut buf = [0; 2 * BLOCK_SIZE];
        disk.read_at(&mut buf, 100).unwrap();
        assert_eq!((counts(&cache).gets, counts(&cache).puts), (3, 3));
        buf.fill(0);
        assert!(disk.read_cached(&mut buf, 100));
        assert_eq!(buf, [7; 2 * BLOCK_SIZE]);
        let found = counts(&cache);
        assert_eq!((found.gets, found.memory_hits), (6, 3));
        // The end of the disk is no whole block: read, but not cached.
        let end = 16 * BLOCK_BYTES + 50;
        disk.read_at(&mut buf[..50], end).unwrap();
        assert!(!disk.read_cached(&mut buf[..50], end));
        assert!(disk.read_at(&mut buf, end).is_err());
    }

    #[test]
    fn an_exclusive_hit_takes_the_block_out() {
        let (cache, disk, pool) = disk(Mode::Exclusive);
        let mut buf: Block = [0; BLOCK_SIZE];
        disk.read_at(&mut buf, 0).unwrap();
        assert_eq!(counts(&cache).puts, 0, "misses do not fill");
        assert!(disk.put(pool, 3, &buf));
        assert!(!disk.put(pool, 16, &buf), "the partial block at the end");
        assert!(disk.get(pool, 3, &mut buf));
        assert!(!disk.get(pool, 3, &mut buf));
        assert!(disk.put(pool, 3, &buf));
        disk.discard(3 * BLOCK_BYTES + 1, 1).unwrap();
        assert!(!disk.get(pool, 3, &mut buf), "rounded outwards");
        assert_eq!(counts(&cache).invalidations, 1);
    }

    #[test]
    fn a_pool_of_an_ssd_that_is_not_there_uses_memory() {
        let (cache, disk, pool) = disk(Mode::Inclusive);
        let spec = PoolSpec {
            store: StoreKind::Ssd,
            ..PoolSpec::default()
        };
        cache.set_pool(pool, spec).unwrap();
        let mut buf = [0; BLOCK_SIZE];
        disk.read_at(&mut buf, 0).unwrap();
        assert!(disk.read_cached(&mut buf, 0));
        let stats = cache.stats();
        assert_eq!(stats.stores.len(), 1);
        assert_eq!(stats.vms[0].pools[0].memory_bytes, BLOCK_BYTES);
    }

    /// A real file, with its writer threads and rings.
    #[test]
    fn blocks_come_back_from_an_ssd_store() {
        let (cache, disk, pool) = disk(Mode::Inclusive);
        let dir = tempfile::tempdir().unwrap();
        let config = crate::config::SsdConfig {
            path: dir.path().join("ssd"),
            bytes: 4 << 20,
        };
        cache.set_ssd(Some(config.clone())).unwrap();
        let spec = PoolSpec {
            store: StoreKind::Ssd,
            ..PoolSpec::default()
        };
        cache.set_pool(pool, spec).unwrap();
        let content: Vec<u8> = (0..16 * BLOCK_SIZE)
            .map(|i| u8::try_from(i / 64 % 251).unwrap())
            .collect();
        disk.write_at(&content, 0, false).unwrap();
        let mut buf = vec![0; content.len()];
        // A unit is sixteen blocks: the second round finds it on the device, once it is there.
        disk.read_at(&mut buf, 0).unwrap();
        let start = std::time::Instant::now();
        while disk.read_cached(&mut buf, 0) {
            assert!(start.elapsed().as_secs() < 30, "never written");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let before = counts(&cache).ssd_hits;
        buf.fill(0);
        disk.read_at(&mut buf, 0).unwrap();
        assert_eq!(buf, content);
        assert_eq!(counts(&cache).ssd_hits - before, 16);
        // Another process cannot use it.
        let second = Cache::new(CacheConfig {
            ssd: Some(config),
            ..CacheConfig::default()
        });
        assert!(matches!(second, Err(CacheError::Ssd { .. })));
        cache.drop_blocks(pool, StoreKind::Ssd).unwrap();
        while cache.stats().vms[0].pools[0].ssd_bytes > 0 {
            assert!(start.elapsed().as_secs() < 30, "never free");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        disk.read_at(&mut buf, 0).unwrap();
        assert_eq!(buf, content);
    }
}
