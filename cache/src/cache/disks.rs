//! Disks: made known, forgotten.

use super::disk::DiskHandle;
use super::pool::PoolHandle;
use super::state::Cache;
use crate::error::CacheError;
use crate::ids::{DiskId, VmId};

impl Cache {
    /// Makes a disk of a VM known. Its blocks are found only through it.
    ///
    /// # Errors
    /// When there is no such VM, or there are too many disks.
    pub fn add_disk(&self, vm: VmId, name: &str) -> Result<DiskId, CacheError> {
        self.registry.lock().add_disk(vm, name)
    }

    /// Forgets a disk and its blocks. A [`CachedDisk`](crate::CachedDisk) that still serves it goes on
    /// uncached.
    ///
    /// # Errors
    /// When there is no such disk.
    pub fn remove_disk(&self, disk: DiskId) -> Result<(), CacheError> {
        let mut registry = self.registry.lock();
        let gone = registry.disk(disk)?;
        registry.disks.remove(&disk);
        registry.vm(gone.vm)?.disks.retain(|d| d.id != disk);
        self.purge(&gone);
        Ok(())
    }

    /// A disk, and the pool of its blocks that belong to no container.
    pub(crate) fn attach(&self, disk: DiskId) -> Result<(DiskHandle, PoolHandle), CacheError> {
        let disk = self.registry.lock().disk(disk)?;
        let pool = disk.default_pool.clone();
        Ok((disk, pool))
    }
}
