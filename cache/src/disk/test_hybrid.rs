//! Hybrid pools: blocks that are demoted, promoted, or stay.

use super::CachedDisk;
use crate::block::{BLOCK_BYTES, BLOCK_SIZE, Block};
use crate::block_dev::{BlockDevice, RamDisk};
use crate::cache::Cache;
use crate::config::{CacheConfig, Mode, Policy, PoolSpec, SsdConfig, StoreKind};
use crate::ids::PoolId;
use crate::model::fault::FaultSsd;
use crate::store::Device as _;
use justitia_guest_protocol::puts::Verdict;
use justitia_share::Weight;
use std::sync::Arc;

/// Blocks of the disk, and of the memory store. The SSD has room for all.
const BLOCKS: u64 = 2 * MEMORY;
const MEMORY: u64 = 512;

struct Rig {
    cache: Arc<Cache>,
    disk: CachedDisk,
    pool: PoolId,
}

impl Rig {
    fn new(policy: Policy, mode: Mode, spec: PoolSpec) -> Self {
        Self::with_ssd(policy, mode, spec, 4 * BLOCKS)
    }

    fn with_ssd(policy: Policy, mode: Mode, spec: PoolSpec, blocks: u64) -> Self {
        let cache = Cache::new(CacheConfig::of_memory(MEMORY * BLOCK_BYTES)).unwrap();
        let ssd = FaultSsd::new();
        let bytes = blocks * BLOCK_BYTES;
        ssd.grow(bytes).unwrap();
        cache.start_ssd(Box::new(ssd), bytes, 0).unwrap();
        let vm = cache.add_vm("vm", Weight::default(), policy).unwrap();
        cache.track_residency(vm, 1 << 20).unwrap();
        let pool = cache.create_pool(vm, "pool", spec).unwrap();
        let id = cache.add_disk(vm, "disk").unwrap();
        let ram = RamDisk::new(usize::try_from(2 * BLOCKS * BLOCK_BYTES).unwrap());
        for block in 0..2 * BLOCKS {
            ram.write_at(&content(block), block * BLOCK_BYTES, false)
                .unwrap();
        }
        let disk = CachedDisk::new(Arc::new(ram), Arc::clone(&cache), id, mode).unwrap();
        Self { cache, disk, pool }
    }

    /// Reads a block, and puts it if the disk is exclusive.
    fn read(&self, block: u64) {
        let mut found = [0; BLOCK_SIZE];
        self.disk
            .read_for(self.pool, &mut found, block * BLOCK_BYTES)
            .unwrap();
        assert_eq!(found, content(block), "block {block}");
        // There are no writer threads.
        self.cache.write_ssd();
    }

    fn read_and_put(&self, block: u64) -> bool {
        self.read(block);
        self.disk.offer(self.pool, block, &content(block)) == Verdict::Accepted
    }

    /// Memory hits, SSD hits, demotions, promotions.
    fn counts(&self) -> [u64; 4] {
        let counts = self.cache.stats().vms[0].pools[1].counts;
        let (down, up) = (counts.demotions, counts.promotions);
        [counts.memory_hits, counts.ssd_hits, down, up]
    }

    /// The increments of the counts by a round of accesses.
    fn round(&self, accesses: impl Iterator<Item = u64>, put: bool) -> [u64; 4] {
        let before = self.counts();
        for block in accesses {
            if put {
                self.read_and_put(block);
            } else {
                self.read(block);
            }
        }
        let after = self.counts();
        std::array::from_fn(|i| after[i] - before[i])
    }
}

fn content(block: u64) -> Block {
    let word = block.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
    std::array::from_fn(|i| word[i % 8])
}

fn both() -> PoolSpec {
    let weight = Some(Weight::default());
    PoolSpec::new(weight, weight).unwrap()
}

#[test]
fn what_is_read_once_is_not_demoted() {
    for policy in Policy::ALL {
        let rig = Rig::new(policy, Mode::Inclusive, both());
        let [_, _, down, _] = rig.round(0..2 * BLOCKS, false);
        // A ghost list takes one block in a thousand for another.
        assert!(down <= 2 * BLOCKS / 100, "{policy:?}: {down}");
    }
}

/// A loop over twice what memory holds: what came back once is on the SSD, memory keeps its half, and nothing is moved.
#[test]
fn a_loop_twice_as_large_as_memory_is_served_by_both_and_settles() {
    for (policy, mode) in Policy::ALL
        .map(|policy| (policy, Mode::Inclusive))
        .into_iter()
        .chain([
            (Policy::Fifo, Mode::Exclusive),
            (Policy::Ghost, Mode::Exclusive),
        ])
    {
        let rig = Rig::new(policy, mode, both());
        let put = mode == Mode::Exclusive;
        for _ in 0..8 {
            rig.round(0..BLOCKS, put);
        }
        let [memory, ssd, down, up] = rig.round(0..BLOCKS, put);
        println!("{policy:?} {mode:?}: {memory} and {ssd} hits, {down} down, {up} up");
        assert!(memory + ssd > BLOCKS * 95 / 100, "{policy:?} {mode:?}");
        assert!(memory > MEMORY * 80 / 100, "{policy:?} {mode:?}");
        assert!(down + up < BLOCKS / 10, "{policy:?} {mode:?}");
        rig.cache.audit();
    }
}

/// What fits the SSD, but takes up more than three quarters of the pool's part, is not written again each time it is read.
#[test]
fn a_loop_that_fills_the_part_of_the_ssd_is_not_reinserted_for_ever() {
    for part in [MEMORY * 5 / 4, MEMORY * 9 / 8] {
        let rig = Rig::with_ssd(Policy::Sieve, Mode::Inclusive, both(), part);
        for _ in 0..12 {
            rig.round(0..BLOCKS, false);
        }
        let reinsertions = || rig.cache.stats().vms[0].pools[1].counts.reinsertions;
        let before = reinsertions();
        let [_, ssd, ..] = rig.round(0..BLOCKS, false);
        let reinserted = reinsertions() - before;
        println!("{ssd} hits on an SSD of {part} blocks, {reinserted} reinserted");
        assert!(ssd > MEMORY / 2, "{ssd}");
        assert!(reinserted < ssd / 10, "{reinserted} of {ssd}");
        rig.cache.audit();
    }
}

/// The parts of the stores are divided anew when the SSD store is taken away, or comes.
#[test]
fn a_replaced_ssd_is_divided() {
    let rig = Rig::new(Policy::Sieve, Mode::Inclusive, both());
    let entitled = || rig.cache.entitled(rig.pool, StoreKind::Ssd);
    assert!(entitled() > 0);
    rig.cache.set_ssd(None).unwrap();
    assert_eq!(entitled(), 0);
    let directory = tempfile::tempdir().unwrap();
    let ssd = SsdConfig::new(directory.path().join("ssd"), 4 << 20);
    rig.cache.set_ssd(Some(ssd)).unwrap();
    assert_eq!(entitled(), 1024);
}

/// A small set that has fallen to the SSD comes back up when it is used often.
#[test]
fn what_is_used_often_goes_up() {
    for (policy, mode) in [
        (Policy::Sieve, Mode::Inclusive),
        (Policy::Ghost, Mode::Exclusive),
    ] {
        let rig = Rig::new(policy, mode, both());
        let put = mode == Mode::Exclusive;
        for _ in 0..4 {
            rig.round(0..BLOCKS, put);
        }
        for _ in 0..20 {
            rig.round(0..MEMORY / 4, put);
        }
        let [memory, ssd, ..] = rig.round(0..MEMORY / 4, put);
        assert!(
            memory > MEMORY / 4 * 9 / 10,
            "{policy:?} {mode:?}: {memory} {ssd}"
        );
    }
}

#[test]
fn weights_are_changed_live_and_either_may_be_none() {
    let rig = Rig::new(Policy::Sieve, Mode::Inclusive, both());
    for _ in 0..6 {
        rig.round(0..BLOCKS, false);
    }
    let held = || {
        let pool = &rig.cache.stats().vms[0].pools[1];
        [pool.memory_bytes, pool.ssd_bytes].map(|bytes| bytes / BLOCK_BYTES)
    };
    let [memory, ssd] = held();
    assert!(memory > 0 && ssd > 0);
    // No more memory: what is there is found, and new blocks go to the SSD.
    let weight = Weight::default();
    rig.cache
        .set_pool(rig.pool, PoolSpec::of(StoreKind::Ssd, weight))
        .unwrap();
    let [found, ..] = rig.round(0..BLOCKS, false);
    assert!(found > 0);
    let before = held();
    rig.round(BLOCKS..BLOCKS + MEMORY, false);
    assert!(held()[1] > before[1]);
    // No more SSD: nothing is demoted.
    rig.cache
        .set_pool(rig.pool, PoolSpec::of(StoreKind::Memory, weight))
        .unwrap();
    let [.., down, _] = rig.round((0..BLOCKS).chain(0..BLOCKS), false);
    assert_eq!(down, 0);
    rig.cache.audit();
}

/// Without an SSD that works a hybrid pool is one in memory, and what was below is gone.
#[test]
fn without_an_ssd_a_hybrid_pool_uses_memory() {
    let rig = Rig::new(Policy::Sieve, Mode::Inclusive, both());
    for _ in 0..6 {
        rig.round(0..BLOCKS, false);
    }
    rig.cache.set_ssd(None).unwrap();
    let [_, ssd, down, up] = rig.round((0..MEMORY / 2).chain(0..MEMORY / 2), false);
    assert_eq!([ssd, down, up], [0; 3]);
    rig.cache.audit();
}

/// A write that comes while blocks are on their way down leaves nothing of them.
#[test]
fn what_is_written_is_in_neither_store() {
    let rig = Rig::new(Policy::Sieve, Mode::Inclusive, both());
    for _ in 0..6 {
        rig.round(0..BLOCKS, false);
    }
    let new = [7; BLOCK_SIZE];
    for block in 0..BLOCKS {
        rig.disk.write_at(&new, block * BLOCK_BYTES, false).unwrap();
    }
    let mut found = [0; BLOCK_SIZE];
    for block in 0..BLOCKS {
        let off = block * BLOCK_BYTES;
        assert!(!rig.disk.get(rig.pool, block, &mut found), "{block}");
        rig.disk.read_for(rig.pool, &mut found, off).unwrap();
        assert_eq!(found, new);
    }
    rig.cache.audit();
}
