//! Extents that are emptied: of a pool that is destroyed, or beyond the end of a store that shrinks.

use super::pool::PoolHandle;
use super::state::{Cache, highest_weight};
use crate::store::{EXTENT_SLOTS, SsdStore};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long to wait for writes that are under way; a device that takes longer has failed.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

impl Cache {
    /// Empties the log of a pool that is being destroyed, and tells the device that the content is not
    /// needed.
    pub(super) fn empty_log(&self, pool: &PoolHandle) {
        let start = Instant::now();
        loop {
            let Some(ssd) = self.stores.working_ssd() else {
                return;
            };
            let Some(mut log) = pool.log_on(&ssd).filter(|log| log.len() > 0) else {
                return;
            };
            let extents = log.extents(&ssd);
            for extent in extents {
                if log.evict_extent(&ssd, &self.index, extent) {
                    pool.ssd_used
                        .fetch_sub(EXTENT_SLOTS.into(), Ordering::Relaxed);
                }
            }
            drop(log);
            self.wait_for_ssd(&ssd, start);
        }
    }

    /// Waits a little for writes that are under way; past all patience the store has failed.
    fn wait_for_ssd(&self, ssd: &Arc<SsdStore>, since: Instant) {
        if since.elapsed() > WRITE_TIMEOUT {
            let error = io::Error::new(io::ErrorKind::StorageFull, "a write takes over 30 s");
            self.ssd_error(ssd, &error);
        }
        if !self.write_one(ssd) {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Changes the size of the SSD store. What lies beyond the new end is dropped.
    pub(super) fn resize_ssd(&self, ssd: &Arc<SsdStore>, bytes: u64) -> io::Result<()> {
        let _admission = self.admission_lock.lock(highest_weight());
        let beyond = ssd.set_capacity(bytes)?;
        let start = Instant::now();
        for extent in beyond {
            while let Some(owner) = ssd.pool_in_use(extent) {
                let Some(pool) = self.pool_at(owner) else {
                    break;
                };
                let Some(mut log) = pool.log_on(ssd) else {
                    break;
                };
                // By now it may be another pool's, or free.
                if ssd.pool_in_use(extent) == Some(owner)
                    && log.evict_extent(ssd, &self.index, extent)
                {
                    pool.ssd_used
                        .fetch_sub(EXTENT_SLOTS.into(), Ordering::Relaxed);
                }
                drop(log);
                if ssd.pool_in_use(extent) == Some(owner) {
                    self.wait_for_ssd(ssd, start);
                }
            }
        }
        Ok(())
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
