//! A cached disk, by its operations.

use super::CachedDisk;
use crate::block::BLOCK_BYTES;
use crate::block::BLOCK_SIZE;
use crate::block::Block;
use crate::block_dev::BlockDevice;
use crate::block_dev::RamDisk;
use crate::cache::Cache;
use crate::config::Mode;
use crate::config::{CacheConfig, Policy, PoolSpec, StoreKind};
use crate::error::CacheError;
use crate::ids::PoolId;
use justitia_share::Weight;
use std::sync::Arc;

fn disk(mode: Mode) -> (Arc<Cache>, CachedDisk, PoolId) {
    let cache = Cache::new(CacheConfig::of_memory(64 * BLOCK_BYTES)).unwrap();
    let vm = cache.add_vm("vm", Weight::default(), Policy::Fifo).unwrap();
    let pool = cache.default_pool(vm).unwrap();
    let id = cache.add_disk(vm, "disk").unwrap();
    let backing = Arc::new(RamDisk::new(16 * BLOCK_SIZE + 100));
    let disk = CachedDisk::new(backing, cache.clone(), id, mode).unwrap();
    (cache, disk, pool)
}

fn counts(cache: &Cache) -> crate::cache::Counts {
    cache.stats().vms[0].pools[0].counts
}

#[test]
fn a_read_fills_and_the_next_is_a_hit_counted_once() {
    let (cache, disk, _) = disk(Mode::Inclusive);
    disk.write_at(&[7; 3 * BLOCK_SIZE], 0, false).unwrap();
    let mut buf = [0; 2 * BLOCK_SIZE];
    disk.read_at(&mut buf, 100).unwrap();
    assert_eq!((counts(&cache).gets, counts(&cache).insertions), (3, 3));
    buf.fill(0);
    assert!(disk.read_cached(&mut buf, 100));
    assert_eq!(buf, [7; 2 * BLOCK_SIZE]);
    let found = counts(&cache);
    assert_eq!((found.gets, found.memory_hits), (6, 3));
    // The end of the disk is no whole block: read, but not cached.
    let end = 16 * BLOCK_BYTES + 50;
    disk.read_at(&mut buf[..50], end).unwrap();
    assert!(!disk.read_cached(&mut buf[..50], end));
    assert!(disk.read_at(&mut buf, end).is_err());
}

#[test]
fn an_exclusive_hit_takes_the_block_out() {
    let (cache, disk, pool) = disk(Mode::Exclusive);
    let mut buf: Block = [0; BLOCK_SIZE];
    disk.read_at(&mut buf, 0).unwrap();
    assert_eq!(counts(&cache).insertions, 0, "misses do not fill");
    assert!(disk.fill(pool, 3, &buf));
    assert!(!disk.fill(pool, 16, &buf), "the partial block at the end");
    assert!(disk.get(pool, 3, &mut buf));
    assert!(!disk.get(pool, 3, &mut buf));
    assert!(disk.fill(pool, 3, &buf));
    disk.discard(3 * BLOCK_BYTES + 1, 1).unwrap();
    assert!(!disk.get(pool, 3, &mut buf), "rounded outwards");
    assert_eq!(counts(&cache).invalidations, 1);
}

/// What a guest is told of: how long reads take that miss, and those that hit; a block that is taken counts for its pool.
#[test]
fn reads_are_timed_by_whether_they_hit() {
    crate::clock::reset();
    let (cache, disk, _) = disk(Mode::Exclusive);
    let other = cache
        .create_pool(cache.stats().vms[0].id, "other", PoolSpec::default())
        .unwrap();
    let mut buf = [0; 4 * BLOCK_SIZE];
    disk.read_at(&mut buf, 100).unwrap();
    let found = counts(&cache);
    assert_eq!((found.disk_reads, found.disk_read_blocks), (1, 4));
    assert_eq!((found.timed_hit_blocks, found.timed_hit_ns), (0, 0));
    // The read has ended, and nothing is under way.
    let busy = || cache.stats().vms[0].disks[0].read_busy_us;
    let before = busy();
    std::thread::sleep(std::time::Duration::from_millis(2));
    assert_eq!(busy(), before);
    let block: Block = [0; BLOCK_SIZE];
    for _ in 0..64 {
        assert!((0..4).all(|at| disk.fill(other, at, &block)));
        disk.read_at(&mut buf, 0).unwrap();
    }
    let stats = cache.stats();
    let [of_disk, of_other] = [0, 1].map(|at| stats.vms[0].pools[at].counts);
    // One read in sixteen was timed, and stands for all.
    assert_eq!(
        (of_disk.memory_hits, of_disk.timed_hit_blocks),
        (256, 4 * 64)
    );
    assert!(of_disk.timed_hit_ns > 0);
    assert_eq!((of_disk.taken, of_other.taken), (0, 256));
    assert_eq!(of_disk.disk_reads, 1);
}

#[test]
fn a_pool_of_an_ssd_that_is_not_there_uses_memory() {
    let (cache, disk, pool) = disk(Mode::Inclusive);
    let spec = PoolSpec::of(StoreKind::Ssd, Weight::default());
    cache.set_pool(pool, spec).unwrap();
    let mut buf = [0; BLOCK_SIZE];
    disk.read_at(&mut buf, 0).unwrap();
    assert!(disk.read_cached(&mut buf, 0));
    let stats = cache.stats();
    assert_eq!(stats.stores.len(), 1);
    assert_eq!(stats.vms[0].pools[0].memory_bytes, BLOCK_BYTES);
}

/// A real file, with its writer threads and rings.
#[test]
fn blocks_come_back_from_an_ssd_store() {
    let (cache, disk, pool) = disk(Mode::Inclusive);
    let dir = tempfile::tempdir().unwrap();
    let config = crate::config::SsdConfig::new(dir.path().join("ssd"), 4 << 20);
    cache.set_ssd(Some(config.clone())).unwrap();
    let spec = PoolSpec::of(StoreKind::Ssd, Weight::default());
    cache.set_pool(pool, spec).unwrap();
    let content: Vec<u8> = (0..16 * BLOCK_SIZE)
        .map(|i| u8::try_from(i / 64 % 251).unwrap())
        .collect();
    disk.write_at(&content, 0, false).unwrap();
    let mut buf = vec![0; content.len()];
    // A unit is sixteen blocks: the second round finds it on the device, once it is there.
    disk.read_at(&mut buf, 0).unwrap();
    let start = std::time::Instant::now();
    while disk.read_cached(&mut buf, 0) {
        assert!(start.elapsed().as_secs() < 30, "never written");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let before = counts(&cache).ssd_hits;
    buf.fill(0);
    disk.read_at(&mut buf, 0).unwrap();
    assert_eq!(buf, content);
    assert_eq!(counts(&cache).ssd_hits - before, 16);
    // Another process cannot use it.
    let second = Cache::new(CacheConfig {
        ssd: Some(config),
        ..CacheConfig::default()
    });
    assert!(matches!(second, Err(CacheError::Ssd { .. })));
    cache.drop_blocks(pool, StoreKind::Ssd).unwrap();
    while cache.stats().vms[0].pools[0].ssd_bytes > 0 {
        assert!(start.elapsed().as_secs() < 30, "never free");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    disk.read_at(&mut buf, 0).unwrap();
    assert_eq!(buf, content);
}

#[test]
fn a_disk_that_was_removed_reads_no_block_of_a_later_disk() {
    let (cache, old, _) = disk(Mode::Inclusive);
    // Of the same names, for which it would have the same number.
    let vm = cache.add_vm("vm", Weight::default(), Policy::Fifo).unwrap();
    let removed = old.disk_id().unwrap();
    cache.remove_disk(removed).unwrap();
    let add = || {
        let backing = Arc::new(RamDisk::new(8 * BLOCK_SIZE));
        backing.write_at(&[2; BLOCK_SIZE], 0, false).unwrap();
        let id = cache.add_disk(vm, "disk").unwrap();
        CachedDisk::new(backing, cache.clone(), id, Mode::Inclusive).unwrap()
    };
    let new = add();
    let mut buf = [0; BLOCK_SIZE];
    new.read_at(&mut buf, 0).unwrap();
    assert_eq!(buf[0], 2);
    old.read_at(&mut buf, 0).unwrap();
    assert_eq!(buf[0], 0, "the block is another disk's");
    // Once its last reference is gone, its number is reused.
    drop(old);
    assert_eq!(add().disk_id().unwrap().number, removed.number);
}
