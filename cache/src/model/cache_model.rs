//! The cache under test, and what it must answer.

use super::fault::{FaultDisk, FaultSsd};
use super::port::Ports;
use crate::block::BLOCK_SIZE;
use crate::block_dev::BlockDevice;
use crate::cache::Cache;
use crate::config::{CacheConfig, Mode, Policy, PoolSpec};
use crate::disk::CachedDisk;
use crate::ids::{DiskId, PoolId, VmId};
use justitia_share::Weight;
use std::sync::Arc;

/// The disks' sizes: one ends inside a block.
pub(super) const SIZES: [usize; 3] = [96 * BLOCK_SIZE, 80 * BLOCK_SIZE + 1000, 300 * BLOCK_SIZE];
/// Whose they are, and how they are read.
pub(super) const VM_OF: [usize; 3] = [0, 0, 1];

/// The cache under test and what it must answer.
pub(super) struct CacheModel {
    pub(super) backing: Vec<Arc<FaultDisk>>,
    /// The content of each disk.
    pub(super) truth: Vec<Vec<u8>>,
    pub(super) ssd: FaultSsd,
    pub(super) cache: Arc<Cache>,
    pub(super) vms: Vec<VmId>,
    /// Three for each VM: its first, and two containers.
    pub(super) pools: Vec<PoolId>,
    pub(super) ids: Vec<DiskId>,
    pub(super) disks: Vec<Arc<CachedDisk>>,
    pub(super) ports: Ports,
    /// The content of each disk before its last change, byte for byte.
    pub(super) older: Vec<Vec<u8>>,
    /// Offered blocks that were accepted.
    pub(super) accepted: u64,
    /// Blocks of hybrid pools that were demoted, promoted, and reinserted.
    pub(super) moved: [u64; 3],
    stamp: u64,
}

pub(super) fn policy(n: u8) -> Policy {
    Policy::ALL[usize::from(n) % Policy::ALL.len()]
}

fn mode(disk: usize) -> Mode {
    [Mode::Inclusive, Mode::Exclusive, Mode::Exclusive][disk]
}

impl CacheModel {
    pub(super) fn new() -> Self {
        let backing: Vec<_> = SIZES.map(|s| Arc::new(FaultDisk::new(s))).into();
        let truth: Vec<_> = SIZES.map(|s| vec![0; s]).into();
        let ssd = FaultSsd::new();
        let (cache, vms, pools, ids, disks) = start(&backing, &ssd);
        let ports = Ports::new(&cache, &vms, &pools, &disks, &VM_OF);
        Self {
            backing,
            truth: truth.clone(),
            ssd,
            cache,
            vms,
            pools,
            ids,
            disks,
            ports,
            older: truth,
            accepted: 0,
            moved: [0; 3],
            stamp: 0,
        }
    }

    /// Adds the blocks that have moved in this cache, which is about to be forgotten.
    pub(super) fn count_moves(&mut self) {
        for pool in self.cache.stats().vms.iter().flat_map(|vm| &vm.pools) {
            let counts = &pool.counts;
            let moved = [counts.demotions, counts.promotions, counts.reinsertions];
            self.moved = std::array::from_fn(|n| self.moved[n] + moved[n]);
        }
    }

    /// A range inside the disk.
    pub(super) fn range(&self, d: usize, off: u32, len: u32) -> std::ops::Range<usize> {
        let size = SIZES[d];
        let off = usize::try_from(off).unwrap() % size;
        off..(off + usize::try_from(len).unwrap()).min(size)
    }

    pub(super) fn check(&self, d: usize, range: std::ops::Range<usize>, found: &[u8]) {
        let expected = &self.truth[d][range.clone()];
        if let Some(i) = (0..found.len()).find(|i| found[*i] != expected[*i]) {
            panic!(
                "disk {d}, byte {} (block {}): expected {:#x}, found {:#x}",
                range.start + i,
                (range.start + i) / BLOCK_SIZE,
                expected[i],
                found[i]
            );
        }
    }

    pub(super) fn pool(&self, d: usize, p: usize) -> PoolId {
        self.pools[VM_OF[d] * 3 + p]
    }

    /// Bytes that no other write has.
    pub(super) fn fresh(&mut self, len: usize) -> Vec<u8> {
        self.stamp += 1;
        let word = self.stamp.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
        word.iter().copied().cycle().take(len).collect()
    }

    /// After a failed change, the model takes over the content of the backing store.
    pub(super) fn look_up(&mut self, d: usize, range: std::ops::Range<usize>) {
        let off = u64::try_from(range.start).unwrap();
        let ram = &self.backing[d].ram;
        ram.read_at(&mut self.truth[d][range], off).unwrap();
    }

    pub(super) fn change(&mut self, d: usize, range: std::ops::Range<usize>, new: &[u8], ok: bool) {
        self.older[d][range.clone()].copy_from_slice(&self.truth[d][range.clone()]);
        if ok {
            self.truth[d][range].copy_from_slice(new);
        } else {
            self.look_up(d, range);
        }
    }

    /// A disk that was removed is there again, and in the cache there is nothing of it.
    pub(super) fn reattach(&mut self, d: usize) {
        self.ids[d] = self.cache.add_disk(self.vms[VM_OF[d]], "again").unwrap();
        self.disks[d] = attach(&self.cache, &self.backing[d], self.ids[d], mode(d));
        self.ports.attached(d, &self.disks[d]);
        for block in 0..u64::try_from(SIZES[d] / BLOCK_SIZE).unwrap() {
            assert!(
                !self.cache.has(self.ids[d], block),
                "block {block} came back"
            );
        }
    }
}

fn attach(cache: &Arc<Cache>, backing: &Arc<FaultDisk>, id: DiskId, mode: Mode) -> Arc<CachedDisk> {
    Arc::new(CachedDisk::new(backing.clone(), cache.clone(), id, mode).unwrap())
}

pub(super) fn start_ssd(cache: &Arc<Cache>, ssd: &FaultSsd, extents: u8) {
    use crate::store::Device as _;
    let bytes = u64::from(extents) * (256 << 10);
    ssd.grow(bytes).unwrap();
    cache.start_ssd(Box::new(ssd.clone()), bytes, 0).unwrap();
}

type Started = (
    Arc<Cache>,
    Vec<VmId>,
    Vec<PoolId>,
    Vec<DiskId>,
    Vec<Arc<CachedDisk>>,
);

pub(super) fn start(backing: &[Arc<FaultDisk>], ssd: &FaultSsd) -> Started {
    let cache = Cache::new(CacheConfig {
        memory_bytes: 60 * 4096,
        memory_limit: Some(256 * 4096),
        ..CacheConfig::default()
    })
    .unwrap();
    start_ssd(&cache, ssd, 6);
    let mut vms = Vec::new();
    let mut pools = Vec::new();
    for (v, name) in ["a", "b"].into_iter().enumerate() {
        let weight = Weight::try_from(100 * (u64::try_from(v).unwrap() + 1)).unwrap();
        let start = [Policy::S3Fifo, Policy::Ghost][v];
        let vm = cache.add_vm(name, weight, start).unwrap();
        cache.track_residency(vm, 1).unwrap();
        pools.push(cache.default_pool(vm).unwrap());
        // One in both stores; the other's is changed soon.
        let weight = Some(Weight::default());
        for spec in [PoolSpec::new(weight, weight), PoolSpec::new(None, weight)] {
            pools.push(cache.create_pool(vm, "container", spec.unwrap()).unwrap());
        }
        vms.push(vm);
    }
    let ids: Vec<_> = (0..3)
        .map(|d| cache.add_disk(vms[VM_OF[d]], "disk").unwrap())
        .collect();
    let disks = (0..3)
        .map(|d| attach(&cache, &backing[d], ids[d], mode(d)))
        .collect();
    (cache, vms, pools, ids, disks)
}
