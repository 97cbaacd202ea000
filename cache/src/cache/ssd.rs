//! The life of the SSD store: opened, replaced, failed.

use super::state::{Cache, random};
use super::{ssd_watch, ssd_writer};
use crate::config::SsdConfig;
use crate::error::CacheError;
use crate::index::SlotRef;
use crate::store::{Device, FileDevice, Foreign, SsdLog, SsdStore};
use std::io;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Threads that write to the SSD: while one waits for its segments, the other prepares the next.
const WRITERS: usize = 2;

/// How long the users of a replaced store may hold it.
pub(super) const REPLACE_TIMEOUT: Duration = Duration::from_secs(30);

/// A store that has shrunk, and its extents beyond the new end.
type Shrunk = (Arc<SsdStore>, Range<u32>);

impl Cache {
    pub(super) fn open_ssd(self: &Arc<Self>, config: &SsdConfig) -> Result<(), CacheError> {
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

    /// Takes a device into use as SSD store; there is none before. Without writers, only
    /// [`write_one`](Self::write_one) writes: for tests and models that must run the same way twice.
    pub(crate) fn start_ssd(
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
            self.start_for_ssd(format!("ssd-put-{n}"), &store, ssd_writer::run)?;
        }
        if writers > 0 {
            self.start_for_ssd("ssd-watch".into(), &store, ssd_watch::run)?;
        }
        let _change = self.ssd_change.lock();
        self.stores.ssd.store(Some(store));
        Ok(())
    }

    /// Starts a thread that works for the store until it is closed; on an error it is.
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
    pub(super) fn stop_ssd(&self) {
        let _change = self.ssd_change.lock();
        if let Some(ssd) = self.stores.ssd.load_full() {
            ssd.close(None);
            self.sweep_ssd();
        }
        self.stores.ssd.store(None);
    }

    /// Replaces the SSD store. Hold `ssd_resize`, and nothing that others need: devices are opened and closed.
    pub(super) fn replace_ssd(self: &Arc<Self>, ssd: Option<SsdConfig>) -> Result<(), CacheError> {
        self.registry.lock().config.ssd.clone_from(&ssd);
        let old = self.stores.ssd.load_full().map(|old| old.device_in_use());
        self.stop_ssd();
        // The users of the old store have the same file locked. The last one removes it.
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

    /// Gives the SSD store another size; one that has failed is opened anew. What lies beyond a new end is still to be
    /// dropped, by [`empty_beyond`](Self::empty_beyond). Hold as for [`replace_ssd`](Self::replace_ssd).
    pub(super) fn size_ssd(self: &Arc<Self>, bytes: u64) -> Result<Option<Shrunk>, CacheError> {
        let config = self.registry.lock().config.ssd.clone();
        let path = config.map(|ssd| ssd.path);
        let Some(ssd) = self.stores.working_ssd() else {
            let anew = SsdConfig {
                path: path.ok_or(CacheError::NoSsd)?,
                bytes,
                overwrite: false,
            };
            return self.replace_ssd(Some(anew)).map(|()| None);
        };
        if bytes > ssd.limit() {
            return Err(CacheError::SsdLimit {
                limit: ssd.limit(),
                found: bytes,
            });
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

    /// The SSD store's device has failed at something. After too much of that the store is closed, and its
    /// pools use memory.
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

    /// Removes everything on the closed SSD store from the index and from the pools.
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
            pool.worth.reset();
        }
    }
}

/// Ends the writers, which remove the store's file. [`set_ssd`](Cache::set_ssd) also waits for them: a process that ends
/// at once calls it first.
impl Drop for Cache {
    fn drop(&mut self) {
        if let Some(ssd) = self.stores.ssd.load_full() {
            ssd.close(None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BLOCK_SIZE;
    use crate::cache::detached::DetachedSlot;
    use crate::config::{CacheConfig, Policy, PoolSpec, StoreKind};
    use crate::model::fault::FaultSsd;
    use justitia_share::Weight;

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
            ssd: Some(SsdConfig {
                path: path.clone(),
                bytes: 4 << 20,
                overwrite: false,
            }),
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
            ssd: Some(SsdConfig {
                path: dir.path().join("ssd"),
                bytes: 4 << 20,
                overwrite: false,
            }),
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
        let image = crate::backing::RawDisk::open(&path, crate::backing::OpenOptions::default());
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
}
