//! What one VM has of the SSD store while another does what it can: shares of what is written, and how long a miss takes.
//!
//! `cargo test --release -p justitia-cache-lab --lib measured_neighbours -- --ignored --nocapture --test-threads 1`, on a file of
//! `/var/tmp` with 8 GiB of blocks.

use super::delay_disk::DelayDisk;
use super::spread::Spread;
use justitia_cache::lab::{
    BLOCK_BYTES, BlocksRead, Device, FileDevice, Foreign, Overdue, Random, clock,
};
use justitia_cache::{
    BLOCK_SIZE, BlockDevice as _, Cache, CacheConfig, CachedDisk, Mode, Policy, PoolId, PoolSpec,
    StoreKind, VmId,
};
use justitia_share::Weight;
use justitia_share::num::to_f64;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What the store holds, and the neighbour has of it.
const BYTES: u64 = 8 << 30;
/// Pools of the neighbour.
const POOLS: u64 = 8;
/// What a read of the disk takes.
const DELAY: Duration = Duration::from_micros(500);
const ROUNDS: usize = 3;

/// A file that may be told to hang, or to write a number of bytes a second.
struct Slowed {
    file: FileDevice,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    hangs: AtomicBool,
    bytes_per_s: AtomicU64,
    unanswered: parking_lot::Mutex<Vec<Arc<()>>>,
}

impl Device for Slowed {
    fn read(&self, offsets: &[u64], patience: Duration) -> Result<BlocksRead, Overdue> {
        if !self.state.hangs.load(Ordering::SeqCst) {
            return self.file.read(offsets, patience);
        }
        std::thread::sleep(patience);
        let under_way = Arc::new(());
        let overdue = Overdue::new(&under_way);
        self.state.unanswered.lock().push(under_way);
        Err(overdue)
    }
    fn write(&self, requests: &[(u64, &[u8])]) -> Vec<io::Result<()>> {
        let begun = Instant::now();
        let done = self.file.write(requests);
        let bytes: u64 = requests
            .iter()
            .map(|(_, b)| justitia_cache::lab::len(b))
            .sum();
        let rate = self.state.bytes_per_s.load(Ordering::SeqCst);
        if let Some(ns) = (bytes * 1_000_000_000).checked_div(rate) {
            let end = begun + Duration::from_nanos(ns);
            std::thread::sleep(end.saturating_duration_since(Instant::now()));
        }
        done
    }
    fn discard(&self, off: u64, len: u64) -> io::Result<()> {
        self.file.discard(off, len)
    }
    fn grow(&self, len: u64) -> io::Result<u64> {
        self.file.grow(len)
    }
}

struct Guest {
    vm: VmId,
    disk: CachedDisk,
    backing: Arc<DelayDisk>,
    pools: Vec<PoolId>,
}

struct Rig {
    cache: Arc<Cache>,
    state: Arc<State>,
    _dir: tempfile::TempDir,
}

impl Rig {
    fn new() -> Self {
        clock::reset();
        let dir = tempfile::tempdir_in(Path::new("/var/tmp")).unwrap();
        let cache = Cache::new(CacheConfig::default()).unwrap();
        let file = FileDevice::open(&dir.path().join("ssd"), BYTES, Foreign::Refuse).unwrap();
        let state = Arc::<State>::default();
        let device = Slowed {
            file,
            state: Arc::clone(&state),
        };
        cache.start_ssd(Box::new(device), BYTES, 2).unwrap();
        Self {
            cache,
            state,
            _dir: dir,
        }
    }

    fn guest(&self, weight: u64, pools: u64) -> Guest {
        let weight = Weight::try_from(weight).unwrap();
        let vm = self.cache.add_vm("vm", weight, Policy::Sieve).unwrap();
        let spec = PoolSpec::of(StoreKind::Ssd, Weight::default());
        self.cache
            .set_pool(self.cache.default_pool(vm).unwrap(), spec)
            .unwrap();
        let pools = (0..pools).map(|_| self.cache.create_pool(vm, "pool", spec).unwrap());
        let pools = pools.collect();
        let id = self.cache.add_disk(vm, "disk").unwrap();
        let backing = Arc::new(DelayDisk::new(1 << 50));
        let disk = CachedDisk::new(backing.clone(), self.cache.clone(), id, Mode::Inclusive);
        Guest {
            vm,
            disk: disk.unwrap(),
            backing,
            pools,
        }
    }

    /// Bytes that were written to the SSD for a VM.
    fn written(&self, guest: &Guest) -> u64 {
        let stats = self.cache.stats_of(guest.vm).unwrap();
        let pools = stats.pools.iter();
        pools.map(|pool| pool.counts.ssd_write_bytes).sum()
    }
}

impl Guest {
    /// Fills the pools with as many blocks each.
    fn fill(&self, bytes: u64) {
        let each = bytes / BLOCK_BYTES / u64::try_from(self.pools.len()).unwrap();
        for (pool, first) in self.pools.iter().zip((0..).step_by(1 << 30)) {
            for block in first..first + each {
                while !self.disk.fill(*pool, block, &[1; BLOCK_SIZE]) {
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
        }
    }

    /// What misses take until `until` says so.
    fn misses(&self, random: &mut Random, until: impl Fn() -> bool) -> Vec<Duration> {
        let mut took = Vec::new();
        let mut content = [0; BLOCK_SIZE];
        while !until() {
            let block = random.below(1 << 36);
            let begun = Instant::now();
            self.disk
                .read_at(&mut content, block * BLOCK_BYTES)
                .unwrap();
            took.push(begun.elapsed());
        }
        took.sort_unstable();
        took
    }
}

fn percentile(sorted: &[Duration], percent: usize) -> f64 {
    let at = (sorted.len() * percent / 100).min(sorted.len().saturating_sub(1));
    sorted.get(at).map_or(0.0, |time| time.as_secs_f64() * 1e3)
}

/// What the neighbour does.
type Disturbance = fn(&Rig, &Guest);

fn destroy(rig: &Rig, neighbour: &Guest) {
    for pool in &neighbour.pools {
        rig.cache.destroy_pool(*pool).unwrap();
    }
}

fn shrink(rig: &Rig, _: &Guest) {
    rig.cache.resize(StoreKind::Ssd, BYTES / 64).unwrap();
}

/// Something that has nothing to do with the cache, for three seconds: what a busy processor alone costs.
fn compute(_: &Rig, _: &Guest) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        std::hint::spin_loop();
    }
}

/// Sixteen threads, as the daemon has, read what is on an SSD that does not answer, for three seconds.
fn hang(rig: &Rig, neighbour: &Guest) {
    rig.state.hangs.store(true, Ordering::SeqCst);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..16 {
            scope.spawn(move || {
                clock::reset();
                let mut random = Random::new(thread);
                let mut content = [0; BLOCK_SIZE];
                while begun.elapsed() < Duration::from_secs(3) {
                    let off = random.below(1 << 18) * BLOCK_BYTES;
                    neighbour.disk.read_at(&mut content, off).unwrap();
                    std::thread::sleep(Duration::from_millis(5));
                }
            });
        }
    });
    rig.state.hangs.store(false, Ordering::SeqCst);
    rig.state.unanswered.lock().clear();
}

/// One round: what misses take alone, and meanwhile.
fn round(disturbance: Disturbance, seed: u64) -> [Vec<Duration>; 2] {
    let rig = Rig::new();
    let (victim, neighbour) = (rig.guest(100, 0), rig.guest(100, POOLS));
    neighbour.fill(BYTES / 64 * 62);
    for guest in [&victim, &neighbour] {
        guest.backing.set_delay(DELAY);
    }
    let mut random = Random::new(seed);
    let begun = Instant::now();
    let alone = victim.misses(&mut random, || begun.elapsed() > Duration::from_secs(2));
    let over = AtomicBool::new(false);
    let meanwhile = std::thread::scope(|scope| {
        let (over, rig, neighbour) = (&over, &rig, &neighbour);
        scope.spawn(move || {
            clock::reset();
            disturbance(rig, neighbour);
            over.store(true, Ordering::SeqCst);
        });
        victim.misses(&mut random, || over.load(Ordering::SeqCst))
    });
    [alone, meanwhile]
}

fn print_misses(name: &str, disturbance: Disturbance) {
    let rounds: Vec<_> = (1..)
        .take(ROUNDS)
        .map(|seed| round(disturbance, seed))
        .collect();
    let of = |n: usize, percent| {
        let each = rounds.iter().map(|round| percentile(&round[n], percent));
        Spread::of(each.collect())
    };
    let ratios = rounds
        .iter()
        .map(|[alone, meanwhile]| percentile(meanwhile, 99) / percentile(alone, 99));
    let ratio = Spread::of(ratios.collect());
    let misses: usize = rounds.iter().map(|round| round[1].len()).sum();
    println!(
        "a miss, ms, while another {name}: {misses} misses; p50 {} against {}, p99 {} against {}, longest {} against {}; p99 ratio {ratio}",
        of(1, 50),
        of(0, 50),
        of(1, 99),
        of(0, 99),
        of(1, 100),
        of(0, 100)
    );
}

#[test]
#[ignore = "a measurement: prints, and writes 25 GiB"]
fn measured_neighbours_compute() {
    print_misses("computes", compute);
}

#[test]
#[ignore = "a measurement: prints, and writes 25 GiB"]
fn measured_neighbours_destroy_pools() {
    print_misses("destroys pools of 8 GiB", destroy);
}

#[test]
#[ignore = "a measurement: prints, and writes 25 GiB"]
fn measured_neighbours_shrink_the_store() {
    print_misses("shrinks the store by 8 GiB", shrink);
}

#[test]
#[ignore = "a measurement: prints, and writes 25 GiB"]
fn measured_neighbours_hang() {
    print_misses("hangs on its SSD", hang);
}

/// Two VMs that fill all they can, for this long: what is written of the heavy one, of the light one's.
fn shares(bytes_per_s: u64) -> (f64, f64) {
    let rig = Rig::new();
    rig.state.bytes_per_s.store(bytes_per_s, Ordering::SeqCst);
    let guests = [rig.guest(100, 1), rig.guest(1000, 1)];
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for guest in &guests {
            let stop = &stop;
            scope.spawn(move || {
                clock::reset();
                let mut block = 0;
                while !stop.load(Ordering::SeqCst) {
                    block += 1;
                    if !guest.disk.fill(guest.pools[0], block, &[1; BLOCK_SIZE]) {
                        // What a read of the disk takes for its blocks.
                        std::thread::sleep(Duration::from_micros(50));
                    }
                }
            });
        }
        let written = || guests.each_ref().map(|guest| rig.written(guest));
        std::thread::sleep(Duration::from_millis(500));
        let (begun, before) = (Instant::now(), written());
        std::thread::sleep(Duration::from_secs(4));
        let (took, after) = (begun.elapsed(), written());
        stop.store(true, Ordering::SeqCst);
        let [light, heavy] = [0, 1].map(|n| to_f64(after[n] - before[n]));
        (heavy / light, (heavy + light) / took.as_secs_f64() / 1e6)
    })
}

#[test]
#[ignore = "a measurement: prints, and writes 20 GiB"]
fn measured_neighbours_writes() {
    for bytes_per_s in [50_000_000, 400_000_000, 0] {
        let rounds = (0..ROUNDS + 2).map(|_| shares(bytes_per_s));
        let (ratios, rates): (Vec<_>, Vec<_>) = rounds.unzip();
        let (ratio, rate) = (Spread::of(ratios), Spread::of(rates));
        println!(
            "weights 100 and 1000, two writers of {bytes_per_s} bytes/s (0: any): written 1 : {ratio}, {rate} MB/s together"
        );
    }
}
