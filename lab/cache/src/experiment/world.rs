//! The cache of a run, its VMs and containers, and how they change.

use super::container::{Attached, Container, Counts};
use super::error::ExperimentError;
use super::spec::{Configuration, Container as Spec, Division, Event, Experiment};
use super::ssd::new_cache;
use super::workload::Workload;
use justitia_cache::lab::BLOCK_BYTES;
use justitia_cache::{Cache, CacheError, CachedDisk, Mode, PoolId, PoolSpec, StoreKind, VmId};
use justitia_share::Weight;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Bytes of the residency table for each block that a guest can hold: 16, and four times the places, as they are in
/// sets of four.
const RESIDENCY: u64 = 64;

/// A container with what runs in it.
pub(super) struct Tenant<'a> {
    pub(super) spec: &'a Spec,
    /// When it starts.
    pub(super) start: f64,
    pub(super) active: AtomicBool,
    pub(super) state: Mutex<(Workload, Container)>,
}

/// All of a run.
pub(super) struct World<'a> {
    pub(super) experiment: &'a Experiment,
    pub(super) configuration: &'a Configuration,
    pub(super) tenants: Vec<Tenant<'a>>,
    cache: Option<Arc<Cache>>,
    /// By the virtual clock.
    modelled: bool,
    weights: Mutex<Weights>,
}

/// What is configured at the moment.
#[derive(Clone, Default)]
pub(super) struct Weights {
    /// By container.
    pub(super) containers: BTreeMap<String, [u64; 2]>,
    /// By VM; 100 for others.
    pub(super) vms: BTreeMap<String, u64>,
    /// Of the memory store, bytes, not divided.
    pub(super) memory: u64,
    ids: BTreeMap<String, VmId>,
}

impl<'a> World<'a> {
    /// With an empty cache, whose SSD store is in the file `ssd`, and no container started. `modelled`: by the virtual clock.
    pub(super) fn new(
        experiment: &'a Experiment,
        configuration: &'a Configuration,
        (delay, modelled): (Duration, bool),
        seed: u64,
        ssd: &Path,
    ) -> Result<Self, ExperimentError> {
        let own = |c: &Spec| {
            let weights = configuration.weights.get(&c.name);
            (c.name.clone(), *weights.unwrap_or(&c.weights))
        };
        let cache = match configuration.cache {
            Division::None => None,
            Division::Global | Division::Pools => Some(new_cache(experiment, modelled, ssd)?),
        };
        let takes_part = |c: &&Spec| {
            configuration.containers.is_empty() || configuration.containers.contains(&c.name)
        };
        let tenants = (1..).zip(experiment.container.iter().filter(takes_part));
        Ok(Self {
            experiment,
            configuration,
            tenants: tenants
                .map(|(number, spec)| {
                    let own = seed.wrapping_mul(1009).wrapping_add(number.into());
                    let (workload, blocks) = Workload::new(spec, experiment, own);
                    let memory = experiment.scaled(spec.memory.0) / BLOCK_BYTES;
                    let container = Container::new(blocks.into(), memory, number, delay);
                    let start = configuration.starts.get(&spec.name);
                    Tenant {
                        spec,
                        start: *start.unwrap_or(&spec.start),
                        active: AtomicBool::new(false),
                        state: Mutex::new((workload, container)),
                    }
                })
                .collect(),
            cache,
            modelled,
            weights: Mutex::new(Weights {
                containers: experiment.container.iter().map(own).collect(),
                memory: experiment.memory.0,
                ..Weights::default()
            }),
        })
    }

    /// Starts a container: its VM if it is the first, its disk, its pool. One that starts at the beginning has just written
    /// its files; one that comes later finds them on the disk.
    pub(super) fn start(&self, at: usize) -> Result<(), ExperimentError> {
        let Some(tenant) = self.tenants.get(at) else {
            return Ok(());
        };
        if let Some(cache) = &self.cache {
            let attached = self.attach(cache, tenant)?;
            tenant.state.lock().1.cache = Some(attached);
        }
        if tenant.start <= 0.0 {
            let (workload, container) = &mut *tenant.state.lock();
            workload.allocate(container);
        }
        tenant.active.store(true, Ordering::Release);
        Ok(())
    }

    fn attach(&self, cache: &Arc<Cache>, tenant: &Tenant<'_>) -> Result<Attached, CacheError> {
        let vm = self.vm(cache, &tenant.spec.vm)?;
        let backing = tenant.state.lock().1.backing.clone();
        let pool = match self.configuration.cache {
            Division::Pools => {
                let weights = self.weights.lock();
                let both = weights.containers.get(&tenant.spec.name);
                cache.create_pool(vm, &tenant.spec.name, pool_spec(both.copied()))?
            }
            Division::Global | Division::None => cache.default_pool(vm)?,
        };
        let disk = cache.add_disk(vm, &tenant.spec.name)?;
        let disk = CachedDisk::new(backing, cache.clone(), disk, Mode::Exclusive)?;
        let writes = self.modelled.then(|| cache.clone());
        Ok(Attached { disk, pool, writes })
    }

    fn vm(&self, cache: &Arc<Cache>, name: &str) -> Result<VmId, CacheError> {
        let mut weights = self.weights.lock();
        if let Some(id) = weights.ids.get(name) {
            return Ok(*id);
        }
        let of_vm = weight(weights.vms.get(name).copied().unwrap_or(100));
        let id = cache.add_vm(name, of_vm, self.configuration.policy)?;
        let memory = |t: &Tenant<'_>| self.experiment.scaled(t.spec.memory.0) / BLOCK_BYTES;
        let guests = self.tenants.iter().filter(|t| t.spec.vm == name);
        let blocks: u64 = guests.map(memory).sum();
        cache.track_residency(id, (blocks * RESIDENCY).max(1 << 20))?;
        if self.configuration.cache == Division::Pools {
            // Nothing belongs to no container.
            let first = PoolSpec::of(StoreKind::Memory, weight(1));
            cache.set_pool(cache.default_pool(id)?, first)?;
        }
        weights.ids.insert(name.to_owned(), id);
        Ok(id)
    }

    /// Removes a container, and its VM if it was the last.
    pub(super) fn stop(&self, at: usize) -> Result<(), ExperimentError> {
        let Some(tenant) = self.tenants.get(at) else {
            return Ok(());
        };
        tenant.active.store(false, Ordering::Release);
        let attached = tenant.state.lock().1.cache.take();
        let (Some(cache), Some(attached)) = (&self.cache, attached) else {
            return Ok(());
        };
        let same_vm = |t: &Tenant<'_>| t.spec.vm == tenant.spec.vm && t.is_active();
        if !self.tenants.iter().any(same_vm) {
            let id = self.weights.lock().ids.remove(&tenant.spec.vm);
            id.map_or(Ok(()), |id| cache.remove_vm(id))?;
        } else if self.configuration.cache == Division::Pools {
            cache.destroy_pool(attached.pool)?;
        }
        Ok(())
    }

    /// Changes weights and sizes.
    pub(super) fn change(&self, event: &Event) -> Result<(), ExperimentError> {
        let mut weights = self.weights.lock();
        weights.containers.extend(event.weights.clone());
        weights.vms.extend(event.vms.clone());
        weights.memory = event.memory.map_or(weights.memory, |m| m.0);
        let Some(cache) = &self.cache else {
            return Ok(());
        };
        if let Some(memory) = event.memory {
            cache.resize(StoreKind::Memory, self.experiment.scaled(memory.0))?;
        }
        if self.configuration.cache != Division::Pools {
            return Ok(());
        }
        for (name, id) in &weights.ids {
            if let Some(found) = event.vms.get(name) {
                cache.set_vm_weight(*id, weight(*found))?;
            }
        }
        for tenant in &self.tenants {
            let pool = tenant.pool();
            if let (Some(both), Some(pool)) = (event.weights.get(&tenant.spec.name), pool) {
                cache.set_pool(pool, pool_spec(Some(*both)))?;
            }
        }
        Ok(())
    }

    /// What is configured at the moment.
    pub(super) fn weights(&self) -> Weights {
        self.weights.lock().clone()
    }

    /// What each container holds in memory and on the SSD, bytes.
    pub(super) fn occupancy(&self) -> Vec<[u64; 2]> {
        if self.configuration.cache == Division::Global {
            let held = |t: &Tenant<'_>| [t.state.lock().1.held(), 0];
            return self.tenants.iter().map(held).collect();
        }
        let Some(cache) = &self.cache else {
            return vec![[0; 2]; self.tenants.len()];
        };
        let stats = cache.stats();
        let pools = || stats.vms.iter().flat_map(|vm| &vm.pools);
        let held = |tenant: &Tenant<'_>| {
            let id = tenant.pool();
            let pool = pools().find(|pool| Some(pool.id) == id);
            pool.map_or([0; 2], |pool| [pool.memory_bytes, pool.ssd_bytes])
        };
        self.tenants.iter().map(held).collect()
    }

    /// What happened in each container so far.
    pub(super) fn counts(&self) -> Vec<Counts> {
        let counts = |t: &Tenant<'_>| t.state.lock().1.counts;
        self.tenants.iter().map(counts).collect()
    }
}

/// Removes the SSD store's file before the next run starts.
impl Drop for World<'_> {
    fn drop(&mut self) {
        if let Some(cache) = &self.cache {
            let _ = cache.set_ssd(None);
        }
    }
}

impl Tenant<'_> {
    pub(super) fn is_active(&self) -> bool {
        self.active.load(Ordering::Acquire)
    }

    fn pool(&self) -> Option<PoolId> {
        self.state.lock().1.cache.as_ref().map(|c| c.pool)
    }
}

fn weight(found: u64) -> Weight {
    Weight::try_from(found).unwrap_or_default()
}

/// ⟨memory weight, SSD weight⟩; the default for none.
fn pool_spec(both: Option<[u64; 2]>) -> PoolSpec {
    let [memory, ssd] = both.unwrap_or([100, 0]).map(|w| Weight::try_from(w).ok());
    PoolSpec::new(memory, ssd).unwrap_or_default()
}
