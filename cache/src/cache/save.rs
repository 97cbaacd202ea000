//! What is saved of the stores when the daemon ends.

use super::pool::PoolHandle;
use super::ssd::REPLACE_TIMEOUT;
use super::state::Cache;
use crate::block::{BLOCK_BYTES, BLOCK_SIZE, Key};
use crate::ids::DiskId;
use crate::index::Location;
use crate::store::{EXTENT_SLOTS, FileDevice, SsdStore};
use crate::warm::{
    Head, ImageState, Place, Preamble, RECORDS, Record, SavedDisk, SavedPool, save, span,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Blocks of an extent, bytes.
const EXTENT_BYTES: u64 = EXTENT_SLOTS as u64 * BLOCK_BYTES;

/// Threads that make checksums of blocks: memory has no more bandwidth than for so many.
const THREADS: usize = 8;

/// Whatever has taken how long before, the SSD store's device has so much time to show that it answers.
const LEAST_PATIENCE: Duration = Duration::from_secs(1);

impl Cache {
    /// From now on nothing is put or filled, and no slot gets another block: what the index names stays, or goes.
    pub(crate) fn freeze(&self) {
        let registry = self.registry.lock();
        for vm in registry.vms.values() {
            vm.disks.iter().for_each(|disk| disk.close());
            vm.pools.iter().for_each(|pool| pool.close());
        }
    }

    /// The head of what is saved, for disks whose images are known; the pools in the order of their handles.
    pub(crate) fn head(&self, end: [u64; 2], images: &BTreeMap<DiskId, ImageState>) -> Head {
        let registry = self.registry.lock();
        let vms = registry.vms.values();
        let disks = vms.clone().flat_map(|vm| {
            vm.disks.iter().filter_map(|disk| {
                Some(SavedDisk {
                    vm: vm.name.clone(),
                    name: disk.name.clone(),
                    number: disk.id.number,
                    image: images.get(&disk.id)?.clone(),
                })
            })
        });
        let pools = vms.flat_map(|vm| {
            vm.pools.iter().map(|pool| SavedPool {
                vm: vm.name.clone(),
                name: pool.name.clone(),
            })
        });
        Head {
            end,
            disks: disks.collect(),
            pools: pools.collect(),
        }
    }

    /// Those of [`head`](Self::head), in the same order.
    fn pools_of_head(&self) -> Vec<PoolHandle> {
        let registry = self.registry.lock();
        let pools = registry.vms.values().flat_map(|vm| &vm.pools);
        pools.cloned().collect()
    }

    /// The memory of the memory store, if it can be handed over.
    pub(crate) fn memory_file(&self) -> Option<&File> {
        self.stores.memory.arena.file()
    }

    /// Saves a head alone.
    pub(crate) fn save_nothing(
        &self,
        place: &dyn Place,
        at: u64,
        head: &Head,
    ) -> io::Result<Preamble> {
        save(place, at, 0, head, Vec::new)
    }

    /// Saves which blocks the memory store has, from `at` on. The cache is [frozen](Self::freeze).
    pub(crate) fn save_memory(
        &self,
        place: &dyn Place,
        at: u64,
        seed: u64,
        head: &Head,
    ) -> io::Result<Preamble> {
        let wanted = numbers(head);
        let mut pools: VecDeque<_> = (0..).zip(self.pools_of_head()).collect();
        let mut left = VecDeque::new();
        save(place, at, seed, head, || {
            while left.len() < RECORDS
                && let Some((number, pool)) = pools.pop_front()
            {
                left.extend(self.blocks_in_memory(number, &pool, &wanted));
            }
            let mut some: Vec<_> = left.drain(..left.len().min(RECORDS)).collect();
            self.sum_memory(&mut some, seed);
            some
        })
    }

    fn blocks_in_memory(
        &self,
        number: u32,
        pool: &PoolHandle,
        wanted: &BTreeSet<u64>,
    ) -> Vec<Record> {
        let memory = &self.stores.memory;
        let policy = pool.policy.lock();
        let lists = policy.slots_of_lists(memory);
        let slots = (0..)
            .zip(lists)
            .flat_map(|(list, slots)| slots.into_iter().map(move |slot| (list, slot)));
        let record = |(list, slot)| {
            let key = memory.key(slot);
            let uses = self.uses(key, Location::memory(slot))?;
            wanted.contains(&key.disk()).then(|| Record {
                key,
                sum: 0,
                slot,
                pool: number,
                list,
                uses,
                reused: memory.meta(slot).reused,
            })
        };
        slots.filter_map(record).collect()
    }

    /// How often the block in this location was used, if it is one.
    fn uses(&self, key: Key, location: Location) -> Option<u8> {
        let entry = self.index.lock(key);
        entry.find_at(location).map(|found| entry.uses(found))
    }

    /// Gives records of the memory store the checksums of the blocks in their slots, which nobody writes.
    pub(super) fn sum_memory(&self, records: &mut [Record], seed: u64) {
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(THREADS));
        let part = records.len().div_ceil(threads).max(1);
        std::thread::scope(|scope| {
            for part in records.chunks_mut(part) {
                scope.spawn(|| {
                    let mut block = [0; BLOCK_SIZE];
                    for record in part {
                        // SAFETY: the cache is frozen, or not yet in use: no slot is written.
                        unsafe { self.stores.memory.arena.read(record.slot, 0, &mut block) };
                        record.sum = xxh3_64_with_seed(&block, record.key.hash(seed));
                    }
                });
            }
        });
    }

    /// Leaves the SSD store to the next daemon, with what says which blocks it has. What lies where that is saved is dropped,
    /// some 6 of 1,000 blocks of a full store. The cache is [frozen](Self::freeze). `Ok(false)` when there is no such store.
    ///
    /// # Errors
    /// When the device fails, or has not taken its blocks at `deadline`: nothing is left on it then.
    pub(crate) fn leave_ssd(self: &Arc<Self>, head: &Head, deadline: Instant) -> io::Result<bool> {
        let _resize = self.ssd_resize.lock();
        let Some(ssd) = self.stores.working_ssd() else {
            return Ok(false);
        };
        let Some(device) = ssd.file() else {
            return Ok(false);
        };
        self.settle_ssd(&ssd, deadline)?;
        let left = deadline.saturating_duration_since(Instant::now());
        if !device.answers(left.max(LEAST_PATIENCE)) {
            return Err(io::Error::other("the SSD store's device does not answer"));
        }
        let at = self.make_room(&ssd, head)?;
        let wanted = numbers(head);
        let mut pools: VecDeque<_> = (0..).zip(self.pools_of_head()).collect();
        let preamble = save(device, at, ssd.seed(), head, || {
            let mut some = Vec::new();
            while some.is_empty()
                && let Some((number, pool)) = pools.pop_front()
            {
                some = self.blocks_on_ssd(number, &pool, &ssd, &wanted);
            }
            some
        })?;
        device.leave(&preamble)?;
        Ok(true)
    }

    /// Waits until the device has all blocks of the store.
    fn settle_ssd(&self, ssd: &Arc<SsdStore>, deadline: Instant) -> io::Result<()> {
        let mut extents = Vec::new();
        for pool in self.pools_of_head() {
            if let Some(mut log) = pool.log_on(ssd) {
                log.end(ssd);
                extents.extend(log.extents(ssd));
            }
        }
        while ssd.is_stalled() || ssd.is_pending(&extents) {
            if ssd.closed() || Instant::now() > deadline {
                return Err(io::Error::other(
                    "the SSD store's device has not taken its blocks, or does not answer",
                ));
            }
            // Where threads write, this one must not hang with them.
            if ssd.has_writers() || !self.write_one(ssd) {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        Ok(())
    }

    /// Empties the end of the store; returns where that begins.
    fn make_room(&self, ssd: &Arc<SsdStore>, head: &Head) -> io::Result<u64> {
        let blocks = u64::from(ssd.capacity());
        let needed = span(head, blocks)?.next_multiple_of(EXTENT_BYTES);
        let at = (blocks * BLOCK_BYTES)
            .checked_sub(needed)
            .ok_or_else(|| io::Error::other("the SSD store is too small to save what it has"))?;
        let beyond = ssd.set_capacity(at)?;
        self.empty_beyond(ssd, beyond);
        Ok(at)
    }

    fn blocks_on_ssd(
        &self,
        number: u32,
        pool: &PoolHandle,
        ssd: &SsdStore,
        wanted: &BTreeSet<u64>,
    ) -> Vec<Record> {
        let extents = pool.log_on(ssd).map(|log| log.extents(ssd));
        let slots = extents.unwrap_or_default().into_iter();
        let slots = slots.flat_map(|extent| ssd.live_slots(extent));
        let record = |slot| {
            let key = ssd.key(slot);
            let uses = self.uses(key, Location::ssd(slot))?;
            wanted.contains(&key.disk()).then(|| Record {
                key,
                sum: ssd.sum_of(slot).into(),
                slot,
                pool: number,
                list: 0,
                uses,
                reused: false,
            })
        };
        slots.filter_map(record).collect()
    }

    /// Gives the SSD store up, without removing what is left on it; the cache serves nobody any more.
    pub(crate) fn close_ssd(&self) {
        let Some(ssd) = self.stores.ssd.swap(None) else {
            return;
        };
        ssd.close(None);
        let in_use = ssd.device_in_use();
        drop(ssd);
        // The last of its users removes what is not left, and gives up the lock.
        let since = Instant::now();
        while in_use.strong_count() > 0 && since.elapsed() < REPLACE_TIMEOUT {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl SsdStore {
    /// Its file or device, if it can be left to the next daemon.
    fn file(&self) -> Option<&FileDevice> {
        self.device().file()
    }
}

fn numbers(head: &Head) -> BTreeSet<u64> {
    head.disks.iter().map(|disk| disk.number.into()).collect()
}
