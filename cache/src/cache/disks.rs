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
    /// uncached. Others use and change the cache meanwhile.
    ///
    /// # Errors
    /// When there is no such disk.
    pub fn remove_disk(&self, disk: DiskId) -> Result<(), CacheError> {
        let gone = {
            let mut registry = self.registry.lock();
            let vm = registry.disk(disk)?.vm;
            let disks = &mut registry.vm(vm).map_err(|_| CacheError::NoDisk(disk))?.disks;
            let at = disks.iter().position(|of_vm| of_vm.id == disk);
            let gone = disks.remove(at.ok_or(CacheError::NoDisk(disk))?);
            gone.close();
            gone
        };
        self.purge(&gone);
        // Not before: its number may be another's once nobody has it any more.
        self.registry.lock().forget_disk(&gone);
        Ok(())
    }

    /// The disks with their names, and what they are known by.
    pub(crate) fn disks(&self) -> Vec<(String, DiskId, VmId)> {
        let registry = self.registry.lock();
        let disks = registry.vms.values().flat_map(|vm| &vm.disks);
        disks.map(|d| (d.name.clone(), d.id, d.vm)).collect()
    }

    /// A disk, and the pool of its blocks that belong to no container.
    pub(crate) fn attach(&self, disk: DiskId) -> Result<(DiskHandle, PoolHandle), CacheError> {
        let disk = self.registry.lock().disk(disk)?;
        let pool = disk.default_pool.clone();
        Ok((disk, pool))
    }
}
