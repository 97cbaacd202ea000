//! The threads of the SSD store: two writers, and a watchdog for its device.

use super::state::Cache;
use crate::store::{Segment, SsdStore};
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

// Writing segments to the SSD.

impl Cache {
    /// Writes one full segment, if there is one.
    pub(crate) fn write_one(&self, ssd: &Arc<SsdStore>) -> bool {
        let segments: Vec<_> = ssd.waiting_full().into_iter().collect();
        self.write_segments(ssd, &segments);
        !segments.is_empty()
    }

    fn write_segments(&self, ssd: &Arc<SsdStore>, segments: &[Arc<Segment>]) {
        for (segment, result) in segments.iter().zip(ssd.write(segments)) {
            let pool = self.pool_at(ssd.pool_of(segment.first));
            match (result, &pool) {
                (Ok(()), Some(pool)) => pool.count.ssd_write_bytes.add(SsdStore::SEGMENT_BYTES),
                (Err(error), _) if !ssd.closed() => {
                    self.drop_segment(ssd, segment);
                    self.ssd_error(ssd, &error);
                }
                _ => {}
            }
            if ssd.written(segment)
                && let Some(pool) = pool
            {
                self.release_extent(ssd, &pool, segment.first);
            }
        }
    }

    /// Removes the blocks of a segment that could not be written from the index.
    fn drop_segment(&self, ssd: &Arc<SsdStore>, segment: &Segment) {
        for slot in SsdStore::slots(segment) {
            if ssd.unindex(&self.index, slot) {
                ssd.free(slot);
            }
        }
    }
}

/// A writer thread. It ends when the store is closed or the cache is gone.
pub(super) fn write(cache: &Weak<Cache>, ssd: &Arc<SsdStore>) {
    loop {
        let segments = ssd.next_full();
        let Some(cache) = cache.upgrade().filter(|_| !segments.is_empty()) else {
            return;
        };
        cache.write_segments(ssd, &segments);
    }
}

// The watchdog for an SSD store's device.

/// A device that has not answered a read or write for this long has failed. This is the kernel's default timeout of a disk
/// (`/sys/block/*/queue/io_timeout`).
const FAILED: Duration = Duration::from_secs(30);

/// The interval of checks whether it answers again; shorter than the patience with it.
const LOOK: Duration = Duration::from_millis(50);

impl Cache {
    /// Closes the store if its device has not answered for too long. Returns `true` when it must be checked again.
    fn watch_stall(&self, ssd: &Arc<SsdStore>, patience: Duration) -> bool {
        let reads = ssd.stalled_for().map(|time| (time, "read"));
        let writes = ssd.writing_for().map(|time| (time, "write"));
        let Some((stalled, what)) = reads.max(writes).filter(|_| !ssd.closed()) else {
            return false;
        };
        if stalled < patience {
            return true;
        }
        // One error of this kind makes the store fail.
        let error = io::Error::new(
            io::ErrorKind::StorageFull,
            format!("it has not answered a {what} for {} s", stalled.as_secs()),
        );
        self.ssd_error(ssd, &error);
        false
    }
}

/// The watchdog thread. It ends when the store is closed or the cache is gone.
pub(super) fn watch(cache: &Weak<Cache>, ssd: &Arc<SsdStore>) {
    while ssd.wait_for_stall() {
        loop {
            let Some(cache) = cache.upgrade() else {
                return;
            };
            if !cache.watch_stall(ssd, FAILED) {
                break;
            }
            drop(cache);
            std::thread::sleep(LOOK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BLOCK_SIZE;
    use crate::block_dev::{BlockDevice, RamDisk};
    use crate::cache::DiskHandle;
    use crate::cache::pool::PoolHandle;
    use crate::config::{CacheConfig, Mode, Policy, PoolSpec, StoreKind};
    use crate::disk::CachedDisk;
    use crate::ids::{PoolId, VmId};
    use crate::model::fault::FaultSsd;
    use justitia_share::Weight;
    use std::sync::atomic::Ordering;
    use std::time::Instant;

    const SEGMENT: u64 = SsdStore::SEGMENT_BYTES;

    /// A pool that puts ever new blocks.
    struct Putter {
        disk: DiskHandle,
        pool: PoolHandle,
        next: u64,
    }

    /// A cache with an SSD store of this size that writes when it is told to.
    fn cache(bytes: u64) -> Arc<Cache> {
        let cache = Cache::new(CacheConfig::default()).unwrap();
        let device = Box::new(FaultSsd::new());
        cache.start_ssd(device, bytes, 0).unwrap();
        cache
    }

    fn weight(weight: u64) -> Weight {
        Weight::try_from(weight).unwrap()
    }

    fn vm(cache: &Cache, of: u64) -> VmId {
        cache.add_vm("vm", weight(of), Policy::Fifo).unwrap()
    }

    impl Putter {
        fn new(cache: &Cache, vm: VmId, of: u64) -> Self {
            let spec = PoolSpec::of(StoreKind::Ssd, weight(of));
            let pool = cache.create_pool(vm, "pool", spec).unwrap();
            let disk = cache.add_disk(vm, "disk").unwrap();
            Self {
                disk: cache.attach(disk).unwrap().0,
                pool: cache.pool(pool).unwrap(),
                next: 0,
            }
        }

        /// Puts until a put is refused, or `most` times. Returns the number of accepted puts.
        fn put(&mut self, cache: &Cache, most: u64) -> u64 {
            let mut put = 0;
            while put < most {
                let token = self.disk.token(self.next);
                let content = [1; BLOCK_SIZE];
                if cache
                    .insert(&self.disk, &self.pool, self.next, &content, token)
                    .is_err()
                {
                    break;
                }
                self.next += 1;
                put += 1;
            }
            put
        }

        fn written(&self) -> u64 {
            self.pool.count.ssd_write_bytes.get() / SEGMENT
        }
    }

    /// All put as fast as they can until the SSD has written `segments` segments. Returns the segments written for each putter.
    fn saturate(cache: &Cache, putters: &mut [Putter], segments: u64) -> Vec<u64> {
        for _ in 0..segments {
            for putter in &mut *putters {
                putter.put(cache, u64::MAX);
            }
            assert!(cache.write_ssd());
        }
        let written = putters.iter().map(Putter::written).collect();
        // The audit writes the waiting segments.
        cache.audit();
        written
    }

    /// A store that has room for everything, and one that is full all the time.
    #[test]
    fn a_slow_ssd_writes_by_the_weights_of_vms_and_of_their_pools() {
        for bytes in [1 << 30, 48 << 20] {
            let cache = cache(bytes);
            let (light, heavy) = (vm(&cache, 100), vm(&cache, 1000));
            let mut putters = [
                Putter::new(&cache, light, 10_000),
                Putter::new(&cache, heavy, 100),
                Putter::new(&cache, heavy, 300),
            ];
            let written = saturate(&cache, &mut putters, 4400);
            for (written, due) in written.iter().zip([400_u64, 1000, 3000]) {
                assert!(
                    written.abs_diff(due) <= due / 33,
                    "{bytes}: {written} of {due}"
                );
            }
        }
    }

    #[test]
    fn one_vm_alone_has_the_whole_ssd() {
        let cache = cache(1 << 30);
        let (light, heavy) = (vm(&cache, 1), vm(&cache, 10_000));
        let mut alone = [Putter::new(&cache, light, 1)];
        Putter::new(&cache, heavy, 1);
        assert_eq!(saturate(&cache, &mut alone, 500), [500]);
    }

    #[test]
    fn a_queue_that_a_vm_has_filled_is_not_full_for_another() {
        let cache = cache(1 << 30);
        let [mut flood, mut other] = [1, 10_000].map(|of| {
            let vm = vm(&cache, of);
            Putter::new(&cache, vm, 100)
        });
        // 8 MiB, and all but the last block of the segment that is being filled.
        assert_eq!(flood.put(&cache, u64::MAX), 128 * 16 + 15);
        let most = 127 * 16;
        assert_eq!(other.put(&cache, most), most, "nothing of it is dropped");
        assert_eq!(flood.put(&cache, 1), 0);
        // A light one has room for what a read of the disk brings.
        let vm = vm(&cache, 1);
        let mut light = Putter::new(&cache, vm, 100);
        assert_eq!(light.put(&cache, 16 * 16), 16 * 16);
        for _ in 0..127 {
            assert!(cache.write_ssd());
        }
        assert!(other.written() >= 126, "{}", other.written());
    }

    /// A pool that is destroyed waits for nothing that a light VM would be written in an hour.
    #[test]
    fn what_nobody_needs_any_more_is_not_written() {
        let cache = cache(1 << 30);
        let vm = vm(&cache, 1);
        let mut putter = Putter::new(&cache, vm, 100);
        putter.put(&cache, 40 * 16);
        let before = putter.written();
        cache.destroy_pool(putter.pool.id).unwrap();
        assert_eq!(putter.written(), before);
        assert!(!cache.write_ssd());
        let ssd = cache.stores.working_ssd().unwrap();
        assert!(ssd.settled());
        assert_eq!(u64::from(ssd.free_extents()), (1 << 30) / (4 * SEGMENT));
    }

    /// A disk whose first 16 blocks are on an SSD, which no thread writes to.
    struct Rig {
        cache: Arc<Cache>,
        ssd: FaultSsd,
        disk: CachedDisk,
        pool: PoolId,
    }

    impl Rig {
        fn new() -> Self {
            let cache = Cache::new(CacheConfig::default()).unwrap();
            let ssd = FaultSsd::new();
            cache.start_ssd(Box::new(ssd.clone()), 4 << 20, 0).unwrap();
            let vm = cache.add_vm("vm", Weight::default(), Policy::Fifo).unwrap();
            let pool = cache.default_pool(vm).unwrap();
            let spec = PoolSpec::of(StoreKind::Ssd, Weight::default());
            cache.set_pool(pool, spec).unwrap();
            let id = cache.add_disk(vm, "disk").unwrap();
            let ram = RamDisk::new(1 << 20);
            for block in 0..64 {
                let content = [u8::try_from(block + 1).unwrap(); BLOCK_SIZE];
                ram.write_at(&content, block * 4096, false).unwrap();
            }
            let disk = CachedDisk::new(Arc::new(ram), cache.clone(), id, Mode::Inclusive).unwrap();
            let rig = Self {
                cache,
                ssd,
                disk,
                pool,
            };
            for block in 0..16 {
                rig.reads(block, u8::try_from(block + 1).unwrap());
            }
            assert!(rig.cache.write_ssd());
            rig
        }

        fn reads(&self, block: u64, expected: u8) {
            let mut found = [0; BLOCK_SIZE];
            self.disk.read_at(&mut found, block * 4096).unwrap();
            assert_eq!(found, [expected; BLOCK_SIZE], "{block}");
        }

        fn device_reads(&self) -> u64 {
            self.ssd.reads.load(Ordering::SeqCst)
        }

        fn ssd_hits(&self) -> u64 {
            self.cache.stats().vms[0].pools[0].counts.ssd_hits
        }
    }

    #[test]
    fn what_a_hung_ssd_holds_comes_from_the_disk_and_only_one_read_waits() {
        let rig = Rig::new();
        rig.reads(3, 4);
        assert_eq!((rig.ssd_hits(), rig.device_reads()), (1, 1));
        rig.ssd.hang(true);
        for block in 0..16 {
            rig.reads(block, u8::try_from(block + 1).unwrap());
        }
        assert_eq!((rig.ssd_hits(), rig.device_reads()), (1, 2));
        let stalled = || rig.cache.stats().stores[1].stalled_ms;
        assert!(stalled().is_some());
        // A miss is served, and not put where nothing is read from.
        let insertions = || rig.cache.stats().vms[0].pools[0].counts.insertions;
        let before = insertions();
        rig.reads(40, 41);
        assert_eq!(insertions(), before);
        // Once it answers it serves its blocks again, except those that were written meanwhile.
        let new = [99; BLOCK_SIZE];
        rig.disk.write_at(&new, 5 * 4096, false).unwrap();
        rig.ssd.hang(false);
        assert_eq!(stalled(), None);
        for block in 0..16 {
            let old = u8::try_from(block + 1).unwrap();
            rig.reads(block, if block == 5 { 99 } else { old });
        }
        assert_eq!(rig.ssd_hits(), 16);
        rig.cache.audit();
    }

    #[test]
    fn reads_that_wait_for_a_thread_are_not_sent_to_a_device_that_hangs_meanwhile() {
        let rig = Rig::new();
        let mut content = vec![0; 16 * BLOCK_SIZE];
        let pool = rig.cache.pool(rig.pool).unwrap();
        // Looked up before it hangs, read after.
        let left = rig.disk.look_up(&pool, &mut content, 0).unwrap();
        assert_eq!(left.on_ssd(), 16);
        rig.ssd.hang(true);
        rig.reads(0, 1);
        let before = rig.device_reads();
        rig.disk.finish(&pool, left, &mut content, 0).unwrap();
        assert_eq!(rig.device_reads(), before);
        assert!(
            content
                .chunks(BLOCK_SIZE)
                .zip(1..)
                .all(|(block, n)| block == [n; BLOCK_SIZE])
        );
        rig.ssd.hang(false);
        rig.cache.audit();
    }

    #[test]
    fn a_device_that_does_not_answer_for_long_has_failed() {
        let rig = Rig::new();
        let ssd = rig.cache.stores.working_ssd().unwrap();
        assert!(!rig.cache.watch_stall(&ssd, Duration::ZERO), "it answers");
        rig.ssd.hang(true);
        rig.reads(0, 1);
        assert!(rig.cache.watch_stall(&ssd, Duration::MAX), "not yet");
        assert!(!rig.cache.watch_stall(&ssd, Duration::ZERO));
        let failed = rig.cache.stats().stores[1].failed.clone();
        assert!(failed.is_some_and(|why| why.contains("has not answered")));
        // Its pools use memory.
        rig.reads(0, 1);
        rig.reads(0, 1);
        let counts = rig.cache.stats().vms[0].pools[0].counts;
        assert_eq!(counts.memory_hits, 1, "{counts:?}");
        rig.cache.audit();
    }

    /// No thread reads from it: put blocks wait in memory, and are found there.
    #[test]
    fn a_device_that_answers_no_write_has_failed_too() {
        let rig = Rig::new();
        let ssd = rig.cache.stores.working_ssd().unwrap();
        rig.ssd.hangs_writes.store(true, Ordering::SeqCst);
        for block in 16..32 {
            rig.reads(block, u8::try_from(block + 1).unwrap());
        }
        let (not_yet, failed) = std::thread::scope(|scope| {
            scope.spawn(|| rig.cache.write_ssd());
            let end = Instant::now() + Duration::from_secs(60);
            while ssd.writing_for().is_none() && Instant::now() < end {
                std::thread::yield_now();
            }
            let not_yet = ssd.wait_for_stall() && rig.cache.watch_stall(&ssd, Duration::MAX);
            rig.reads(20, 21);
            rig.cache.watch_stall(&ssd, Duration::ZERO);
            rig.reads(20, 21);
            let failed = rig.cache.stats().stores[1].failed.clone();
            rig.ssd.hangs_writes.store(false, Ordering::SeqCst);
            (not_yet, failed)
        });
        assert!(not_yet);
        assert!(failed.is_some_and(|why| why.contains("not answered a write")));
        assert_eq!(rig.device_reads(), 0);
        assert!(ssd.writing_for().is_none());
        rig.cache.audit();
    }

    #[test]
    fn blocks_that_change_their_pool_are_not_waited_for() {
        let rig = Rig::new();
        let vm = rig.cache.pool(rig.pool).unwrap().vm;
        let spec = PoolSpec::of(StoreKind::Ssd, Weight::default());
        let other = rig.cache.create_pool(vm, "other", spec).unwrap();
        rig.ssd.hang(true);
        let disk = rig.disk.disk_id().unwrap();
        assert_eq!(rig.cache.migrate(disk, 0..16, other).unwrap(), 0);
        assert_eq!(rig.device_reads(), 1);
        rig.ssd.hang(false);
        assert_eq!(rig.cache.migrate(disk, 0..16, other).unwrap(), 16);
    }
}
