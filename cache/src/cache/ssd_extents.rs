//! Extents that are emptied: of a pool that is destroyed, or beyond the end of a store that shrinks.

use super::pool::PoolHandle;
use super::state::Cache;
use crate::store::{EXTENT_SLOTS, SsdLog, SsdStore};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long to wait for writes that are under way; a device that takes longer has failed.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

impl Cache {
    /// Empties the log of a pool that is being destroyed, and tells the device that the content is not
    /// needed. Hold no lock.
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
            // Each write is timed alone, and discards are not.
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

    /// Waits a little for writes that are under way; past all patience the store has failed.
    fn wait_for_ssd(&self, ssd: &Arc<SsdStore>, since: Instant) {
        if since.elapsed() > WRITE_TIMEOUT {
            let error = io::Error::new(io::ErrorKind::StorageFull, "a write takes over 30 s");
            self.ssd_error(ssd, &error);
        }
        // Where threads write, this one must not hang with them.
        if ssd.has_writers() || !self.write_one(ssd) {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Drops what lies in extents beyond the end of a store that has shrunk. They are given to nobody meanwhile, and no put
    /// evicts. Hold no lock that others need: writes may be under way, and discards take long.
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

    /// Empties an extent if it is in use; `true` when it is not any more.
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
    use crate::cache::Cache;
    use crate::config::{CacheConfig, Policy, PoolSpec, StoreKind};
    use crate::model::fault::FaultSsd;
    use crate::store::Device as _;
    use justitia_share::Weight;
    use std::sync::mpsc;

    /// A cache with an SSD store of 16 MiB that only [`Cache::write_ssd`] writes to, and in it a pool of this many blocks.
    fn filled(blocks: u64) -> (Arc<Cache>, FaultSsd, PoolHandle) {
        let cache = Cache::new(CacheConfig {
            memory_bytes: 64 << 12,
            ..CacheConfig::default()
        })
        .unwrap();
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

    /// Which of the locks that others need are taken while the device discards; and how often it does.
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
            let registry = other.registry.try_lock().is_none();
            tell.send([registry, admission, pool.log.try_lock().is_none()])
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
            tell.send(other.registry.try_lock().is_some()).unwrap();
        }));
        assert!(cache.migrate(disk, 0..64, to).unwrap() > 0);
        assert_eq!(told.try_recv(), Ok(true));
        cache.audit();
    }

    /// It would evict 2 MiB several times over, with nothing of it to use, and wait for the logs that are emptied.
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
            let free = other.registry.try_lock().is_some();
            // It is not there any more for anybody else.
            let again = free.then(|| other.destroy_pool(id).is_err());
            tell.send((free, again)).unwrap();
        }));
        cache.destroy_pool(id).unwrap();
        assert_eq!(told.try_recv(), Ok((true, Some(true))));
        assert_eq!(cache.stats().vms[0].pools.len(), 1);
        cache.audit();
    }
}
