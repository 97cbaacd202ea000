//! GET_STATS (the paper, section 4.1).

use super::partition::Partition;
use super::pool::Pool;
use super::state::{Cache, Registry, VmEntry, highest_weight};
use super::stats::{CacheStats, DiskStats, PoolStats, ResidencyStats, StoreStats, VmStats};
use crate::block::BLOCK_BYTES;
use crate::clock;
use crate::config::StoreKind;
use crate::ids::{DiskId, VmId};
use crate::index::SlotRef;
use justitia_api::CurveStatus;
use justitia_guest_protocol::memory::is_sampled;
use justitia_share::Weight;
use justitia_share::num::{to_f64, to_u64};

/// A sample of a disk's blocks in memory. [`justitia_guest_protocol::memory::is_sampled`] tells whether a block is in the
/// sample.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub(crate) struct DiskSample {
    /// Bytes of all its blocks in memory.
    pub bytes: u64,
    /// One block in 2^shift is in the sample.
    pub shift: u8,
    /// Blocks of the sample that are in memory.
    pub blocks: Vec<u64>,
}

/// The most blocks of a sample.
const MAX_SAMPLE: usize = 1 << 16;

/// The current partition of each store.
struct Partitions {
    memory: Partition,
    ssd: Partition,
}

impl Cache {
    /// GET_STATS: the statistics.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        let registry = self.registry.lock();
        let partitions = Partitions {
            memory: self.partition_now(StoreKind::Memory),
            ssd: self.partition_now(StoreKind::Ssd),
        };
        let vms: Vec<_> = (0..)
            .zip(&registry.vms)
            .map(|(at, (id, vm))| self.vm_stats(at, *id, vm, &partitions))
            .collect();
        let pools = registry.vms.values().flat_map(|vm| &vm.pools);
        let of_pools = pools.map(|pool| pool.policy.lock().bytes() + pool.curve.bytes());
        let mut stores = vec![self.memory_stats(&vms, of_pools.sum())];
        stores.extend(self.ssd_stats(&registry, &vms));
        CacheStats { stores, vms }
    }

    /// Samples a disk's blocks in memory: one block in `2^shift`, or fewer if there are too many.
    pub(crate) fn sample(&self, disk: DiskId, seed: u64, shift: u8) -> DiskSample {
        let number = u64::from(disk.number);
        let mut sample = DiskSample {
            bytes: 0,
            shift: shift.min(u8::try_from(u64::BITS).unwrap_or(u8::MAX)),
            blocks: Vec::new(),
        };
        self.index.for_each(&self.stores, |key, location| {
            let is_in_memory = matches!(location.slot(), SlotRef::Memory(_));
            if key.disk() != number || !is_in_memory {
                return;
            }
            sample.bytes += BLOCK_BYTES;
            if !is_sampled(key.block(), seed, sample.shift) {
                return;
            }
            sample.blocks.push(key.block());
            while sample.blocks.len() > MAX_SAMPLE {
                sample.shift += 1;
                let shift = sample.shift;
                sample
                    .blocks
                    .retain(|block| is_sampled(*block, seed, shift));
            }
        });
        sample
    }

    /// GET_STATS of one VM; `None` when there is no such VM.
    pub fn stats_of(&self, vm: VmId) -> Option<VmStats> {
        let registry = self.registry.lock();
        let at = registry.vms.keys().position(|id| *id == vm)?;
        let partitions = Partitions {
            memory: self.partition_now(StoreKind::Memory),
            ssd: self.partition_now(StoreKind::Ssd),
        };
        Some(self.vm_stats(at, vm, registry.vms.get(&vm)?, &partitions))
    }

    fn partition_now(&self, store: StoreKind) -> Partition {
        let weights = self.admission_lock.lock(highest_weight());
        weights.partition(store, self.capacity(store), self.ssd_works())
    }

    /// The VM at this position of the registry.
    fn vm_stats(&self, at: usize, id: VmId, vm: &VmEntry, partitions: &Partitions) -> VmStats {
        let pools = (0..).zip(&vm.pools).map(|(p, pool)| {
            let memory = partitions.memory.entitlement(at, p);
            pool_stats(pool, memory, partitions.ssd.entitlement(at, p))
        });
        let now = clock::now();
        let disks = vm.disks.iter().map(|d| DiskStats {
            id: d.id,
            name: d.name.clone(),
            read_busy_us: u64::try_from(d.busy.total(now).as_micros()).unwrap_or(u64::MAX),
        });
        VmStats {
            id,
            name: vm.name.clone(),
            weight: vm.weight.get(),
            policy: vm.policy,
            memory_entitlement_bytes: partitions.memory.entitlement_of_vm(at) * BLOCK_BYTES,
            ssd_entitlement_bytes: partitions.ssd.entitlement_of_vm(at) * BLOCK_BYTES,
            pools: pools.collect(),
            disks: disks.collect(),
            residency: vm.residency.as_ref().map(|residency| ResidencyStats {
                blocks: residency.len(),
                capacity_blocks: residency.capacity(),
            }),
        }
    }

    /// `of_pools`: bytes of the policies' ghost lists and of the curves.
    fn memory_stats(&self, vms: &[VmStats], of_pools: usize) -> StoreStats {
        let metadata = self.stores.memory.bytes() + self.index.bytes() + of_pools;
        let pools = vms.iter().flat_map(|vm| &vm.pools);
        StoreStats {
            store: StoreKind::Memory,
            capacity_bytes: self.capacity(StoreKind::Memory) * BLOCK_BYTES,
            used_bytes: pools.map(|pool| pool.memory_bytes).sum(),
            metadata_bytes: u64::try_from(metadata).unwrap_or(u64::MAX),
            failed: None,
            errors: 0,
            stalled_ms: None,
        }
    }

    fn ssd_stats(&self, registry: &Registry, vms: &[VmStats]) -> Option<StoreStats> {
        let Some(ssd) = self.stores.ssd.load_full() else {
            let why = registry.ssd_refused.clone()?;
            return Some(StoreStats {
                store: StoreKind::Ssd,
                capacity_bytes: 0,
                used_bytes: 0,
                metadata_bytes: 0,
                failed: Some(why),
                errors: 0,
                stalled_ms: None,
            });
        };
        let pools = vms.iter().flat_map(|vm| &vm.pools);
        Some(StoreStats {
            store: StoreKind::Ssd,
            capacity_bytes: u64::from(ssd.capacity()) * BLOCK_BYTES,
            used_bytes: pools.map(|pool| pool.ssd_bytes).sum(),
            metadata_bytes: u64::try_from(ssd.bytes()).unwrap_or(u64::MAX),
            failed: ssd.failure(),
            errors: ssd.errors(),
            stalled_ms: ssd
                .stalled_for()
                .map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        })
    }
}

/// `memory` and `ssd`: the pool's entitlements there, blocks.
fn pool_stats(pool: &Pool, memory: u64, ssd: u64) -> PoolStats {
    let spec = pool.spec();
    let weight = |store| spec.weight(store).map_or(0, Weight::get);
    PoolStats {
        id: pool.id,
        name: pool.name.clone(),
        memory_weight: weight(StoreKind::Memory),
        ssd_weight: weight(StoreKind::Ssd),
        memory_entitlement_bytes: memory * BLOCK_BYTES,
        ssd_entitlement_bytes: ssd * BLOCK_BYTES,
        memory_bytes: u64::from(pool.policy.lock().len()) * BLOCK_BYTES,
        ssd_bytes: pool.used(StoreKind::Ssd) * BLOCK_BYTES,
        ssd_admits: pool.ssd_admission.get(),
        counts: pool.count.read(),
        curve: status(pool),
    }
}

// A pool's miss-ratio curve in the statistics.

/// The curve of a pool by its size in memory and on the SSD together; `None` while little was accessed.
pub(super) fn status(pool: &Pool) -> Option<CurveStatus> {
    let bytes = |blocks: f64| to_u64(blocks * to_f64(BLOCK_BYTES));
    let steps = pool.curve.steps().into_iter();
    let points: Vec<_> = steps.map(|(size, misses)| (bytes(size), misses)).collect();
    (!points.is_empty()).then(|| CurveStatus {
        accesses: pool.curve.rate(pool.count.gets()),
        points,
    })
}
