//! What the cache tells about itself (the paper's GET_STATS, section 4.1).

use super::Cache;
use super::pool::Pool;
use crate::block::BLOCK_BYTES;
use crate::config::{Policy, StoreKind};
use crate::ids::{DiskId, PoolId, VmId};
use serde::Serialize;

/// Counts since the cache (or the pool) began. Sums of pools: pools that are gone are not in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Blocks looked up.
    pub gets: u64,
    /// Of these, blocks found in memory.
    pub memory_hits: u64,
    /// Of these, blocks found on the SSD.
    pub ssd_hits: u64,
    /// Blocks inserted, by a put or by a fill.
    pub puts: u64,
    /// Blocks that could not be inserted: no room, a racing write, or a store that failed.
    pub puts_dropped: u64,
    /// Blocks evicted because the store was full.
    pub evictions: u64,
    /// Blocks removed because their content changed on disk.
    pub invalidations: u64,
}

/// One pool.
#[derive(Clone, Debug, Serialize)]
pub struct PoolStats {
    /// Which.
    pub id: PoolId,
    /// Its name.
    pub name: String,
    /// Where its new blocks go.
    pub store: StoreKind,
    /// Its weight among the VM's pools in that store, 1..=10000.
    pub weight: u64,
    /// What it is entitled to in that store now, bytes (what others do not use is included).
    pub entitlement_bytes: u64,
    /// What it holds in memory, bytes.
    pub memory_bytes: u64,
    /// What it holds on the SSD, bytes.
    pub ssd_bytes: u64,
    /// What happened.
    pub counts: Counts,
}

/// One disk.
#[derive(Clone, Debug, Serialize)]
pub struct DiskStats {
    /// Which.
    pub id: DiskId,
    /// Its name.
    pub name: String,
}

/// One VM.
#[derive(Clone, Debug, Serialize)]
pub struct VmStats {
    /// Which.
    pub id: VmId,
    /// Its name.
    pub name: String,
    /// Its weight among the VMs, 1..=10000.
    pub weight: u64,
    /// Its eviction policy.
    pub policy: Policy,
    /// Its pools; the first takes the blocks that belong to no container.
    pub pools: Vec<PoolStats>,
    /// Its disks.
    pub disks: Vec<DiskStats>,
}

/// One store.
#[derive(Clone, Debug, Serialize)]
pub struct StoreStats {
    /// Which.
    pub store: StoreKind,
    /// What it may hold, bytes.
    pub capacity_bytes: u64,
    /// What it holds, bytes.
    pub used_bytes: u64,
    /// What is kept in memory to find and judge its blocks, bytes; the index counts for memory.
    pub metadata_bytes: u64,
    /// Why it is out of use; pools that belong in it use memory meanwhile.
    pub failed: Option<String>,
    /// Errors of the device so far.
    pub errors: u64,
}

/// Everything.
#[derive(Clone, Debug, Serialize)]
pub struct CacheStats {
    /// The stores: memory first, then the SSD if there is one.
    pub stores: Vec<StoreStats>,
    /// The VMs, in the order in which they were added.
    pub vms: Vec<VmStats>,
}

impl Cache {
    /// GET_STATS: everything there is to tell.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let c = self.control.lock();
        let partition = |store| {
            let weights = self.admission_lock.lock(super::control::highest());
            weights.partition(store, self.capacity(store), |pool: &Pool| {
                self.target_store(pool)
            })
        };
        let partitions = [partition(StoreKind::Memory), partition(StoreKind::Ssd)];
        let mut memory_used = 0;
        let mut ssd_used = 0;
        let mut ghosts = 0;
        let mut vms = Vec::with_capacity(c.vms.len());
        for (v, (id, vm)) in c.vms.iter().enumerate() {
            let mut pools = Vec::with_capacity(vm.pools.len());
            for (p, pool) in vm.pools.iter().enumerate() {
                let (blocks, bytes) = {
                    let policy = pool.policy.lock();
                    (u64::from(policy.len()), policy.bytes())
                };
                ghosts += bytes;
                memory_used += blocks * BLOCK_BYTES;
                let ssd_bytes = pool.used(StoreKind::Ssd) * BLOCK_BYTES;
                ssd_used += ssd_bytes;
                let spec = pool.spec();
                let target = match self.target_store(pool) {
                    StoreKind::Memory => &partitions[0],
                    StoreKind::Ssd => &partitions[1],
                };
                pools.push(PoolStats {
                    id: pool.id,
                    name: pool.name.clone(),
                    store: spec.store,
                    weight: spec.weight.get(),
                    entitlement_bytes: target.entitlement(v, p) * BLOCK_BYTES,
                    memory_bytes: blocks * BLOCK_BYTES,
                    ssd_bytes,
                    counts: pool.count.read(),
                });
            }
            let disks = vm.disks.iter().map(|d| DiskStats {
                id: d.id,
                name: d.name.clone(),
            });
            vms.push(VmStats {
                id: *id,
                name: vm.name.clone(),
                weight: vm.weight.get(),
                policy: vm.policy,
                pools,
                disks: disks.collect(),
            });
        }
        let bytes = self.stores.memory.bytes() + self.index.bytes() + ghosts;
        let mut stores = vec![StoreStats {
            store: StoreKind::Memory,
            capacity_bytes: self.capacity(StoreKind::Memory) * BLOCK_BYTES,
            used_bytes: memory_used,
            metadata_bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
            failed: None,
            errors: 0,
        }];
        if let Some(ssd) = self.stores.ssd.load_full() {
            stores.push(StoreStats {
                store: StoreKind::Ssd,
                capacity_bytes: u64::from(ssd.capacity()) * BLOCK_BYTES,
                used_bytes: ssd_used,
                metadata_bytes: u64::try_from(ssd.bytes()).unwrap_or(u64::MAX),
                failed: ssd.failure(),
                errors: ssd.errors(),
            });
        }
        CacheStats { stores, vms }
    }
}
