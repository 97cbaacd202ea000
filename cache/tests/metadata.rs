//! What the cache keeps in memory for each block: counted at the allocator, with everything in it.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The system's allocator, counting. Blocks do not lie in it: the memory store maps its own.
struct Counting;

static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on unchanged to the system's allocator; counting touches no memory of it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[cfg(test)]
mod tests {
    use super::BYTES;
    use justitia_cache::lab::NullDisk;
    use justitia_cache::{
        BLOCK_SIZE, Cache, CacheConfig, CachedDisk, Mode, Policy, PoolSpec, RamDisk, SsdConfig,
        StoreKind, Weight,
    };
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    /// A disk that is only a size: the blocks come from puts.
    struct Backed {
        cache: Arc<Cache>,
        disk: CachedDisk,
        pool: justitia_cache::PoolId,
    }

    fn backed(config: CacheConfig, spec: PoolSpec, policy: Policy) -> Backed {
        let cache = Cache::new(config).unwrap();
        let vm = cache.add_vm("vm", Weight::default(), policy).unwrap();
        let pool = cache.create_pool(vm, "container", spec).unwrap();
        let id = cache.add_disk(vm, "disk").unwrap();
        let backing = Arc::new(NullDisk(1 << 50));
        let disk = CachedDisk::new(backing, cache.clone(), id, Mode::Exclusive).unwrap();
        Backed { cache, disk, pool }
    }

    /// Bytes of the allocator that the whole cache takes once its store is full, a block. One test, because the
    /// count is the process's.
    #[test]
    fn metadata_stays_within_the_promise() {
        const BLOCKS: u64 = 65_536;
        let bytes = BLOCKS * 4096;
        // Warm what is allocated once for the process.
        drop(RamDisk::new(1));
        for policy in [Policy::Fifo, Policy::Ghost, Policy::Sieve, Policy::S3Fifo] {
            let before = BYTES.load(Ordering::Relaxed);
            let config = CacheConfig::of_memory(bytes);
            let b = backed(config, PoolSpec::default(), policy);
            for block in 0..BLOCKS * 2 {
                assert!(b.disk.fill(b.pool, block, &[3; BLOCK_SIZE]));
            }
            let used = BYTES.load(Ordering::Relaxed) - before;
            let each =
                f64::from(u32::try_from(used).unwrap()) / f64::from(u32::try_from(BLOCKS).unwrap());
            println!("memory, {policy:?}: {each:.2} B a block");
            assert!(each <= 32.0, "{policy:?}: {each} bytes a block");
            let stats = b.cache.stats();
            assert!(stats.stores[0].used_bytes > bytes * 98 / 100, "not full");
        }
        let before = BYTES.load(Ordering::Relaxed);
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let config = CacheConfig {
            memory_bytes: 0,
            memory_limit: Some(0),
            ssd: Some(SsdConfig::new(dir.path().join("ssd"), bytes)),
        };
        let spec = PoolSpec::of(StoreKind::Ssd, Weight::default());
        let b = backed(config, spec, Policy::Fifo);
        let mut block = 0;
        while block < BLOCKS * 2 {
            // A device that is behind refuses puts: wait for it.
            if b.disk.fill(b.pool, block, &[3; BLOCK_SIZE]) {
                block += 1;
            } else {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
        let staged = 8 << 20;
        std::thread::sleep(std::time::Duration::from_millis(500));
        let used = BYTES.load(Ordering::Relaxed) - before;
        let stats = b.cache.stats();
        let ssd = &stats.stores[1];
        assert!(ssd.failed.is_none(), "{ssd:?}");
        assert!(ssd.used_bytes > bytes * 98 / 100, "not full");
        let each =
            f64::from(u32::try_from(used).unwrap()) / f64::from(u32::try_from(BLOCKS).unwrap());
        println!("ssd: {each:.2} B a block, at most {staged} bytes of blocks under way included");
        assert!(each <= 24.0, "{each} bytes a block");
    }
}
