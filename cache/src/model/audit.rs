//! Checks that the cache's structures are consistent, while the cache is idle.

use crate::block::Key;
use crate::cache::Cache;
use crate::config::StoreKind;
use crate::ids::DiskId;
use crate::index::Location;
use std::collections::HashSet;

impl Cache {
    /// Is this slot of the SSD store the block's?
    pub(crate) fn is_on_ssd(&self, disk: DiskId, block: u64, slot: u64) -> bool {
        let key = Key::new(disk.number, block).unwrap();
        let location = Location::ssd(slot.try_into().unwrap());
        self.books().0.lock(key).find_at(location).is_some()
    }

    /// Is the block in the cache?
    pub(crate) fn has(&self, disk: DiskId, block: u64) -> bool {
        let (index, stores, _) = self.books();
        let key = Key::new(disk.number, block).unwrap();
        index.lock(key).find(stores).is_some()
    }

    /// Panics when a slot is lost, doubled, or counted wrongly. Waits for what is on its way to the SSD.
    pub(crate) fn audit(&self) {
        let (index, stores, pools) = self.books();
        while stores.working_ssd().is_some_and(|ssd| !ssd.settled()) {
            self.write_ssd();
            std::thread::yield_now();
        }
        let memory = &stores.memory;
        let mut seen = HashSet::new();
        let mut held = 0;
        let mut blocks = 0;
        for pool in pools.iter().flatten() {
            let policy = pool.policy.lock();
            for slot in policy.slots(memory) {
                assert!(seen.insert(slot), "slot {slot} is in two lists");
                assert!(slot < memory.capacity(), "slot {slot} is beyond the end");
                assert_eq!(memory.meta(slot).pool, pool.id.index);
                let here = index.lock(memory.key(slot));
                let location = Location::memory(slot);
                assert!(here.find_at(location).is_some(), "slot {slot} is no block");
                blocks += 1;
            }
            let used = pool.used(StoreKind::Memory);
            assert_eq!(used, u64::from(policy.len() + policy.free.len()));
            held += used;
        }
        let free = u64::from(memory.available());
        assert_eq!(
            held + free,
            u64::from(memory.capacity()),
            "slots lost or made"
        );
        let mut on_ssd = 0;
        // All at once: a writer may still be giving back an extent whose units it has written.
        let logs = pools.iter().flatten();
        let logs: Vec<_> = logs.map(|p| (p, p.log.lock_out_of_order())).collect();
        if let Some(ssd) = stores.working_ssd() {
            let mut extents = 0;
            for (pool, log) in &logs {
                assert_eq!(pool.used(StoreKind::Ssd), u64::from(log.len()) * 64);
                extents += log.len();
                for extent in log.extents(&ssd) {
                    assert_eq!(ssd.pool_in_use(extent), Some(pool.id.index));
                    on_ssd += usize::try_from(ssd.live(extent)).unwrap();
                }
            }
            assert_eq!(
                u64::from(extents + ssd.free_extents()) * 64,
                u64::from(ssd.capacity())
            );
        }
        assert_eq!(index.len(), blocks + on_ssd, "entries without blocks");
        assert!(index.regions_are_right(), "regions counted wrongly");
    }
}
