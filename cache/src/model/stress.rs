//! Many threads at once, with a version stamped into every block.

use super::fault::FaultSsd;
use crate::block::{BLOCK_BYTES, BLOCK_SIZE, Block};
use crate::block_dev::{BlockDevice, RamDisk};
use crate::cache::Cache;
use crate::config::{CacheConfig, Mode, Policy, PoolSpec, StoreKind};
use crate::disk::CachedDisk;
use crate::ids::{DiskId, PoolId, VmId};
use crate::store::Device as _;
use crate::testing::Random;
use justitia_guest_protocol::puts::Verdict;
use justitia_share::Weight;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const BLOCKS: u64 = 512;
const THREADS: u64 = 3;

/// A disk of one VM, and for each block the last version whose write has begun and has ended.
struct Tested {
    disk: CachedDisk,
    pools: Vec<PoolId>,
    begun: Vec<AtomicU64>,
    ended: Vec<AtomicU64>,
    accepted: AtomicU64,
    number: u64,
    /// Neither it nor its pools are removed.
    stays: bool,
}

fn stamp(disk: u64, block: u64, version: u64) -> u64 {
    disk << 56 | block << 32 | version
}

fn at(block: u64) -> usize {
    usize::try_from(block).unwrap()
}

impl Tested {
    /// A disk whose blocks bear `number`, which is at least 1.
    fn new(cache: &Arc<Cache>, vm: VmId, disk: DiskId, number: u64, stays: bool) -> Self {
        let mut pools = vec![cache.default_pool(vm).unwrap()];
        let weight = Some(Weight::default());
        for spec in [PoolSpec::new(weight, weight), PoolSpec::new(None, weight)] {
            pools.push(cache.create_pool(vm, "container", spec.unwrap()).unwrap());
        }
        let backing = Arc::new(RamDisk::new(at(BLOCKS) * BLOCK_SIZE));
        let mode = [Mode::Exclusive, Mode::Inclusive][at(number % 2)];
        Self {
            disk: CachedDisk::new(backing, cache.clone(), disk, mode).unwrap(),
            pools,
            begun: (0..BLOCKS).map(|_| AtomicU64::new(0)).collect(),
            ended: (0..BLOCKS).map(|_| AtomicU64::new(0)).collect(),
            accepted: AtomicU64::new(0),
            number,
            stays,
        }
    }

    /// The versions of a block that a read which starts now may find, given those when it ended.
    fn check(&self, block: u64, oldest: u64, content: &[u8]) {
        let newest = self.begun[at(block)].load(Ordering::SeqCst);
        let words: Vec<_> = content
            .chunks_exact(8)
            .map(|w| u64::from_le_bytes(w.try_into().unwrap()))
            .collect();
        let found = words[0];
        assert!(words.iter().all(|w| *w == found), "a torn block");
        let low = if oldest == 0 {
            0
        } else {
            stamp(self.number, block, oldest)
        };
        let high = stamp(self.number, block, newest);
        let first = oldest == 0 && found == 0;
        assert!(
            first
                || (found.max(stamp(self.number, block, 1)) == found
                    && (low..=high).contains(&found)),
            "disk {} block {block}: expected a version from {oldest} to {newest}, found {found:#x}",
            self.number
        );
    }

    fn write(&self, block: u64) {
        let version = self.begun[at(block)].fetch_add(1, Ordering::SeqCst) + 1;
        let content = stamp(self.number, block, version).to_le_bytes();
        let content: Vec<_> = content.into_iter().cycle().take(BLOCK_SIZE).collect();
        let off = block * BLOCK_BYTES;
        self.disk.write_at(&content, off, false).unwrap();
        self.ended[at(block)].store(version, Ordering::SeqCst);
    }

    fn read(&self, block: u64) -> Block {
        let mut content = [0; BLOCK_SIZE];
        let oldest = self.oldest(block);
        let off = block * BLOCK_BYTES;
        self.disk.read_at(&mut content, off).unwrap();
        self.check(block, oldest, &content);
        content
    }

    /// Offers a block; returns what to offer as a stale content next.
    fn offer(&self, pool: PoolId, block: u64, content: Block, stale: Block) -> Block {
        match self.disk.offer(pool, block, &content) {
            Verdict::Accepted => {
                self.accepted.fetch_add(1, Ordering::Relaxed);
                content
            }
            _ => stale,
        }
    }

    fn oldest(&self, block: u64) -> u64 {
        self.ended[at(block)].load(Ordering::SeqCst)
    }

    fn work(&self, thread: u64, stop: &AtomicBool, seed: u64) -> u64 {
        let mut random = Random::new(seed);
        let mut steps = 0;
        let mut stale = [0; BLOCK_SIZE];
        while !stop.load(Ordering::Relaxed) {
            steps += 1;
            let block = random.below(BLOCKS);
            let pool = self.pools[at(random.below(3))];
            // A thread writes and puts only its own blocks, so that it knows what is clean.
            let own = block - block % THREADS + thread;
            match random.below(10) {
                0 | 1 if own < BLOCKS => self.write(own),
                2..=4 if own < BLOCKS => {
                    let content = self.read(own);
                    // Every other time what a block held before, or what a neighbour holds.
                    let offered = match random.below(4) {
                        0 => stale,
                        1 => std::array::from_fn(|at| content[at ^ 1]),
                        _ => content,
                    };
                    stale = self.offer(pool, own, offered, stale);
                }
                5 => {
                    let mut content = [0; BLOCK_SIZE];
                    let oldest = self.oldest(block);
                    if self.disk.read_cached(&mut content, block * BLOCK_BYTES)
                        || self.disk.get(pool, block, &mut content)
                    {
                        self.check(block, oldest, &content);
                    }
                }
                _ => {
                    let count = (1 + random.below(8)).min(BLOCKS - block);
                    let mut content = vec![0; at(count) * BLOCK_SIZE];
                    let oldest: Vec<_> = (block..block + count).map(|b| self.oldest(b)).collect();
                    let read = self.disk.read_for(pool, &mut content, block * BLOCK_BYTES);
                    if read.is_err() && !self.stays {
                        continue;
                    }
                    read.unwrap();
                    for ((b, old), part) in
                        (block..).zip(oldest).zip(content.chunks_exact(BLOCK_SIZE))
                    {
                        self.check(b, old, part);
                    }
                }
            }
        }
        steps
    }
}

fn reconfigure(
    cache: &Arc<Cache>,
    vms: &[VmId],
    tested: &[Tested],
    ids: &[crate::ids::DiskId],
    stop: &AtomicBool,
) {
    let mut random = Random::new(99);
    let ssd = FaultSsd::new();
    ssd.grow(8 << 20).unwrap();
    while !stop.load(Ordering::Relaxed) {
        let v = at(random.below(2));
        let pool = tested[v].pools[at(random.below(3))];
        let weight = Weight::try_from(1 + random.below(1000)).unwrap();
        match random.below(10) {
            0 => cache.set_vm_weight(vms[v], weight).unwrap(),
            1 => {
                let some = [
                    (Some(weight), None),
                    (None, Some(weight)),
                    (Some(weight), Some(weight)),
                    (Some(weight), Some(weight)),
                ];
                let (memory, ssd) = some[at(random.below(4))];
                let spec = PoolSpec::new(memory, ssd).unwrap();
                cache.set_pool(pool, spec).unwrap();
            }
            2 => {
                let all = u64::try_from(Policy::ALL.len()).unwrap();
                cache
                    .set_vm_policy(vms[v], Policy::ALL[at(random.below(all))])
                    .unwrap();
            }
            3 | 4 => {
                let bytes = (32 + random.below(400)) * BLOCK_BYTES;
                cache.resize(StoreKind::Memory, bytes).unwrap();
            }
            5 => {
                let first = random.below(BLOCKS);
                cache.migrate(ids[v], first..first + 64, pool).unwrap();
            }
            6 => {
                cache.set_ssd(None).unwrap();
                cache.start_ssd(Box::new(ssd.clone()), 2 << 20, 2).unwrap();
            }
            7 => {
                let faults = [&ssd.faults.reads, &ssd.faults.writes, &ssd.faults.lies];
                match faults.get(at(random.below(4))) {
                    Some(fault) => fault.store(2, Ordering::Relaxed),
                    None => ssd.hang(random.below(2) == 0),
                }
            }
            8 => {
                let extents = 1 + random.below(12);
                // Refused while there is none that works.
                let _ = cache.resize(StoreKind::Ssd, extents * (256 << 10));
            }
            _ => {
                let extra = cache
                    .create_pool(vms[v], "short-lived", PoolSpec::default())
                    .unwrap();
                cache.migrate(ids[v], 0..BLOCKS, extra).unwrap();
                cache.destroy_pool(extra).unwrap();
            }
        }
        std::thread::sleep(Duration::from_micros(300));
    }
}

/// VMs come and go. Their blocks are dropped while others use and change the cache, and while they are still read.
fn come_and_go(cache: &Arc<Cache>, stop: &AtomicBool) -> u64 {
    let mut random = Random::new(55);
    let mut removed = 0;
    while !stop.load(Ordering::Relaxed) {
        let vm = cache.add_vm("guest", Weight::default(), Policy::Fifo);
        let vm = vm.unwrap();
        cache.track_residency(vm, 1).unwrap();
        let id = cache.add_disk(vm, "disk").unwrap();
        let tested = Tested::new(cache, vm, id, 3 + removed % 200, false);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| tested.work(0, &done, removed));
            std::thread::sleep(Duration::from_millis(2));
            if random.below(2) == 0 {
                cache.destroy_pool(tested.pools[1]).unwrap();
            }
            if random.below(2) == 0 {
                cache.remove_disk(id).unwrap();
            }
            cache.remove_vm(vm).unwrap();
            std::thread::sleep(Duration::from_millis(1));
            done.store(true, Ordering::Relaxed);
        });
        removed += 1;
    }
    removed
}

#[test]
fn threads_never_see_old_or_foreign_blocks() {
    let seconds = std::env::var("JUSTITIA_CACHE_STRESS_SECONDS")
        .ok()
        .and_then(|s| s.parse().ok())
        .unwrap_or(5);
    let cache = Cache::new(CacheConfig {
        memory_bytes: 200 * BLOCK_BYTES,
        memory_limit: Some(1024 * BLOCK_BYTES),
        ..CacheConfig::default()
    })
    .unwrap();
    let (mut vms, mut ids, mut tested) = (Vec::new(), Vec::new(), Vec::new());
    for v in 0..2 {
        let vm = cache.add_vm("vm", Weight::default(), Policy::Fifo).unwrap();
        cache.track_residency(vm, 1).unwrap();
        let id = cache.add_disk(vm, "disk").unwrap();
        vms.push(vm);
        ids.push(id);
        tested.push(Tested::new(&cache, vm, id, v + 1, true));
    }
    let stop = AtomicBool::new(false);
    let steps = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (t, n) in tested
            .iter()
            .flat_map(|t| (0..THREADS).map(move |n| (t, n)))
        {
            let stop = &stop;
            threads.push(scope.spawn(move || t.work(n, stop, 7 + n + 100 * t.number)));
        }
        let changes = scope.spawn(|| reconfigure(&cache, &vms, &tested, &ids, &stop));
        let guests = scope.spawn(|| come_and_go(&cache, &stop));
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(seconds)
            && threads.iter().all(|t| !t.is_finished())
            && !changes.is_finished()
            && !guests.is_finished()
        {
            std::thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
        changes.join().unwrap();
        assert!(guests.join().unwrap() > 5, "few VMs came and went");
        threads.into_iter().map(|t| t.join().unwrap()).sum::<u64>()
    });
    assert!(steps > 1000, "only {steps} steps");
    let accepted = |t: &Tested| t.accepted.load(Ordering::Relaxed);
    println!(
        "{steps} steps, accepted {:?}",
        tested.iter().map(accepted).collect::<Vec<_>>()
    );
    assert!(
        accepted(&tested[1]) > 100,
        "the exclusive disk's guest put nothing"
    );
    cache.audit();
    cache.set_ssd(None).unwrap();
    cache.audit();
}
