//! Opens, replaces and resizes the SSD store, and handles its failure.

use super::pool::PoolHandle;
use super::ssd_threads;
use super::state::{Cache, random};
use crate::config::SsdConfig;
use crate::error::{CacheError, exact};
use crate::index::SlotRef;
use crate::store::{Device, EXTENT_SLOTS, FileDevice, Foreign, SsdLog, SsdStore};
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Threads that write to the SSD: while one waits for its segments, the other prepares the next.
const WRITERS: usize = 2;

/// The longest wait for users of a replaced store.
pub(super) const REPLACE_TIMEOUT: Duration = Duration::from_secs(30);

/// A shrunk store, and its extents beyond the new end.
type Shrunk = (Arc<SsdStore>, Range<u32>);

impl Cache {
    pub(super) fn open_ssd(self: &Arc<Self>, config: &SsdConfig) -> Result<(), CacheError> {
        has_size(config.bytes)?;
        let failed = |source| CacheError::Ssd {
            path: config.path.clone(),
            source,
        };
        let foreign = Foreign::of(config);
        let device = FileDevice::open(&config.path, config.bytes, foreign).map_err(failed)?;
        let seed = device.seed().map_or_else(random, Ok).map_err(failed)?;
        self.start_ssd_with(Box::new(device), config.bytes, WRITERS, seed)
            .map_err(failed)
    }

    /// Starts an SSD store on a device, where there is none. Without writers, only [`write_ssd`](Self::write_ssd) writes: for
    /// tests and models that must be reproducible.
    ///
    /// # Errors
    /// If the device is too small, or threads cannot be started.
    #[cfg(any(test, feature = "lab"))]
    pub fn start_ssd(
        self: &Arc<Self>,
        device: Box<dyn Device>,
        bytes: u64,
        writers: usize,
    ) -> io::Result<()> {
        self.start_ssd_with(device, bytes, writers, random()?)
    }

    fn start_ssd_with(
        self: &Arc<Self>,
        device: Box<dyn Device>,
        bytes: u64,
        writers: usize,
        seed: u64,
    ) -> io::Result<()> {
        let bytes = device.grow(bytes)?;
        let store = Arc::new(SsdStore::new(device, bytes, seed));
        store.set_writers(writers);
        for n in 0..writers {
            self.start_for_ssd(format!("ssd-put-{n}"), &store, ssd_threads::write)?;
        }
        if writers > 0 {
            self.start_for_ssd("ssd-watch".into(), &store, ssd_threads::watch)?;
        }
        let _change = self.ssd_change.lock();
        self.stores.ssd.store(Some(store));
        Ok(())
    }

    /// Starts a thread that runs until the store is closed. On an error the store is closed.
    fn start_for_ssd(
        self: &Arc<Self>,
        name: String,
        store: &Arc<SsdStore>,
        work: fn(&Weak<Self>, &Arc<SsdStore>),
    ) -> io::Result<()> {
        let (cache, ssd) = (Arc::downgrade(self), Arc::clone(store));
        let started = std::thread::Builder::new()
            .name(name)
            .spawn(move || work(&cache, &ssd));
        started.map(|_| ()).inspect_err(|_| {
            store.close(None);
        })
    }

    /// Removes the SSD store and its blocks.
    fn stop_ssd(&self) {
        let _change = self.ssd_change.lock();
        if let Some(ssd) = self.stores.ssd.load_full() {
            ssd.close(None);
            self.sweep_ssd();
        }
        self.stores.ssd.store(None);
    }

    /// Replaces the SSD store. Hold `ssd_resize`, but no contended lock, since this opens and closes devices.
    pub(super) fn replace_ssd(self: &Arc<Self>, ssd: Option<SsdConfig>) -> Result<(), CacheError> {
        // Check before the old store is closed.
        ssd.as_ref().map_or(Ok(()), |ssd| has_size(ssd.bytes))?;
        self.registry.lock().config.ssd.clone_from(&ssd);
        let old = self.stores.ssd.load_full().map(|old| old.device_in_use());
        self.stop_ssd();
        // The users of the old store hold the lock on the same file. The last one removes the file.
        let start = Instant::now();
        while old.as_ref().is_some_and(|old| old.strong_count() > 0)
            && start.elapsed() < REPLACE_TIMEOUT
        {
            std::thread::sleep(Duration::from_millis(1));
        }
        let opened = ssd.map_or(Ok(()), |ssd| self.open_ssd(&ssd));
        self.registry.lock().ssd_refused = opened.as_ref().err().map(ToString::to_string);
        opened
    }

    /// Resizes the SSD store; opens a failed store anew. The caller then empties the extents beyond the new end, by
    /// [`empty_beyond`](Self::empty_beyond). Locks as for [`replace_ssd`](Self::replace_ssd).
    pub(super) fn size_ssd(self: &Arc<Self>, bytes: u64) -> Result<Option<Shrunk>, CacheError> {
        has_size(bytes)?;
        let config = self.registry.lock().config.ssd.clone();
        let path = config.map(|ssd| ssd.path);
        let Some(ssd) = self.stores.working_ssd() else {
            let path = path.ok_or_else(|| CacheError::Refused(NO_SSD.into()))?;
            let anew = SsdConfig::new(path, bytes);
            return self.replace_ssd(Some(anew)).map(|()| None);
        };
        if bytes > ssd.limit() {
            return Err(CacheError::Refused(format!(
                "expected at most {} for the SSD store, found {}: `justitia cache set ssd PATH SIZE` makes it anew with any size, and drops its blocks",
                exact(ssd.limit()),
                exact(bytes)
            )));
        }
        let beyond = ssd.set_capacity(bytes).map_err(|source| CacheError::Ssd {
            path: path.unwrap_or_default(),
            source,
        })?;
        if let Some(config) = &mut self.registry.lock().config.ssd {
            config.bytes = bytes;
        }
        ssd.set_shrinks(!beyond.is_empty());
        Ok((!beyond.is_empty()).then_some((ssd, beyond)))
    }

    /// Counts an error of the SSD store's device. After too many the store is closed, and its pools use memory.
    pub(super) fn ssd_error(&self, ssd: &Arc<SsdStore>, error: &io::Error) {
        tracing::warn!(%error, "the SSD store's device failed; the blocks are dropped");
        if !ssd.failed(error) {
            return;
        }
        let _change = self.ssd_change.lock();
        let current = self.stores.ssd.load_full();
        if current.is_some_and(|current| Arc::ptr_eq(&current, ssd))
            && ssd.close(Some(error.to_string()))
        {
            tracing::error!(%error, "the SSD store has failed; its pools use memory until it is resized (`justitia cache set store ssd SIZE`)");
            self.sweep_ssd();
        }
    }

    /// Removes all blocks of the closed SSD store from the index and from the pools.
    fn sweep_ssd(&self) {
        self.index.sweep(
            &self.stores,
            |_, location| matches!(location.slot(), SlotRef::Ssd(_)),
            |_| (),
            |()| (),
        );
        for pool in self.pools.load().iter().flatten() {
            let mut log = pool.log.lock();
            let closed = log.closed;
            *log = SsdLog::default();
            log.closed = closed;
            pool.ssd_used.store(0, Ordering::Relaxed);
            pool.ssd_admission.reset();
        }
    }
}

const NO_SSD: &str = "expected a cache with an SSD store, found one without: name its path and size in the configuration, in an [ssd] table";

fn has_size(bytes: u64) -> Result<(), CacheError> {
    let none = "expected a size above 0 for the SSD store, found 0: `justitia cache set ssd --remove` takes it away";
    match bytes {
        0 => Err(CacheError::Refused(none.into())),
        _ => Ok(()),
    }
}

/// Ends the writers, which remove the store's file. [`set_ssd`](Cache::set_ssd) also waits for them: call it first if the
/// process exits next.
impl Drop for Cache {
    fn drop(&mut self) {
        if let Some(ssd) = self.stores.ssd.load_full() {
            ssd.close(None);
        }
    }
}

// Empties extents of a destroyed pool, or beyond the end of a shrunk store.

/// The longest wait for pending writes; a slower device has failed.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

impl Cache {
    /// Empties the log of a pool that is being destroyed, and discards its extents. Call it without locks.
    pub(super) fn empty_log(&self, pool: &PoolHandle) {
        let (mut since, mut left) = (Instant::now(), u32::MAX);
        while let Some(ssd) = self.stores.working_ssd() {
            let Some(mut log) = pool.log_on(&ssd) else {
                return;
            };
            for extent in log.extents(&ssd) {
                self.evict_extent(&ssd, pool, &mut log, extent);
            }
            let now = log.len();
            drop(log);
            ssd.discard_retired();
            if now == 0 {
                return;
            }
            // The timeout restarts when a write has ended. Discards do not count.
            if now < left {
                (since, left) = (Instant::now(), now);
            }
            self.wait_for_ssd(&ssd, since);
        }
    }

    fn evict_extent(&self, ssd: &SsdStore, pool: &PoolHandle, log: &mut SsdLog, extent: u32) {
        if log.evict_extent(ssd, &self.index, extent) {
            pool.ssd_used
                .fetch_sub(EXTENT_SLOTS.into(), Ordering::Relaxed);
        }
    }

    /// Waits briefly for pending writes. After the timeout the store has failed.
    fn wait_for_ssd(&self, ssd: &Arc<SsdStore>, since: Instant) {
        if since.elapsed() > WRITE_TIMEOUT {
            let error = io::Error::new(io::ErrorKind::StorageFull, "a write takes over 30 s");
            self.ssd_error(ssd, &error);
        }
        // If writer threads exist, this thread must not hang with them.
        if ssd.has_writers() || !self.write_one(ssd) {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Drops the blocks in extents beyond the end of a shrunk store. Meanwhile no pool gets these extents, and no put evicts.
    /// Hold no contended lock: it waits for pending writes, and discards take long.
    pub(super) fn empty_beyond(&self, ssd: &Arc<SsdStore>, beyond: Range<u32>) {
        let mut left: Vec<_> = beyond.collect();
        let mut since = Instant::now();
        loop {
            let before = left.len();
            left.retain(|extent| !self.is_emptied(ssd, *extent));
            ssd.discard_retired();
            if left.is_empty() || ssd.closed() {
                ssd.set_shrinks(false);
                return;
            }
            if left.len() < before {
                since = Instant::now();
            }
            self.wait_for_ssd(ssd, since);
        }
    }

    /// Empties an extent if it is in use. Returns `true` once it is free.
    fn is_emptied(&self, ssd: &SsdStore, extent: u32) -> bool {
        let Some(pool) = ssd.pool_in_use(extent).and_then(|at| self.pool_at(at)) else {
            return true;
        };
        let Some(mut log) = pool.log_on(ssd) else {
            return true;
        };
        if ssd.pool_in_use(extent) == Some(pool.id.index) {
            self.evict_extent(ssd, &pool, &mut log, extent);
        }
        ssd.pool_in_use(extent).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BLOCK_SIZE;
    use crate::cache::remove::DetachedSlot;
    use crate::config::{CacheConfig, Policy, PoolSpec, StoreKind};
    use crate::model::fault::FaultSsd;
    use justitia_share::Weight;
    use std::sync::mpsc;

    #[test]
    fn late_operations_on_a_replaced_store_do_not_touch_the_next() {
        let cache = Cache::new(CacheConfig::default()).unwrap();
        let vm = cache.add_vm("vm", Weight::default(), Policy::Fifo).unwrap();
        let (store, weight) = (StoreKind::Ssd, Weight::default());
        let pool = cache.create_pool(vm, "container", PoolSpec::of(store, weight));
        let disk = cache.add_disk(vm, "disk").unwrap();
        let disk = cache.attach(disk).unwrap().0;
        let pool = cache.pool(pool.unwrap()).unwrap();
        // Both stores have block 0 in the same slot.
        let start = || {
            let device = Box::new(FaultSsd::new());
            cache.start_ssd(device, 4 << 20, 0).unwrap();
            let token = disk.token(0);
            assert_eq!(
                cache.insert(&disk, &pool, 0, &[1; BLOCK_SIZE], token),
                Ok(())
            );
            let ssd = cache.stores.working_ssd().unwrap();
            assert_eq!(ssd.key(0), disk.key(0).unwrap());
            ssd
        };
        let old = start();
        assert!(pool.log_on(&old).is_some());
        assert!(old.unindex(&cache.index, 0));
        cache.stop_ssd();
        let new = start();
        // Late operations on the old one: a put, an eviction, a writer whose segment is lost, a free.
        assert!(pool.log_on(&old).is_none() && pool.log_on(&new).is_some());
        assert!(!old.unindex(&cache.index, 0));
        cache.free(DetachedSlot::Ssd(old, 0), None);
        assert_eq!(new.live(0), 1);
        cache.audit();
    }

    #[test]
    fn a_cache_that_is_dropped_removes_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ssd");
        let cache = Cache::new(CacheConfig {
            ssd: Some(SsdConfig::new(&path, 4 << 20)),
            ..CacheConfig::default()
        });
        assert!(cache.is_ok() && path.exists());
        drop(cache);
        let start = Instant::now();
        while path.exists() {
            assert!(start.elapsed() < REPLACE_TIMEOUT, "the file is still there");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_failed_store_is_reported_and_reopened_by_a_resize() {
        let dir = tempfile::tempdir().unwrap();
        let cache = Cache::new(CacheConfig {
            ssd: Some(SsdConfig::new(dir.path().join("ssd"), 4 << 20)),
            ..CacheConfig::default()
        })
        .unwrap();
        let state = || {
            let stats = cache.stats();
            (
                stats.stores[1].failed.clone(),
                stats.stores[1].capacity_bytes,
            )
        };
        assert_eq!(state(), (None, 4 << 20));
        let ssd = cache.stores.working_ssd().unwrap();
        cache.ssd_error(&ssd, &io::ErrorKind::StorageFull.into());
        drop(ssd);
        assert!(state().0.is_some_and(|why| why.contains("storage")));
        cache.resize(StoreKind::Ssd, 2 << 20).unwrap();
        assert_eq!(state(), (None, 2 << 20));
        // It cannot be opened a second time, as store or as image.
        let path = dir.path().join("ssd");
        let image = crate::backing::RawImage::open(&path, crate::backing::OpenOptions::default());
        assert!(
            image
                .err()
                .is_some_and(|e| e.to_string().contains("in use"))
        );
        // Without any, the error says what to do.
        cache.set_ssd(None).unwrap();
        let none = cache.resize(StoreKind::Ssd, 1 << 20).unwrap_err();
        assert!(none.to_string().contains("[ssd]"), "{none}");
    }

    /// A cache with an SSD store of 16 MiB that only [`Cache::write_ssd`] writes to, and in it a pool of this many blocks.
    fn filled(blocks: u64) -> (Arc<Cache>, FaultSsd, PoolHandle) {
        let cache = Cache::new(CacheConfig::of_memory(64 << 12)).unwrap();
        let device = FaultSsd::new();
        cache
            .start_ssd(Box::new(device.clone()), 16 << 20, 0)
            .unwrap();
        let vm = cache.add_vm("vm", Weight::default(), Policy::Fifo).unwrap();
        let spec = PoolSpec::of(StoreKind::Ssd, Weight::default());
        let id = cache.create_pool(vm, "container", spec).unwrap();
        let pool = cache.pool(id).unwrap();
        let disk = cache.add_disk(vm, "disk").unwrap();
        let disk = cache.attach(disk).unwrap().0;
        for block in 0..blocks {
            let token = disk.token(block);
            let content = [1; BLOCK_SIZE];
            assert_eq!(cache.insert(&disk, &pool, block, &content, token), Ok(()));
            cache.write_ssd();
        }
        (cache, device, pool)
    }

    /// The contended locks that are taken while the device discards, and the number of discards.
    fn locks_during_discards(
        cache: &Arc<Cache>,
        device: &FaultSsd,
        pool: &PoolHandle,
    ) -> mpsc::Receiver<[bool; 3]> {
        let (tell, told) = mpsc::channel();
        let (other, pool) = (Arc::clone(cache), Arc::clone(pool));
        *device.during_discard.lock() = Some(Box::new(move |_| {
            let admission = {
                let other = Arc::clone(&other);
                let (took, free) = mpsc::channel();
                std::thread::spawn(move || {
                    drop(
                        other
                            .admission_lock
                            .lock(crate::cache::state::highest_weight()),
                    );
                    took.send(())
                });
                free.recv_timeout(Duration::from_secs(5)).is_err()
            };
            let registry = !other.registry.is_free();
            tell.send([registry, admission, !pool.log.is_free()])
                .unwrap();
        }));
        told
    }

    #[test]
    fn no_lock_is_held_while_the_device_discards() {
        let extents = 4 * u64::from(EXTENT_SLOTS);
        let (cache, device, pool) = filled(extents + 16);
        let told = locks_during_discards(&cache, &device, &pool);
        cache.destroy_pool(pool.id).unwrap();
        assert_eq!(told.try_recv(), Ok([false; 3]));
        let (cache, device, pool) = filled(extents);
        let told = locks_during_discards(&cache, &device, &pool);
        cache.resize(StoreKind::Ssd, 256 << 10).unwrap();
        assert_eq!(told.try_recv(), Ok([false; 3]));
        cache.audit();
        // Neighbours are discarded at once, and free when the store grows again.
        assert_eq!(device.discards.load(Ordering::SeqCst), 1);
        cache.resize(StoreKind::Ssd, 16 << 20).unwrap();
        let ssd = cache.stores.working_ssd().unwrap();
        assert_eq!(ssd.free_extents(), 63);
        cache.audit();
    }

    #[test]
    fn the_registry_is_free_while_blocks_of_the_ssd_are_read_to_be_moved() {
        let (cache, device, pool) = filled(u64::from(EXTENT_SLOTS));
        let spec = PoolSpec::of(StoreKind::Ssd, Weight::default());
        let to = cache.create_pool(pool.vm, "other", spec).unwrap();
        let disk = *cache.registry.lock().disks.keys().next().unwrap();
        let (tell, told) = mpsc::channel();
        let other = Arc::clone(&cache);
        *device.meanwhile.lock() = Some(Box::new(move |_| {
            tell.send(other.registry.is_free()).unwrap();
        }));
        assert!(cache.migrate(disk, 0..64, to).unwrap() > 0);
        assert_eq!(told.try_recv(), Ok(true));
        cache.audit();
    }

    /// Such a put would evict 2 MiB several times over, free no usable slot, and wait for the logs that are emptied.
    #[test]
    fn no_put_evicts_while_the_store_shrinks() {
        let extents = 64 * u64::from(EXTENT_SLOTS);
        let (cache, device, pool) = filled(extents);
        let spec = PoolSpec::of(StoreKind::Ssd, Weight::default());
        let other = cache.create_pool(pool.vm, "other", spec).unwrap();
        let other = cache.pool(other).unwrap();
        let disk = cache.add_disk(pool.vm, "other").unwrap();
        let disk = cache.attach(disk).unwrap().0;
        let put = move |cache: &Arc<Cache>| {
            let token = disk.token(0);
            let content = [1; BLOCK_SIZE];
            cache.insert(&disk, &other, 0, &content, token).is_ok()
        };
        let (tell, told) = mpsc::channel();
        let (meanwhile, again) = (Arc::clone(&cache), put.clone());
        *device.during_discard.lock() = Some(Box::new(move |_| {
            tell.send(again(&meanwhile)).unwrap();
        }));
        cache.resize(StoreKind::Ssd, 8 << 20).unwrap();
        assert_eq!(told.try_recv(), Ok(false));
        assert_eq!(pool.count.evictions.get(), 0);
        assert!(put(&cache), "afterwards it does");
        cache.audit();
    }

    #[test]
    fn others_change_the_cache_while_a_pool_is_emptied() {
        let cache = Cache::new(CacheConfig::default()).unwrap();
        let device = FaultSsd::new();
        device.grow(4 << 20).unwrap();
        let clone = Box::new(device.clone());
        cache.start_ssd(clone, 4 << 20, 0).unwrap();
        let vm = cache.add_vm("vm", Weight::default(), Policy::Fifo).unwrap();
        let spec = PoolSpec::of(StoreKind::Ssd, Weight::default());
        let id = cache.create_pool(vm, "container", spec).unwrap();
        let pool = cache.pool(id).unwrap();
        let disk = cache.add_disk(vm, "disk").unwrap();
        let disk = cache.attach(disk).unwrap().0;
        for block in 0..u64::from(EXTENT_SLOTS) {
            let token = disk.token(block);
            let content = [1; BLOCK_SIZE];
            assert_eq!(cache.insert(&disk, &pool, block, &content, token), Ok(()));
            cache.write_ssd();
        }
        let (tell, told) = mpsc::channel();
        let other = cache.clone();
        *device.during_discard.lock() = Some(Box::new(move |_| {
            let free = other.registry.is_free();
            // Other threads do not find it any more.
            let again = free.then(|| other.destroy_pool(id).is_err());
            tell.send((free, again)).unwrap();
        }));
        cache.destroy_pool(id).unwrap();
        assert_eq!(told.try_recv(), Ok((true, Some(true))));
        assert_eq!(cache.stats().vms[0].pools.len(), 1);
        cache.audit();
    }
}
