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
