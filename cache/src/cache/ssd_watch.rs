//! What becomes of an SSD store whose device does not answer.

use super::state::Cache;
use crate::store::SsdStore;
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A device that has not answered a read or write for so long has failed. It is what the kernel gives a disk
/// (`/sys/block/*/queue/io_timeout`).
const FAILED: Duration = Duration::from_secs(30);

/// How soon it is noticed that it answers again: less than it is waited for.
const LOOK: Duration = Duration::from_millis(50);

impl Cache {
    /// Closes the store if its device has not answered for too long; `true` when it is to be looked at again.
    pub(super) fn watch_stall(&self, ssd: &Arc<SsdStore>, patience: Duration) -> bool {
        let reads = ssd.stalled_for().map(|time| (time, "read"));
        let writes = ssd.writing_for().map(|time| (time, "write"));
        let Some((stalled, what)) = reads.max(writes).filter(|_| !ssd.closed()) else {
            return false;
        };
        if stalled < patience {
            return true;
        }
        // Of this kind, so that one is enough.
        let error = io::Error::new(
            io::ErrorKind::StorageFull,
            format!("it has not answered a {what} for {} s", stalled.as_secs()),
        );
        self.ssd_error(ssd, &error);
        false
    }
}

/// A thread that watches a store: until it is closed or the cache is gone.
pub(super) fn run(cache: &Weak<Cache>, ssd: &Arc<SsdStore>) {
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
    use crate::block_dev::{Disk, RamDisk};
    use crate::config::{CacheConfig, Mode, Policy, PoolSpec, StoreKind};
    use crate::disk::CachedDisk;
    use crate::ids::PoolId;
    use crate::model::fault::FaultSsd;
    use justitia_share::Weight;
    use std::sync::atomic::Ordering;
    use std::time::Instant;

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
        // Once it answers it serves what it held, but for what was written meanwhile.
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

    /// Nobody reads from it: what is put waits in memory, and is found there.
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
