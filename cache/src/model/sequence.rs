//! Random sequences of everything that can happen, one after another, checked after every step; reads of the SSD
//! can be slow, so that something happens to their block while they are under way.
//!
//! These mutants of the cache were made by hand, and each is caught: a block read from the SSD counts although the
//! index no longer names its place (`finish_ssd_read` without `find_at`); it counts although its extent was given away
//! and filled anew meanwhile (without `same`); checksums are not compared.

use super::fault::{FaultDisk, FaultSsd};
use super::overlap::{Overlap, overlap};
use crate::block::BLOCK_SIZE;
use crate::block_dev::Disk;
use crate::cache::Cache;
use crate::config::{CacheConfig, Mode, Policy, PoolSpec, StoreKind};
use crate::disk::CachedDisk;
use crate::ids::{DiskId, PoolId, VmId};
use justitia_share::Weight;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestError, TestRng, TestRunner};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The disks' sizes: one ends inside a block.
const SIZES: [usize; 3] = [96 * BLOCK_SIZE, 80 * BLOCK_SIZE + 1000, 300 * BLOCK_SIZE];
/// Whose they are, and how they are read.
const VM_OF: [usize; 3] = [0, 0, 1];

#[derive(Clone, Debug)]
enum Op {
    Read(usize, u32, u32),
    ReadFor(usize, usize, u32, u32),
    Try(usize, u32, u32),
    /// A block is read while it is written and perhaps evicted and put again.
    Slow(usize, usize, u8, u8),
    Get(usize, usize, u8),
    Put(usize, usize, u8),
    /// Puts of neighbours: units of the SSD store get full, and their blocks are read from the device.
    PutRun(usize, usize, u8, u8),
    Write(usize, u32, u32),
    Discard(usize, u32, u32),
    Zero(usize, u32, u32),
    Prefetch(usize, u32, u32),
    /// A change that went past the cache, and was told to it.
    Outside(usize, u32, u32),
    Migrate(usize, u8, u8, usize),
    VmWeight(usize, u16),
    Pool(usize, bool, u16),
    Policy(usize, u8),
    Memory(u8),
    Ssd(u8),
    NewSsd(u8),
    NoSsd,
    SsdWrites(u8),
    Drop(usize, bool),
    Recreate(usize),
    Reattach(usize),
    /// A read or a write, and something else while it is under way.
    During(usize, usize, Overlap),
    DiskFault(usize, bool, u8),
    SsdFault(u8, u8),
    Restart,
}

fn op() -> impl Strategy<Value = Op> {
    let (d, p) = (0usize..3, 0usize..3);
    // Offsets and lengths in 512ths of a block's eighth, so that many are aligned and many are not.
    let at = prop_oneof![(0u32..300).prop_map(|b| b * 4096), 0u32..1_228_800];
    let len = prop_oneof![(1u32..40).prop_map(|b| b * 4096), 1u32..20_000];
    let range = move || (0usize..3, at.clone(), len.clone());
    prop_oneof![
        60 => range().prop_map(|(d, o, l)| Op::Read(d, o, l)),
        20 => (p.clone(), range()).prop_map(|(p, (d, o, l))| Op::ReadFor(d, p, o, l)),
        20 => range().prop_map(|(d, o, l)| Op::Try(d, o, l)),
        30 => (d.clone(), p.clone(), any::<u8>(), 0u8..3).prop_map(|(d, p, b, k)| Op::Slow(d, p, b, k)),
        30 => (d.clone(), p.clone(), any::<u8>()).prop_map(|(d, p, b)| Op::Get(d, p, b)),
        60 => (d.clone(), p.clone(), any::<u8>()).prop_map(|(d, p, b)| Op::Put(d, p, b)),
        30 => (d.clone(), p.clone(), any::<u8>(), 1u8..64).prop_map(|(d, p, b, n)| Op::PutRun(d, p, b, n)),
        20 => range().prop_map(|(d, o, l)| Op::Write(d, o, l)),
        2 => range().prop_map(|(d, o, l)| Op::Discard(d, o, l)),
        2 => range().prop_map(|(d, o, l)| Op::Zero(d, o, l)),
        2 => range().prop_map(|(d, o, l)| Op::Prefetch(d, o, l)),
        2 => range().prop_map(|(d, o, l)| Op::Outside(d, o, l)),
        3 => (d.clone(), any::<u8>(), any::<u8>(), p.clone()).prop_map(|(d, a, b, p)| Op::Migrate(d, a, b, p)),
        1 => (0usize..2, 1u16..1000).prop_map(|(v, w)| Op::VmWeight(v, w)),
        3 => (0usize..6, any::<bool>(), 1u16..1000).prop_map(|(p, s, w)| Op::Pool(p, s, w)),
        1 => (0usize..2, 0u8..4).prop_map(|(v, p)| Op::Policy(v, p)),
        2 => any::<u8>().prop_map(Op::Memory),
        1 => (0u8..20).prop_map(Op::Ssd),
        1 => (0u8..20).prop_map(Op::NewSsd),
        1 => Just(Op::NoSsd),
        40 => (0u8..12).prop_map(Op::SsdWrites),
        1 => (0usize..6, any::<bool>()).prop_map(|(p, s)| Op::Drop(p, s)),
        1 => (0usize..6).prop_map(Op::Recreate),
        1 => d.clone().prop_map(Op::Reattach),
        20 => (d.clone(), p.clone(), overlap()).prop_map(|(d, p, o)| Op::During(d, p, o)),
        1 => (d, any::<bool>(), 1u8..4).prop_map(|(d, w, n)| Op::DiskFault(d, w, n)),
        1 => (0u8..4, 1u8..12).prop_map(|(k, n)| Op::SsdFault(k, n)),
        1 => Just(Op::Restart),
    ]
}

/// The cache under test and what it must answer.
pub(super) struct World {
    pub(super) backing: Vec<Arc<FaultDisk>>,
    /// What each disk holds.
    pub(super) truth: Vec<Vec<u8>>,
    pub(super) ssd: FaultSsd,
    pub(super) cache: Arc<Cache>,
    vms: Vec<VmId>,
    /// Three for each VM: its first, and two containers.
    pools: Vec<PoolId>,
    pub(super) ids: Vec<DiskId>,
    pub(super) disks: Vec<Arc<CachedDisk>>,
    stamp: u64,
}

fn policy(n: u8) -> Policy {
    [Policy::Fifo, Policy::Ghost, Policy::Sieve, Policy::S3Fifo][usize::from(n % 4)]
}

fn mode(disk: usize) -> Mode {
    [Mode::Inclusive, Mode::Exclusive, Mode::Exclusive][disk]
}

impl World {
    fn new() -> Self {
        let backing: Vec<_> = SIZES.map(|s| Arc::new(FaultDisk::new(s))).into();
        let truth = SIZES.map(|s| vec![0; s]).into();
        let ssd = FaultSsd::new();
        let (cache, vms, pools, ids, disks) = start(&backing, &ssd);
        Self {
            backing,
            truth,
            ssd,
            cache,
            vms,
            pools,
            ids,
            disks,
            stamp: 0,
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

    /// After a failed change, the truth is whatever the backing store has.
    pub(super) fn look_up(&mut self, d: usize, range: std::ops::Range<usize>) {
        let off = u64::try_from(range.start).unwrap();
        let ram = &self.backing[d].ram;
        ram.read_at(&mut self.truth[d][range], off).unwrap();
    }

    pub(super) fn change(&mut self, d: usize, range: std::ops::Range<usize>, new: &[u8], ok: bool) {
        if ok {
            self.truth[d][range].copy_from_slice(new);
        } else {
            self.look_up(d, range);
        }
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Read(d, o, l) | Op::ReadFor(d, _, o, l) | Op::Try(d, o, l) => {
                let range = self.range(d, o, l);
                let off = u64::try_from(range.start).unwrap();
                let mut buf = vec![0xAB; range.len()];
                let ok = match op {
                    Op::Try(..) => self.disks[d].read_cached(&mut buf, off),
                    Op::ReadFor(_, p, ..) => self.disks[d]
                        .read_for(self.pool(d, *p), &mut buf, off)
                        .is_ok(),
                    _ => self.disks[d].read_at(&mut buf, off).is_ok(),
                };
                if ok {
                    self.check(d, range, &buf);
                }
            }
            Op::Slow(d, p, b, kind) => self.slow(d, p, b.into(), kind),
            Op::During(d, p, ref overlap) => self.during(d, p, overlap),
            Op::Get(d, p, b) => {
                let mut buf = [0xAB; BLOCK_SIZE];
                if self.disks[d].get(self.pool(d, p), b.into(), &mut buf) {
                    let at = usize::from(b) * BLOCK_SIZE;
                    self.check(d, at..at + BLOCK_SIZE, &buf);
                }
            }
            Op::Put(d, p, b) => self.put(d, p, b.into()),
            Op::PutRun(d, p, b, n) => {
                (0..usize::from(n)).for_each(|i| self.put(d, p, usize::from(b) + i));
            }
            Op::Write(d, o, l) => {
                let range = self.range(d, o, l);
                let new = self.fresh(range.len());
                let off = u64::try_from(range.start).unwrap();
                let ok = self.disks[d].write_at(&new, off, l % 3 == 0).is_ok();
                self.change(d, range, &new, ok);
            }
            Op::Discard(d, o, l) | Op::Zero(d, o, l) => {
                let range = self.range(d, o, l);
                let off = u64::try_from(range.start).unwrap();
                let len = u64::try_from(range.len()).unwrap();
                let disk = &self.disks[d];
                let ok = match op {
                    Op::Discard(..) => disk.discard(off, len),
                    _ => disk.write_zeroes(off, len, false, l % 2 == 0),
                };
                let zeroes = vec![0; range.len()];
                self.change(d, range, &zeroes, ok.is_ok());
            }
            Op::Prefetch(d, o, l) => {
                let range = self.range(d, o, l);
                let len = u64::try_from(range.len()).unwrap();
                // A backing store that fails now fails the hint; the read after it counts.
                let _ = self.disks[d].prefetch(u64::try_from(range.start).unwrap(), len);
            }
            Op::Outside(d, o, l) => {
                let range = self.range(d, o, l);
                let new = self.fresh(range.len());
                let off = u64::try_from(range.start).unwrap();
                self.backing[d].ram.write_at(&new, off, false).unwrap();
                self.disks[d].invalidate(off, u64::try_from(new.len()).unwrap());
                self.change(d, range, &new, true);
            }
            Op::Migrate(d, a, b, p) => {
                let blocks = u64::from(a.min(b))..u64::from(a.max(b));
                let to = self.pool(d, p);
                self.cache.migrate(self.ids[d], blocks, to).unwrap();
            }
            _ => self.reconfigure(op),
        }
    }

    fn put(&self, d: usize, p: usize, b: usize) {
        let block = u64::try_from(b).unwrap();
        let at = b * BLOCK_SIZE;
        let content = self.truth[d].get(at..at + BLOCK_SIZE);
        let content = content.map_or([0; BLOCK_SIZE], |c| c.try_into().unwrap());
        let done = self.disks[d].put(self.pool(d, p), block, &content);
        assert!(!done || at + BLOCK_SIZE <= SIZES[d], "put beyond the end");
        // A pool of another VM is refused.
        let other = self.pools[(1 - VM_OF[d]) * 3 + p];
        assert!(!self.disks[d].put(other, block, &[0xBA; BLOCK_SIZE]));
    }

    /// A disk that was removed is there again, and in the cache there is nothing of it.
    pub(super) fn reattach(&mut self, d: usize) {
        self.ids[d] = self.cache.add_disk(self.vms[VM_OF[d]], "again").unwrap();
        self.disks[d] = attach(&self.cache, &self.backing[d], self.ids[d], mode(d));
        for block in 0..u64::try_from(SIZES[d] / BLOCK_SIZE).unwrap() {
            assert!(
                !self.cache.has(self.ids[d], block),
                "block {block} came back"
            );
        }
    }

    fn reconfigure(&mut self, op: &Op) {
        let cache = &self.cache;
        let weight = |w: u16| Weight::try_from(u64::from(w)).unwrap();
        let store = |ssd| {
            if ssd {
                StoreKind::Ssd
            } else {
                StoreKind::Memory
            }
        };
        match *op {
            Op::VmWeight(v, w) => cache.set_vm_weight(self.vms[v], weight(w)).unwrap(),
            Op::Pool(p, ssd, w) => {
                let spec = PoolSpec {
                    store: store(ssd),
                    weight: weight(w),
                };
                cache.set_pool(self.pools[p], spec).unwrap();
            }
            Op::Policy(v, p) => cache.set_vm_policy(self.vms[v], policy(p)).unwrap(),
            Op::Memory(slots) => {
                let bytes = u64::from(slots) * 4096;
                cache.resize(StoreKind::Memory, bytes).unwrap();
            }
            Op::Ssd(extents) => {
                // Refused without a store that works.
                let _ = cache.resize(StoreKind::Ssd, u64::from(extents) * (256 << 10));
            }
            Op::NewSsd(extents) => {
                cache.set_ssd(None).unwrap();
                start_ssd(cache, &self.ssd, extents);
            }
            Op::NoSsd => cache.set_ssd(None).unwrap(),
            Op::SsdWrites(n) => {
                for _ in 0..n {
                    cache.write_ssd();
                }
            }
            Op::Drop(p, ssd) => {
                cache.drop_blocks(self.pools[p], store(ssd)).unwrap();
            }
            Op::Recreate(p) => {
                if cache.destroy_pool(self.pools[p]).is_ok() {
                    let gone = self.pools[p];
                    let spec = PoolSpec {
                        store: store(p % 2 == 0),
                        ..PoolSpec::default()
                    };
                    self.pools[p] = cache.create_pool(self.vms[p / 3], "again", spec).unwrap();
                    assert!(cache.set_pool(gone, spec).is_err());
                } else {
                    assert_eq!(p % 3, 0, "only a VM's first pool stays");
                }
            }
            Op::Reattach(d) => {
                cache.remove_disk(self.ids[d]).unwrap();
                let mut buf = [0; BLOCK_SIZE];
                assert!(!self.disks[d].read_cached(&mut buf, 0));
                self.reattach(d);
            }
            Op::DiskFault(d, writes, n) => {
                let faults = &self.backing[d].faults;
                let which = if writes {
                    &faults.writes
                } else {
                    &faults.reads
                };
                which.store(n.into(), Ordering::Relaxed);
            }
            Op::SsdFault(kind, n) => {
                let f = &self.ssd.faults;
                [&f.reads, &f.writes, &f.lies, &f.full][usize::from(kind)]
                    .store(n.into(), Ordering::Relaxed);
            }
            Op::Restart => {
                let new = start(&self.backing, &self.ssd);
                (self.cache, self.vms, self.pools, self.ids, self.disks) = new;
            }
            _ => unreachable!("{op:?} is not a change of the configuration"),
        }
    }
}

fn attach(cache: &Arc<Cache>, backing: &Arc<FaultDisk>, id: DiskId, mode: Mode) -> Arc<CachedDisk> {
    Arc::new(CachedDisk::new(backing.clone(), cache.clone(), id, mode).unwrap())
}

fn start_ssd(cache: &Arc<Cache>, ssd: &FaultSsd, extents: u8) {
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

fn start(backing: &[Arc<FaultDisk>], ssd: &FaultSsd) -> Started {
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
        pools.push(cache.default_pool(vm).unwrap());
        for store in [StoreKind::Memory, StoreKind::Ssd] {
            let weight = Weight::default();
            let spec = PoolSpec { store, weight };
            pools.push(cache.create_pool(vm, "container", spec).unwrap());
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

/// How many sequences, of how many steps. Together a million in the test that CI runs.
const STEPS: usize = 2500;
const SEQUENCES: u32 = 400;

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().expect(variable))
}

/// The same sequences each time, unless `JUSTITIA_CACHE_SEED` says otherwise.
#[test]
fn every_read_is_what_was_written_last() {
    let seed = number_from("JUSTITIA_CACHE_SEED").unwrap_or(1);
    let sequences = number_from("JUSTITIA_CACHE_SEQUENCES").map(|n| n.try_into().unwrap());
    println!("JUSTITIA_CACHE_SEED={seed}");
    let config = ProptestConfig {
        cases: sequences.unwrap_or(SEQUENCES),
        failure_persistence: None,
        max_shrink_iters: 3000,
        ..ProptestConfig::default()
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let found =
        TestRunner::new_with_rng(config, random).run(&prop::collection::vec(op(), STEPS), |ops| {
            run(&ops);
            Ok(())
        });
    match found {
        Ok(()) => {}
        Err(TestError::Fail(why, ops)) => panic!("{why}\nseed {seed}, after {ops:?}"),
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
}

fn run(ops: &[Op]) {
    let mut world = World::new();
    for (n, op) in ops.iter().enumerate() {
        world.step(op);
        if n % 100 == 0 {
            world.cache.audit();
        }
    }
    world.cache.audit();
    for store in world.cache.stats().stores {
        assert!(store.used_bytes <= store.capacity_bytes);
    }
    for (backing, truth) in world.backing.iter().zip(&world.truth) {
        let mut whole = vec![0; truth.len()];
        backing.ram.read_at(&mut whole, 0).unwrap();
        assert!(whole == *truth, "the disk is not what was written");
    }
}
