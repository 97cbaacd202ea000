//! Changes of a running daemon, one function a request.

use super::api::ControlRequest;
use super::config::{NAME, PoolConfig, Size, VmConfig, is_name};
use super::error::ServeError;
use crate::block::BLOCK_BYTES;
use crate::cache::{Cache, PoolHandle};
use crate::config::{Policy, PoolSpec, StoreKind};
use crate::error::CacheError;
use crate::frontend::{ContainerTag, Vm, VmPools};
use crate::ids::{DiskId, PoolId, VmId};
use crate::lock_rank::{Ranked, VMS};
use justitia_share::Weight;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Changes a pool's weights or tag, or makes a pool, as [`ControlRequest::SetPool`] asks.
pub(super) fn change_pool(
    cache: &Cache,
    vms: &Ranked<VmRegistry, VMS>,
    request: &ControlRequest,
) -> Result<(), ServeError> {
    let ControlRequest::SetPool {
        vm,
        pool,
        tag,
        create,
        ..
    } = request
    else {
        return Ok(());
    };
    let weights = Weights::of(request)?;
    let tag = tag.map(container_tag).transpose()?;
    let vms = vms.lock();
    let vm = vms.vm(vm)?;
    // Held to the end, since the guest changes weights, too.
    let mut pools = vm.pools.lock();
    let id = if *create {
        if pools.get(pool).is_some() {
            return Err(ServeError::Refused(format!(
                "expected a new name for a pool of VM {:?}, found {pool:?}, which exists",
                vm.name
            )));
        }
        if !is_name(pool) {
            return Err(ServeError::Refused(format!(
                "expected a name of {NAME}, found {pool:?}"
            )));
        }
        let spec = weights.applied_to(PoolSpec::default(), &vm.name, pool)?;
        let id = cache.create_pool(vm.id, pool, spec)?;
        pools.insert(cache.pool(id)?);
        id
    } else {
        let known = named(&pools, &vm.name, pool)?;
        let spec = weights.applied_to(known.spec(), &vm.name, pool)?;
        if spec != known.spec() {
            cache.set_pool(known.id, spec)?;
        }
        known.id
    };
    set_tag(vm, id, tag);
    Ok(())
}

/// A change of a pool's weights.
#[derive(Clone, Copy)]
enum Weights {
    /// ⟨T, W⟩.
    One {
        store: Option<StoreKind>,
        weight: Option<Weight>,
    },
    /// In memory and on the SSD; `Some(None)` is 0.
    Each([Option<Option<Weight>>; 2]),
}

impl Weights {
    fn of(request: &ControlRequest) -> Result<Self, ServeError> {
        let ControlRequest::SetPool {
            vm,
            pool,
            weight,
            store,
            memory_weight,
            ssd_weight,
            ..
        } = request
        else {
            return Ok(Self::Each([None, None]));
        };
        let weight = weight.map(Weight::try_from).transpose()?;
        if memory_weight.is_none() && ssd_weight.is_none() {
            let store = *store;
            return Ok(Self::One { store, weight });
        }
        if weight.is_some() || store.is_some() {
            return Err(ServeError::Refused(format!(
                "expected `memory_weight` and `ssd_weight`, or `weight` and `store`, of pool {pool:?} of VM {vm:?}, found both"
            )));
        }
        let of = |found: Option<u64>| match found {
            Some(0) => Ok(Some(None)),
            found => found
                .map(Weight::try_from)
                .transpose()
                .map(|found| found.map(Some)),
        };
        Ok(Self::Each([of(*memory_weight)?, of(*ssd_weight)?]))
    }

    /// The new weights of a pool that has the weights `old`. `vm` and `pool` name it in errors.
    fn applied_to(self, old: PoolSpec, vm: &str, pool: &str) -> Result<PoolSpec, ServeError> {
        match self {
            Self::One {
                store: Some(store),
                weight,
            } => {
                let weight = weight.or(old.weight(store));
                Ok(PoolSpec::of(store, weight.unwrap_or(old.first_weight())))
            }
            Self::One {
                store: None,
                weight: Some(_),
            } if old.is_hybrid() => Err(ServeError::Refused(format!(
                "expected to know of which store the weight is: pool {pool:?} of VM {vm:?} uses both; give `--memory-weight` or `--ssd-weight`"
            ))),
            Self::One {
                store: None,
                weight,
            } => Ok(weight.map_or(old, |weight| old.with(old.first_store(), weight))),
            Self::Each([memory, ssd]) => {
                let memory = memory.unwrap_or(old.weight(StoreKind::Memory));
                let ssd = ssd.unwrap_or(old.weight(StoreKind::Ssd));
                let none = "expected a weight in memory or on the SSD, found 0 for both";
                PoolSpec::new(memory, ssd).ok_or_else(|| ServeError::Refused(none.into()))
            }
        }
    }
}

// Applies a new configuration to a VM that is served.

/// Gives a VM the weight, policy and pools of another configuration. Does nothing for an uncached VM.
pub(super) fn configure(
    cache: &Cache,
    vms: &Ranked<VmRegistry, VMS>,
    now: &VmConfig,
    next: &VmConfig,
) -> Result<(), ServeError> {
    let weight = (now.weight != next.weight).then_some(next.weight.get());
    let policy = (now.policy != next.policy).then_some(next.policy);
    let gone = {
        let vms = vms.lock();
        let Ok(vm) = vms.vm(&next.name) else {
            return Ok(());
        };
        set_vm(cache, vm, weight, policy)?;
        let new = next.pools.iter().filter(|pool| !now.pools.contains(pool));
        configure_pools(cache, vm, new)?;
        // Every VM has a default pool, so one that is no longer configured gets its default values.
        let default = PoolConfig::default();
        let is_gone = |pool: &&PoolConfig| next.pools.iter().all(|next| next.name != pool.name);
        let gone = now.pools.iter().filter(is_gone);
        let (reset, gone): (Vec<_>, Vec<_>) = gone.partition(|pool| pool.name == default.name);
        configure_pools(cache, vm, reset.iter().map(|_| &default))?;
        gone
    };
    gone.iter()
        .try_for_each(|pool| destroy_pool(cache, vms, &next.name, &pool.name))
}

/// Makes missing pools, and sets the weights and tags of existing ones.
pub(super) fn configure_pools<'a>(
    cache: &Cache,
    vm: &Vm,
    configured: impl IntoIterator<Item = &'a PoolConfig>,
) -> Result<(), ServeError> {
    let mut pools = vm.pools.lock();
    for pool in configured {
        let known = pools.get(&pool.name).map(|pool| pool.id);
        let id = if let Some(id) = known {
            cache.set_pool(id, pool.spec)?;
            vm.tags.remove(id);
            id
        } else {
            let id = cache.create_pool(vm.id, &pool.name, pool.spec)?;
            pools.insert(cache.pool(id)?);
            id
        };
        set_tag(vm, id, pool.tag);
    }
    Ok(())
}

fn container_tag(found: u16) -> Result<ContainerTag, ServeError> {
    let none = || format!("expected a tag from 1 to 1023, found {found}");
    ContainerTag::new(found).ok_or_else(|| ServeError::Refused(none()))
}

pub(super) fn set_vm(
    cache: &Cache,
    vm: &Vm,
    weight: Option<u64>,
    policy: Option<Policy>,
) -> Result<(), ServeError> {
    let weight = weight.map(Weight::try_from).transpose()?;
    if let Some(weight) = weight {
        cache.set_vm_weight(vm.id, weight)?;
        vm.set_weight(weight);
    }
    if let Some(policy) = policy {
        cache.set_vm_policy(vm.id, policy)?;
    }
    Ok(())
}

/// Drops the blocks without the lock: it may take long.
pub(super) fn uncache_vm(
    cache: &Cache,
    vms: &Ranked<VmRegistry, VMS>,
    name: &str,
) -> Result<(), ServeError> {
    let id = vms.lock().uncache(name)?;
    Ok(cache.remove_vm(id)?)
}

/// Sets a pool's tag. Without a tag, the pool keeps its old one. Another pool with this tag loses it.
fn set_tag(vm: &Vm, pool: PoolId, tag: Option<ContainerTag>) {
    if let Some(tag) = tag {
        vm.tags.remove(pool);
        vm.tags.set(tag, pool);
    }
}

/// Empties the pool without the locks, since that may take long. The VM's puts and all other changes wait for them.
pub(super) fn destroy_pool(
    cache: &Cache,
    vms: &Ranked<VmRegistry, VMS>,
    vm_name: &str,
    pool: &str,
) -> Result<(), ServeError> {
    let closed = {
        let vms = vms.lock();
        let mut pools = vms.vm(vm_name)?.pools.lock();
        let id = named(&pools, vm_name, pool)?.id;
        let closed = cache.close_pool(id).map_err(|e| match e {
            CacheError::DefaultPool(..) => ServeError::Refused(format!(
                "expected a pool of a container, found {pool:?} of VM {vm_name:?}, which holds the blocks of no container: `justitia cache set vm {vm_name} --uncached` removes all pools of the VM"
            )),
            other => other.into(),
        })?;
        pools.remove(id);
        closed
    };
    cache.drop_pool(closed);
    Ok(())
}

/// Returns how many blocks were moved. It holds no lock, since it reads blocks of the SSD.
pub(super) fn migrate_disk(
    cache: &Cache,
    vms: &Ranked<VmRegistry, VMS>,
    disk: &str,
    pool: &str,
    offset: Size,
    length: Option<Size>,
) -> Result<u64, ServeError> {
    let (id, to) = {
        let vms = vms.lock();
        let (id, vm) = cached_disk(cache, disk)?;
        let vm = vms.iter().find(|known| known.id == vm);
        let vm = vm.ok_or(CacheError::NoDisk(id))?;
        (id, named(&vm.pools.lock(), &vm.name, pool)?.id)
    };
    let end = length.map_or(u64::MAX, |l| offset.0.saturating_add(l.0));
    // Only whole blocks: one that begins before the range stays.
    let blocks = offset.0.div_ceil(BLOCK_BYTES)..end / BLOCK_BYTES;
    Ok(cache.migrate(id, blocks, to)?)
}

/// A cached disk, and its VM. Names of disks are unique.
pub(super) fn cached_disk(cache: &Cache, name: &str) -> Result<(DiskId, VmId), ServeError> {
    let disks = cache.disks();
    let found = disks.iter().find(|(known, ..)| known == name);
    let found = found.map(|(_, disk, vm)| (*disk, *vm));
    found.ok_or_else(|| {
        let known = disks.iter().map(|(known, ..)| known.as_str());
        ServeError::unknown("disk that is cached", name, known)
    })
}

// The VMs that are served, by name.

/// The VMs by name.
#[derive(Default)]
pub(super) struct VmRegistry {
    vms: BTreeMap<String, Arc<Vm>>,
    /// Names of VMs that became uncached.
    uncached: BTreeSet<String>,
}

impl VmRegistry {
    pub(super) fn insert(&mut self, vm: Arc<Vm>) {
        self.vms.insert(vm.name.clone(), vm);
    }

    /// Is a VM of that name served, cached or uncached?
    pub(super) fn knows(&self, name: &str) -> bool {
        self.vms.contains_key(name) || self.uncached.contains(name)
    }

    /// Forgets a VM whose disks stay served, uncached. Returns its id in the cache.
    fn uncache(&mut self, name: &str) -> Result<VmId, ServeError> {
        let id = self.vm(name)?.id;
        self.vms.remove(name);
        self.uncached.insert(name.to_owned());
        Ok(id)
    }

    /// Forgets a VM. Returns its id in the cache; `None` for an uncached VM.
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
            return Err(ServeError::Refused(format!(
                "expected a VM that is cached, found {name:?}, which is served uncached; restart the daemon to cache it again"
            )));
        }
        self.vms.get(name).ok_or_else(|| {
            let known = self.vms.keys().map(String::as_str);
            ServeError::unknown("VM that is served", name, known)
        })
    }
}

/// The pool `pool` of the VM `vm`.
pub(super) fn named(pools: &VmPools, vm: &str, pool: &str) -> Result<PoolHandle, ServeError> {
    pools.get(pool).cloned().ok_or_else(|| {
        let known = pools.iter().map(|(_, of)| of.pool.name.as_str());
        ServeError::unknown(&format!("pool of VM {vm:?}"), pool, known)
    })
}
