//! VMs: added, changed, removed.

use super::registry::VmEntry;
use super::state::Cache;
use crate::config::{Policy, PoolSpec};
use crate::error::CacheError;
use crate::ids::{PoolId, VmId};
use justitia_share::Weight;

impl Cache {
    /// Adds a VM, with one pool in memory for the blocks that belong to no container.
    ///
    /// # Errors
    /// When there are too many pools.
    pub fn add_vm(&self, name: &str, weight: Weight, policy: Policy) -> Result<VmId, CacheError> {
        let mut registry = self.registry.lock();
        let id = VmId(registry.number());
        registry.vms.insert(
            id,
            VmEntry {
                name: name.to_owned(),
                weight,
                policy,
                pools: Vec::new(),
                disks: Vec::new(),
                residency: None,
            },
        );
        self.new_pool(&mut registry, id, "default", PoolSpec::default())
            .inspect_err(|_| {
                registry.vms.remove(&id);
            })?;
        Ok(id)
    }

    /// Removes a VM with its pools, its disks and all their blocks. Others use and change the cache meanwhile.
    ///
    /// # Errors
    /// When there is no such VM.
    pub fn remove_vm(&self, vm: VmId) -> Result<(), CacheError> {
        let gone = {
            let mut registry = self.registry.lock();
            let gone = registry.vms.remove(&vm).ok_or(CacheError::NoVm(vm))?;
            self.refresh(&registry);
            gone.disks.iter().for_each(|disk| disk.close());
            gone.pools.iter().for_each(|pool| pool.close());
            gone
        };
        // All of it before the lock is taken again: who has it may wait for slots of these pools.
        gone.disks.iter().for_each(|disk| self.purge(disk));
        gone.pools.iter().for_each(|pool| self.empty_pool(pool));
        let mut registry = self.registry.lock();
        for disk in &gone.disks {
            registry.forget_disk(disk);
        }
        gone.pools.iter().for_each(|pool| self.forget_pool(pool));
        Ok(())
    }

    /// Changes a VM's weight. The occupancy follows as blocks are put.
    ///
    /// # Errors
    /// When there is no such VM.
    pub fn set_vm_weight(&self, vm: VmId, weight: Weight) -> Result<(), CacheError> {
        let mut registry = self.registry.lock();
        registry.vm(vm)?.weight = weight;
        self.refresh(&registry);
        Ok(())
    }

    /// Changes a VM's eviction policy. Its blocks stay.
    ///
    /// # Errors
    /// When there is no such VM.
    pub fn set_vm_policy(&self, vm: VmId, policy: Policy) -> Result<(), CacheError> {
        let mut registry = self.registry.lock();
        let vm = registry.vm(vm)?;
        vm.policy = policy;
        for pool in &vm.pools {
            pool.policy.lock().set_policy(policy);
        }
        Ok(())
    }

    /// The pool that takes the VM's blocks that belong to no container.
    ///
    /// # Errors
    /// When there is no such VM.
    pub fn default_pool(&self, vm: VmId) -> Result<PoolId, CacheError> {
        let mut registry = self.registry.lock();
        let first = registry.vm(vm)?.pools.first().map(|p| p.id);
        first.ok_or(CacheError::NoVm(vm))
    }
}
