//! Valid and invalid puts of a guest.

use super::CachedDisk;
use crate::block::{BLOCK_BYTES, BLOCK_SIZE, Block};
use crate::block_dev::{BlockDevice, RamDisk};
use crate::cache::Cache;
use crate::config::{CacheConfig, Mode, Policy, StoreKind};
use crate::ids::{DiskId, PoolId, VmId};
use justitia_guest_protocol::puts::Verdict;
use justitia_share::Weight;
use std::sync::Arc;

struct Guest {
    cache: Arc<Cache>,
    vm: VmId,
    id: DiskId,
    disk: CachedDisk,
    pool: PoolId,
    backing: Arc<RamDisk>,
}

/// A VM with a disk whose every block has a content of its own.
fn guest(cache: &Arc<Cache>, mode: Mode, tracked: bool) -> Guest {
    let vm = cache.add_vm("vm", Weight::default(), Policy::Fifo).unwrap();
    if tracked {
        cache.track_residency(vm, 1 << 20).unwrap();
    }
    let pool = cache.default_pool(vm).unwrap();
    let id = cache.add_disk(vm, "disk").unwrap();
    let backing = Arc::new(RamDisk::new(32 * BLOCK_SIZE + 100));
    for block in 0..32 {
        let content = [u8::try_from(block + 1).unwrap(); BLOCK_SIZE];
        backing
            .write_at(&content, block * BLOCK_BYTES, false)
            .unwrap();
    }
    let disk = CachedDisk::new(backing.clone(), cache.clone(), id, mode).unwrap();
    Guest {
        cache: cache.clone(),
        vm,
        id,
        disk,
        pool,
        backing,
    }
}

fn cache() -> Arc<Cache> {
    Cache::new(CacheConfig::of_memory(64 * BLOCK_BYTES)).unwrap()
}

fn alone(mode: Mode) -> Guest {
    guest(&cache(), mode, true)
}

impl Guest {
    fn read(&self, block: u64) -> Block {
        let mut content = [0; BLOCK_SIZE];
        self.disk
            .read_at(&mut content, block * BLOCK_BYTES)
            .unwrap();
        content
    }

    fn offer(&self, block: u64, content: &Block) -> Verdict {
        self.disk.offer(self.pool, block, content)
    }

    fn is_cached(&self, block: u64) -> bool {
        self.cache.has(self.id, block)
    }
}

#[test]
fn a_block_that_was_read_or_written_is_accepted_once() {
    let g = alone(Mode::Exclusive);
    let content = g.read(3);
    assert_eq!(g.offer(3, &content), Verdict::Accepted);
    assert_eq!(g.offer(3, &content), Verdict::Held);
    // A hit takes it out, and the guest holds it again; so does a read of several blocks with this one among them.
    let mut several = [0; 3 * BLOCK_SIZE];
    g.disk.read_at(&mut several, 2 * BLOCK_BYTES).unwrap();
    assert!(!g.is_cached(3));
    for block in 2..5 {
        let content = [u8::try_from(block + 1).unwrap(); BLOCK_SIZE];
        assert_eq!(g.offer(block, &content), Verdict::Accepted);
    }
    let new = [77; 2 * BLOCK_SIZE];
    g.disk.write_at(&new, 3 * BLOCK_BYTES, false).unwrap();
    assert!(!g.is_cached(3));
    assert_eq!(g.offer(3, &[77; BLOCK_SIZE]), Verdict::Accepted);
    assert_eq!(g.read(3), [77; BLOCK_SIZE]);
    // Replayed after it was evicted: it was given away.
    assert_eq!(g.offer(4, &[77; BLOCK_SIZE]), Verdict::Accepted);
    g.cache.drop_blocks(g.pool, StoreKind::Memory).unwrap();
    assert_eq!(g.offer(4, &[77; BLOCK_SIZE]), Verdict::Unknown);
}

#[test]
fn stale_forged_encrypted_and_foreign_contents_are_refused() {
    let cache = cache();
    let g = guest(&cache, Mode::Exclusive, true);
    let other = guest(&cache, Mode::Exclusive, true);
    let old = g.read(3);
    let (neighbour, foreign) = (g.read(4), other.read(20));
    let mut forged = old;
    forged[BLOCK_SIZE - 1] ^= 1;
    let encrypted = old.map(|byte| byte ^ 0x5C);
    for content in [&neighbour, &foreign, &forged, &encrypted, &[0; BLOCK_SIZE]] {
        assert_eq!(g.offer(3, content), Verdict::Mismatch);
    }
    // Rewritten as a whole: the old content is not the disk's any more. In part: nobody knows what the guest holds.
    g.disk
        .write_at(&[9; BLOCK_SIZE], 3 * BLOCK_BYTES, false)
        .unwrap();
    assert_eq!(g.offer(3, &old), Verdict::Mismatch);
    g.disk.write_at(&[8; 512], 3 * BLOCK_BYTES, false).unwrap();
    assert_eq!(g.offer(3, &[9; BLOCK_SIZE]), Verdict::Unknown);
    for change in [
        g.disk.discard(4 * BLOCK_BYTES, 1),
        g.disk
            .write_zeroes(20 * BLOCK_BYTES, BLOCK_BYTES, false, true),
    ] {
        change.unwrap();
    }
    assert_eq!(g.offer(4, &neighbour), Verdict::Unknown);
    // Another VM's residency does not validate this one's puts.
    assert_eq!(other.offer(3, &old), Verdict::Unknown);
    assert!((0..32).all(|block| !g.is_cached(block) && !other.is_cached(block)));
    assert_eq!(g.disk.offer(other.pool, 5, &g.read(5)), Verdict::NoRoom);
    assert_eq!(other.offer(20, &foreign), Verdict::Accepted);
}

#[test]
fn blocks_that_were_never_read_as_a_whole_are_unknown() {
    let g = alone(Mode::Exclusive);
    let content = [4; BLOCK_SIZE];
    assert_eq!(g.offer(3, &content), Verdict::Unknown);
    let mut part = [0; BLOCK_SIZE];
    g.disk.read_at(&mut part, 3 * BLOCK_BYTES + 512).unwrap();
    assert_eq!(g.offer(3, &content), Verdict::Unknown);
    for block in [32, 33, 1 << 40, u64::MAX / 4096, u64::MAX] {
        assert_eq!(g.offer(block, &content), Verdict::OutOfRange, "{block}");
    }
    let untracked = guest(&cache(), Mode::Exclusive, false);
    let content = untracked.read(3);
    assert_eq!(untracked.offer(3, &content), Verdict::Unknown);
}

#[test]
fn what_a_miss_filled_is_held_already() {
    let g = alone(Mode::Inclusive);
    let content = g.read(3);
    assert_eq!(g.offer(3, &content), Verdict::Held);
    g.cache.drop_blocks(g.pool, StoreKind::Memory).unwrap();
    assert_eq!(g.offer(3, &content), Verdict::Accepted);
    assert!(g.is_cached(3));
}

#[test]
fn a_disk_that_has_the_number_of_a_removed_one_knows_nothing_of_it() {
    let g = alone(Mode::Exclusive);
    let content = g.read(3);
    g.cache.remove_disk(g.id).unwrap();
    assert_eq!(g.offer(3, &content), Verdict::NoDisk);
    let again = g.cache.add_disk(g.vm, "again").unwrap();
    let disk = CachedDisk::new(g.backing.clone(), g.cache.clone(), again, Mode::Exclusive).unwrap();
    assert_eq!(disk.offer(g.pool, 3, &content), Verdict::Unknown);
}

#[test]
fn a_put_during_a_write_is_refused_and_the_write_says_nothing_of_what_it_raced_with() {
    let g = alone(Mode::Exclusive);
    let old = g.read(3);
    let write = g.disk.begin_write(3 * BLOCK_BYTES, BLOCK_BYTES);
    assert_eq!(g.offer(3, &old), Verdict::Unknown);
    // A concurrent read may return either content.
    let either = g.read(3);
    assert_eq!(g.offer(3, &either), Verdict::Unknown);
    let second = g.disk.begin_write(3 * BLOCK_BYTES + 512, 512);
    write.completed(&[9; BLOCK_SIZE]);
    assert_eq!(g.offer(3, &[9; BLOCK_SIZE]), Verdict::Unknown);
    drop(second);
    assert_eq!(g.offer(3, &[9; BLOCK_SIZE]), Verdict::Unknown);
}

#[test]
fn a_block_that_finds_no_room_can_be_offered_again() {
    let g = alone(Mode::Exclusive);
    let content = g.read(3);
    g.cache.resize(StoreKind::Memory, 0).unwrap();
    assert_eq!(g.offer(3, &content), Verdict::NoRoom);
    g.cache.resize(StoreKind::Memory, 64 * BLOCK_BYTES).unwrap();
    assert_eq!(g.offer(3, &content), Verdict::Accepted);
}

/// One VM's reads do not take another's places in the table.
#[test]
fn a_guest_that_reads_much_forgets_only_its_own() {
    let cache = cache();
    let g = guest(&cache, Mode::Exclusive, true);
    let content = g.read(3);
    let vm = cache
        .add_vm("other", Weight::default(), Policy::Fifo)
        .unwrap();
    cache.track_residency(vm, 1).unwrap();
    let id = cache.add_disk(vm, "disk").unwrap();
    let backing = Arc::new(RamDisk::new(64 << 20));
    let other = CachedDisk::new(backing, cache.clone(), id, Mode::Exclusive).unwrap();
    let mut all = vec![0; 64 << 20];
    other.read_at(&mut all, 0).unwrap();
    let known = |at: usize| cache.stats().vms[at].residency.unwrap();
    assert_eq!((known(0).blocks, known(0).capacity_blocks), (1, 1 << 16));
    assert!(
        known(1).blocks > 3500 && known(1).capacity_blocks == 4096,
        "{:?}",
        known(1)
    );
    assert_eq!(g.offer(3, &content), Verdict::Accepted);
}
