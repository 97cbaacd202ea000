//! The VMs that are served, by name.

use super::error::ServeError;
use crate::cache::PoolHandle;
use crate::frontend::{Vm, VmPools};
use crate::ids::{PoolId, VmId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The VMs by name.
#[derive(Default)]
pub(super) struct VmRegistry {
    vms: BTreeMap<String, Arc<Vm>>,
    /// Names of those that are served uncached by now.
    uncached: BTreeSet<String>,
}

impl VmRegistry {
    pub(super) fn insert(&mut self, vm: Arc<Vm>) {
        self.vms.insert(vm.name.clone(), vm);
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

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Vm>> {
        self.vms.values()
    }

    /// The pools that guests have made.
    pub(super) fn pools_of_guests(&self) -> BTreeSet<PoolId> {
        let lists = self.vms.values().map(|vm| &vm.pools);
        let mut found = BTreeSet::new();
        for pools in lists {
            let pools = pools.lock();
            let made = pools.iter().filter(|(_, of)| of.created_over_port);
            found.extend(made.map(|(_, of)| of.pool.id));
        }
        found
    }

    pub(super) fn vm(&self, name: &str) -> Result<&Arc<Vm>, ServeError> {
        if self.uncached.contains(name) {
            let vm = name.to_owned();
            return Err(ServeError::Uncached { vm });
        }
        self.vms.get(name).ok_or_else(|| {
            let known: Vec<_> = self.vms.keys().map(String::as_str).collect();
            ServeError::NoVm {
                found: name.to_owned(),
                known: known.join(", "),
            }
        })
    }
}

/// A pool of the VM that `vm` is the name of.
pub(super) fn named(pools: &VmPools, vm: &str, pool: &str) -> Result<PoolHandle, ServeError> {
    pools.get(pool).cloned().ok_or_else(|| {
        let known: Vec<_> = pools.iter().map(|(_, of)| of.pool.name.as_str()).collect();
        ServeError::NoPool {
            vm: vm.to_owned(),
            found: pool.to_owned(),
            known: known.join(", "),
        }
    })
}
