//! The VMs, pools and disks that the cache knows.

use super::Cache;
use super::admission::WeightTable;
use super::disks::{DiskHandle, DiskState};
use super::pool::{Pool, PoolHandle};
use crate::block::Key;
use crate::config::{CacheConfig, Policy, PoolSpec};
use crate::error::CacheError;
use crate::ids::{DiskId, PoolId, VmId};
use justitia_share::Weight;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Pools that a cache can have at one time.
const MAX_POOLS: u32 = 1 << 20;

/// What is known, under one lock that no get or put takes.
#[derive(Default)]
pub(super) struct Control {
    pub(super) config: CacheConfig,
    pub(super) vms: BTreeMap<VmId, Vm>,
    pub(super) disks: BTreeMap<DiskId, DiskHandle>,
    /// Never given twice.
    next: u32,
}

pub(super) struct Vm {
    pub(super) name: String,
    pub(super) weight: Weight,
    pub(super) policy: Policy,
    pub(super) pools: Vec<PoolHandle>,
    pub(super) disks: Vec<DiskHandle>,
}

/// The pools by index; places that are free are `None`.
pub(super) type PoolTable = Vec<Option<PoolHandle>>;

impl Control {
    pub(super) fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    pub(super) fn vm(&mut self, vm: VmId) -> Result<&mut Vm, CacheError> {
        self.vms.get_mut(&vm).ok_or(CacheError::NoVm(vm))
    }

    pub(super) fn disk(&self, disk: DiskId) -> Result<DiskHandle, CacheError> {
        let known = self.disks.get(&disk).cloned();
        known.ok_or(CacheError::NoDisk(disk))
    }

    pub(super) fn add_disk(&mut self, vm: VmId, name: &str) -> Result<DiskId, CacheError> {
        let first = self.vm(vm)?.pools.first().cloned();
        let pool = first.ok_or(CacheError::NoVm(vm))?;
        let taken: std::collections::BTreeSet<_> = self.disks.keys().map(|d| d.number).collect();
        let number =
            (0..Key::MAX_DISKS)
                .find(|n| !taken.contains(n))
                .ok_or(CacheError::TooMany {
                    what: "disks",
                    limit: Key::MAX_DISKS,
                })?;
        let id = DiskId {
            number,
            generation: self.number(),
        };
        let disk = Arc::new(DiskState::new(id, vm, name.to_owned(), pool));
        self.vm(vm)?.disks.push(disk.clone());
        self.disks.insert(id, disk);
        Ok(id)
    }
}

impl Cache {
    /// The pool at an index of the table.
    pub(super) fn pool_at(&self, index: u32) -> Option<PoolHandle> {
        let index = usize::try_from(index).ok()?;
        self.pools.load().get(index).cloned().flatten()
    }

    pub(super) fn pool(&self, id: PoolId) -> Result<PoolHandle, CacheError> {
        self.pool_at(id.index)
            .filter(|pool| pool.id == id)
            .ok_or(CacheError::NoPool(id))
    }

    pub(super) fn new_pool(
        &self,
        c: &mut Control,
        vm: VmId,
        name: &str,
        spec: PoolSpec,
    ) -> Result<PoolId, CacheError> {
        let policy = c.vm(vm)?.policy;
        let mut table = PoolTable::clone(&self.pools.load());
        let free = table.iter().position(Option::is_none);
        let at = free.unwrap_or(table.len());
        let index =
            u32::try_from(at)
                .ok()
                .filter(|i| *i < MAX_POOLS)
                .ok_or(CacheError::TooMany {
                    what: "pools",
                    limit: MAX_POOLS,
                })?;
        let id = PoolId {
            index,
            generation: c.number(),
        };
        let pool = Arc::new(Pool::new(id, vm, name.to_owned(), spec, policy));
        table.resize(table.len().max(at + 1), None);
        table[at] = Some(pool.clone());
        self.pools.store(Arc::new(table));
        c.vm(vm)?.pools.push(pool);
        self.refresh(c);
        Ok(id)
    }

    /// Empties a pool that no VM has any more, and forgets it.
    pub(super) fn end_pool(&self, pool: &PoolHandle) {
        pool.policy.lock().closed = true;
        pool.log.lock().closed = true;
        self.empty_memory(pool);
        self.empty_log(pool);
        let mut table = PoolTable::clone(&self.pools.load());
        if let Some(place) = usize::try_from(pool.id.index)
            .ok()
            .and_then(|i| table.get_mut(i))
        {
            *place = None;
        }
        self.pools.store(Arc::new(table));
    }

    fn empty_memory(&self, pool: &PoolHandle) {
        let mut policy = pool.policy.lock();
        policy.set_policy(Policy::Fifo);
        loop {
            let (free, _) = policy.evict(&self.stores.memory, &self.index, u32::MAX);
            self.return_slots(pool, free);
            if policy.len() == 0 {
                return;
            }
            // Slots that somebody is filling or freeing: a matter of microseconds.
            drop(policy);
            std::thread::yield_now();
            policy = pool.policy.lock();
        }
    }

    /// Tells those who make room what has changed: weights, pools, VMs.
    pub(super) fn refresh(&self, c: &Control) {
        let vms: Vec<_> = c
            .vms
            .iter()
            .map(|(id, vm)| (*id, vm.weight, vm.pools.clone()))
            .collect();
        let all: u64 = vms.iter().map(|(_, weight, _)| weight.get()).sum();
        let mut count = 0;
        for (_, weight, pools) in &vms {
            let inside: u64 = pools.iter().map(|p| p.spec().weight.get()).sum();
            for pool in pools {
                count += 1;
                let part = weight.get() * pool.spec().weight.get();
                pool.set_queue_weight(part, all * inside);
            }
        }
        // What pools hold spare must stay small beside what they are entitled to.
        let batch = self.stores.memory.capacity() / 16 / u32::max(count, 1);
        self.batch
            .store(batch.clamp(1, 32), std::sync::atomic::Ordering::Relaxed);
        *self.admission_lock.lock(highest()) = WeightTable(vms);
    }
}

/// Changes of the configuration do not wait behind puts.
pub(super) fn highest() -> Weight {
    Weight::try_from(10_000).unwrap_or_default()
}
