//! Pools whose disk is slower or faster than the SSD store. Time is modelled.

use super::CachedDisk;
use crate::block::{BLOCK_BYTES, BLOCK_SIZE, Block};
use crate::block_dev::{BlockDevice, RamDisk};
use crate::cache::Cache;
use crate::clock;
use crate::config::{CacheConfig, Mode, Policy, PoolSpec, StoreKind};
use crate::ids::PoolId;
use crate::model::fault::FaultSsd;
use crate::ssd_admission::SsdAdmission;
use crate::store::{BlocksRead, Device, Overdue};
use justitia_guest_protocol::puts::Verdict;
use justitia_share::Weight;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Blocks that are read, each by itself, in a loop. The SSD has room for all, memory for a quarter.
const BLOCKS: u64 = 512;
/// What a read of the SSD takes, us, and a block that is written there.
const SSD: u64 = 70;
const WRITE: u64 = 2;

fn pass(us: u64) {
    clock::pass(Duration::from_micros(us));
}

/// A disk whose reads take some time, us.
struct TimedDisk(RamDisk, AtomicU64);

impl BlockDevice for TimedDisk {
    fn size(&self) -> u64 {
        self.0.size()
    }
    fn read_at(&self, buf: &mut [u8], off: u64) -> io::Result<()> {
        pass(self.1.load(Ordering::Relaxed));
        self.0.read_at(buf, off)
    }
    fn write_at(&self, buf: &[u8], off: u64, fua: bool) -> io::Result<()> {
        self.0.write_at(buf, off, fua)
    }
    fn flush(&self) -> io::Result<()> {
        self.0.flush()
    }
}

struct TimedSsd(FaultSsd);

impl Device for TimedSsd {
    fn read(&self, offsets: &[u64], patience: Duration) -> Result<BlocksRead, Overdue> {
        pass(SSD);
        self.0.read(offsets, patience)
    }
    fn write(&self, requests: &[(u64, &[u8])]) -> Vec<io::Result<()>> {
        let bytes: u64 = requests.iter().map(|(_, b)| crate::block::len(b)).sum();
        pass(WRITE * bytes / BLOCK_BYTES);
        self.0.write(requests)
    }
    fn discard(&self, off: u64, len: u64) -> io::Result<()> {
        self.0.discard(off, len)
    }
    fn grow(&self, len: u64) -> io::Result<u64> {
        self.0.grow(len)
    }
}

/// A disk, and its pool.
struct Guest {
    disk: CachedDisk,
    backing: Arc<TimedDisk>,
    pool: PoolId,
    index: usize,
}

struct Rig {
    cache: Arc<Cache>,
    guests: Vec<Guest>,
}

fn content(block: u64) -> Block {
    let mut content = [0; BLOCK_SIZE];
    content[..8].copy_from_slice(&block.to_ne_bytes());
    content
}

impl Rig {
    /// A VM for each delay of a disk, us.
    fn new(mode: Mode, spec: PoolSpec, delays: &[u64]) -> Self {
        let cache = Cache::new(CacheConfig::of_memory(BLOCKS / 4 * BLOCK_BYTES)).unwrap();
        let bytes = 8 * BLOCKS * BLOCK_BYTES;
        let ssd = TimedSsd(FaultSsd::new());
        ssd.grow(bytes).unwrap();
        cache.start_ssd(Box::new(ssd), bytes, 0).unwrap();
        let guest = |(index, delay): (usize, &u64)| {
            let vm = cache
                .add_vm(&format!("vm{index}"), Weight::default(), Policy::Fifo)
                .unwrap();
            cache.track_residency(vm, 1 << 20).unwrap();
            let pool = cache.create_pool(vm, "pool", spec).unwrap();
            let id = cache.add_disk(vm, "disk").unwrap();
            let ram = RamDisk::new(usize::try_from(BLOCKS * BLOCK_BYTES).unwrap());
            for block in 0..BLOCKS {
                let off = block * BLOCK_BYTES;
                ram.write_at(&content(block), off, false).unwrap();
            }
            let backing = Arc::new(TimedDisk(ram, AtomicU64::new(*delay)));
            let disk = CachedDisk::new(backing.clone(), cache.clone(), id, mode).unwrap();
            Guest {
                disk,
                backing,
                pool,
                index,
            }
        };
        let guests = delays.iter().enumerate().map(guest).collect();
        Self { cache, guests }
    }

    /// Reads all blocks in turn, so many times, and puts them if the disk is exclusive. Returns what a read took in the last
    /// round, us, and how many puts were accepted in it.
    fn rounds(&self, guest: usize, count: usize) -> (u64, u64) {
        let guest = &self.guests[guest];
        let mut last = (0, 0);
        for _ in 0..count {
            let (mut took, mut accepted) = (Duration::ZERO, 0);
            for block in 0..BLOCKS {
                let mut found = [0; BLOCK_SIZE];
                let begun = clock::now();
                guest
                    .disk
                    .read_for(guest.pool, &mut found, block * BLOCK_BYTES)
                    .unwrap();
                took += clock::since(begun);
                assert_eq!(found, content(block));
                let verdict = guest.disk.offer(guest.pool, block, &found);
                accepted += u64::from(verdict == Verdict::Accepted);
                while self.cache.write_ssd() {}
                pass(1);
            }
            let us = u64::try_from(took.as_micros()).unwrap();
            last = (us / BLOCKS, accepted);
        }
        self.cache.audit();
        last
    }

    fn ssd_admission(&self, guest: usize) -> SsdAdmission {
        let vm = self.guests[guest].index;
        self.cache.stats().vms[vm].pools[1].ssd_admits
    }

    fn set_disk(&self, guest: usize, us: u64) {
        let disk = &self.guests[guest].backing;
        disk.1.store(us, Ordering::Relaxed);
    }

    fn demotions(&self) -> u64 {
        self.cache.stats().vms[0].pools[1].counts.demotions
    }
}

fn on_ssd() -> PoolSpec {
    PoolSpec::of(StoreKind::Ssd, Weight::default())
}

/// A disk that is faster than the SSD is read, but for a sample; once it is slow, all comes from the SSD again.
#[test]
fn a_pool_uses_the_ssd_while_the_disk_is_slower() {
    for mode in [Mode::Inclusive, Mode::Exclusive] {
        let rig = Rig::new(mode, on_ssd(), &[20]);
        assert_eq!(
            rig.ssd_admission(0),
            SsdAdmission::All,
            "before anything is known"
        );
        let (took, accepted) = rig.rounds(0, 40);
        assert_eq!(rig.ssd_admission(0), SsdAdmission::Bypass, "{mode:?}");
        assert!(took < 25, "{mode:?}: {took} us");
        assert!(accepted < BLOCKS / 4, "{mode:?}: {accepted}");
        rig.set_disk(0, 1000);
        let (took, _) = rig.rounds(0, 60);
        assert_eq!(rig.ssd_admission(0), SsdAdmission::All, "{mode:?}");
        assert!(took < 75, "{mode:?}: {took} us");
    }
}

#[test]
fn a_slow_disk_s_pool_keeps_the_ssd_beside_a_fast_one_s() {
    let rig = Rig::new(Mode::Exclusive, on_ssd(), &[20, 1000]);
    for _ in 0..40 {
        rig.rounds(0, 1);
        rig.rounds(1, 1);
    }
    assert_eq!(
        [rig.ssd_admission(0), rig.ssd_admission(1)],
        [SsdAdmission::Bypass, SsdAdmission::All]
    );
    assert!(rig.rounds(1, 1).0 < 75);
}

/// A pool that is given the SSD anew, and all pools with a new SSD store, begin as if nothing were known.
#[test]
fn a_new_store_is_tried() {
    let rig = Rig::new(Mode::Inclusive, on_ssd(), &[20]);
    rig.rounds(0, 40);
    assert_eq!(rig.ssd_admission(0), SsdAdmission::Bypass);
    let pool = rig.guests[0].pool;
    rig.cache.set_pool(pool, on_ssd()).unwrap();
    assert_eq!(
        rig.ssd_admission(0),
        SsdAdmission::Bypass,
        "nothing has changed"
    );
    rig.cache.set_pool(pool, PoolSpec::default()).unwrap();
    rig.cache.set_pool(pool, on_ssd()).unwrap();
    assert_eq!(rig.ssd_admission(0), SsdAdmission::All);
    rig.rounds(0, 40);
    assert_eq!(rig.ssd_admission(0), SsdAdmission::Bypass);
    rig.cache.set_ssd(None).unwrap();
    assert_eq!(rig.ssd_admission(0), SsdAdmission::All);
}

/// What memory evicts of a hybrid pool is demoted only where that is worth it.
#[test]
fn a_hybrid_pool_on_a_fast_disk_is_one_in_memory() {
    let both = PoolSpec::default().with(StoreKind::Ssd, Weight::default());
    for (us, expected) in [(20, SsdAdmission::Bypass), (1000, SsdAdmission::All)] {
        let rig = Rig::new(Mode::Inclusive, both, &[us]);
        let (took, _) = rig.rounds(0, 60);
        assert_eq!(rig.ssd_admission(0), expected, "{us} us");
        let before = rig.demotions();
        rig.rounds(0, 4);
        let down = rig.demotions() - before;
        assert!(took < 75 && down < BLOCKS / 4, "{took} us, {down} down");
    }
}
