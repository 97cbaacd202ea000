//! Writing segments to the SSD.

use super::state::Cache;
use crate::store::{Segment, SsdStore};
use std::sync::{Arc, Weak};

impl Cache {
    /// Writes one full segment, if there is one.
    pub(crate) fn write_one(&self, ssd: &Arc<SsdStore>) -> bool {
        let segments: Vec<_> = ssd.waiting_full().into_iter().collect();
        self.write_segments(ssd, &segments);
        !segments.is_empty()
    }

    pub(super) fn write_segments(&self, ssd: &Arc<SsdStore>, segments: &[Arc<Segment>]) {
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

/// A writer thread: until the store is closed or the cache is gone.
pub(super) fn run(cache: &Weak<Cache>, ssd: &Arc<SsdStore>) {
    loop {
        let segments = ssd.next_full();
        let Some(cache) = cache.upgrade().filter(|_| !segments.is_empty()) else {
            return;
        };
        cache.write_segments(ssd, &segments);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BLOCK_SIZE;
    use crate::cache::DiskHandle;
    use crate::cache::pool::PoolHandle;
    use crate::config::{CacheConfig, Policy, PoolSpec, StoreKind};
    use crate::ids::VmId;
    use crate::model::fault::FaultSsd;
    use justitia_share::Weight;

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

        /// Puts until a put is refused, or so many; returns how many were not.
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

    /// All put as fast as they can while the SSD writes so many segments; what is written of each.
    fn saturate(cache: &Cache, putters: &mut [Putter], segments: u64) -> Vec<u64> {
        for _ in 0..segments {
            for putter in &mut *putters {
                putter.put(cache, u64::MAX);
            }
            assert!(cache.write_ssd());
        }
        let written = putters.iter().map(Putter::written).collect();
        // Which writes what waits.
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
}
