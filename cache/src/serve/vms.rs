//! The VMs that are served, by name.

use super::config::DiskConfig;
use super::error::ServeError;
use super::port_target::PortTarget;
use crate::config::PoolSpec;
use crate::frontend::{ContainerTag, Tenant, Volume};
use crate::ids::{DiskId, PoolId, VmId};
use crate::port::NamedPools;
use justitia_link::Serial;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A VM, with the names of its pools and of its cached disks.
pub(super) struct Vm {
    pub(super) id: VmId,
    pub(super) tenant: Arc<Tenant>,
    /// Shared with its port.
    pub(super) pools: Arc<Mutex<NamedPools>>,
    pub(super) disks: BTreeMap<String, DiskId>,
    /// What its port knows its disks by, if it has one.
    pub(super) port_targets: Option<PortTargets>,
}

/// Disks of a VM with a port, by serial.
pub(super) type PortTargets = BTreeMap<Serial, Arc<PortTarget>>;

/// The VMs by name.
#[derive(Default)]
pub(super) struct VmRegistry {
    vms: BTreeMap<String, Vm>,
    /// Names of those that are served uncached by now.
    uncached: BTreeSet<String>,
}

impl VmRegistry {
    pub(super) fn insert(&mut self, name: &str, vm: Vm) {
        self.vms.insert(name.to_owned(), vm);
    }

    /// Is or was there a VM of that name?
    pub(super) fn knows(&self, name: &str) -> bool {
        self.vms.contains_key(name) || self.uncached.contains(name)
    }

    /// Forgets a VM whose disks go on being served, uncached. Returns what the cache knows it by.
    pub(super) fn uncache(&mut self, name: &str) -> Result<VmId, ServeError> {
        let id = self.vm(name)?.id;
        self.vms.remove(name);
        self.uncached.insert(name.to_owned());
        Ok(id)
    }

    /// Forgets a VM. Returns what the cache knows it by; `None` when it does not.
    pub(super) fn remove(&mut self, name: &str) -> Option<VmId> {
        self.uncached.remove(name);
        self.vms.remove(name).map(|vm| vm.id)
    }

    /// Forgets a disk of a VM. Returns what the cache knows it by; `None` when it does not.
    pub(super) fn remove_disk(&mut self, vm: &str, disk: &str) -> Option<DiskId> {
        self.vms.get_mut(vm)?.disks.remove(disk)
    }

    /// The pools that guests have made.
    pub(super) fn pools_of_guests(&self) -> BTreeSet<PoolId> {
        let lists = self.vms.values().map(|vm| &vm.pools);
        lists
            .flat_map(|pools| pools.lock().of_guest().collect::<Vec<_>>())
            .collect()
    }

    pub(super) fn vm(&mut self, name: &str) -> Result<&mut Vm, ServeError> {
        if self.uncached.contains(name) {
            let vm = name.to_owned();
            return Err(ServeError::Uncached { vm });
        }
        let known = list(self.vms.keys());
        self.vms.get_mut(name).ok_or_else(|| ServeError::NoVm {
            found: name.to_owned(),
            known,
        })
    }

    /// The VM of a cached disk, and the disk. Names of disks are unique.
    pub(super) fn disk(&mut self, name: &str) -> Result<(&str, &mut Vm, DiskId), ServeError> {
        let known = list(self.vms.values().flat_map(|vm| vm.disks.keys()));
        let mut found = self.vms.iter_mut().filter_map(|(vm_name, vm)| {
            let id = *vm.disks.get(name)?;
            Some((vm_name.as_str(), vm, id))
        });
        found.next().ok_or_else(|| ServeError::NoDisk {
            found: name.to_owned(),
            known,
        })
    }
}

impl Vm {
    /// The guest can put pages of a disk that is cached, if the VM, whose name is `vm`, has a port that knows its serial.
    pub(super) fn known_to_port(&self, vm: &str, disk: &DiskConfig, volume: &Arc<Volume>) {
        let Some(targets) = &self.port_targets else {
            return;
        };
        match disk.serial.and_then(|serial| targets.get(&serial)) {
            Some(target) => target.set(volume),
            None => tracing::warn!(
                vm,
                disk = disk.name,
                "the guest cannot put pages of a disk that was added to it, until the VM is removed and added again, or the daemon restarted"
            ),
        }
    }

    /// Gives a pool this tag instead of the one it had, if there is one; a pool that had it loses it.
    pub(super) fn set_tag(&self, pool: PoolId, tag: Option<ContainerTag>) {
        if let Some(tag) = tag {
            self.tenant.tags.remove(pool);
            self.tenant.tags.set(tag, pool);
        }
    }
}

/// A pool of a VM, which `vm` is the name of.
pub(super) fn named(
    pools: &NamedPools,
    vm: &str,
    pool: &str,
) -> Result<(PoolId, PoolSpec), ServeError> {
    let known = pools.get(pool).map(|pool| (pool.id, pool.spec));
    known.ok_or_else(|| ServeError::NoPool {
        vm: vm.to_owned(),
        found: pool.to_owned(),
        known: pools.names().collect::<Vec<_>>().join(", "),
    })
}

fn list<'a>(names: impl Iterator<Item = &'a String>) -> String {
    names.map(String::as_str).collect::<Vec<_>>().join(", ")
}
