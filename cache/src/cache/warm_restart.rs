//! Warm restart: a daemon saves its cached blocks when it ends, and the next one restores them.

use super::disk::DiskHandle;
use super::pool::PoolHandle;
use super::ssd::REPLACE_TIMEOUT;
use super::state::Cache;
use crate::block::{BLOCK_BYTES, BLOCK_SIZE, Key};
use crate::ids::DiskId;
use crate::index::Location;
use crate::store::{EXTENT_SLOTS, FileDevice, HUGE_SLOTS, SavedSlot, SsdStore};
use crate::warm::{
    Head, ImageState, Place, Preamble, RECORDS, Record, Restored, SavedDisk, SavedPool, load, save,
    span,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use xxhash_rust::xxh3::xxh3_64_with_seed;

// Saving the stores when the daemon ends.

/// Blocks of an extent, bytes.
const EXTENT_BYTES: u64 = EXTENT_SLOTS as u64 * BLOCK_BYTES;

/// Threads that compute checksums of blocks. More would only wait for memory bandwidth.
const THREADS: usize = 8;

/// The least time that the SSD store's device has to answer, even after the deadline.
const LEAST_PATIENCE: Duration = Duration::from_secs(1);

impl Cache {
    /// Stops puts and fills, and reuse of slots. Blocks in the index stay, or are removed.
    pub(crate) fn freeze(&self) {
        let registry = self.registry.lock();
        for vm in registry.vms.values() {
            vm.disks.iter().for_each(|disk| disk.close());
            vm.pools.iter().for_each(|pool| pool.close());
        }
    }

    /// The head of the saved state, for disks with known images. Pools are in the order of their handles.
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

    /// The pools of [`head`](Self::head), in the same order.
    fn pools_of_head(&self) -> Vec<PoolHandle> {
        let registry = self.registry.lock();
        let pools = registry.vms.values().flat_map(|vm| &vm.pools);
        pools.cloned().collect()
    }

    /// The memory of the memory store, if it can be handed over.
    pub(crate) fn memory_file(&self) -> Option<&File> {
        self.stores.memory.arena.file()
    }

    /// Saves a head without blocks.
    pub(crate) fn save_nothing(
        &self,
        place: &dyn Place,
        at: u64,
        head: &Head,
    ) -> io::Result<Preamble> {
        save(place, at, 0, head, Vec::new)
    }

    /// Saves the list of the memory store's blocks, from `at` on. The cache is [frozen](Self::freeze).
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

    /// The use count of the block in this location; `None` if there is none.
    fn uses(&self, key: Key, location: Location) -> Option<u8> {
        let entry = self.index.lock(key);
        entry.find_at(location).map(|found| entry.uses(found))
    }

    /// Sets the checksums of records of the memory store. Their slots are not written meanwhile.
    fn sum_memory(&self, records: &mut [Record], seed: u64) {
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

    /// Leaves the SSD store to the next daemon, with a list of its blocks. The list replaces some 6 of 1,000 blocks of a full
    /// store. The cache is [frozen](Self::freeze). `Ok(false)` when there is no such store.
    ///
    /// # Errors
    /// When the device fails, or has not written the blocks at `deadline`; no block is left then.
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

    /// Waits until all blocks of the store are written to the device.
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
                    "the SSD store's device has not written its blocks, or does not answer",
                ));
            }
            // If writer threads exist, this thread must not hang with them.
            if ssd.has_writers() || !self.write_one(ssd) {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        Ok(())
    }

    /// Empties the end of the store for the saved state. Returns its offset.
    fn make_room(&self, ssd: &Arc<SsdStore>, head: &Head) -> io::Result<u64> {
        let blocks = u64::from(ssd.capacity());
        let needed = span(head, blocks)?.next_multiple_of(EXTENT_BYTES);
        let at = (blocks * BLOCK_BYTES).checked_sub(needed).ok_or_else(|| {
            io::Error::other("the SSD store is too small to save the list of its blocks")
        })?;
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

    /// Closes the SSD store and keeps the blocks that were left on it. The cache has stopped serving disks.
    pub(crate) fn close_ssd(&self) {
        let Some(ssd) = self.stores.ssd.swap(None) else {
            return;
        };
        ssd.close(None);
        let in_use = ssd.device_in_use();
        drop(ssd);
        // The last user removes a store that was not left, and releases the lock.
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

// Restoring the blocks of the last daemon, before disks are served.

/// Checks that the image of a disk is unchanged; else returns the reason in words. The first argument is the number of the
/// hand-over that saved the disk.
pub(crate) type Proof<'a> = &'a dyn Fn([u64; 2], &SavedDisk, &DiskHandle) -> Result<(), String>;

/// The current disks and pools for those of a head.
#[derive(Default)]
struct Known {
    /// By number: `Ok`, or the reason for dropping the disk's blocks.
    disks: BTreeMap<u64, Result<(), String>>,
    /// `None` when the VM is gone.
    pools: Vec<Option<PoolHandle>>,
}

impl Cache {
    /// Restores blocks of the memory store, whose memory is the last daemon's. The saved list ends at `end` at the latest.
    /// Blocks of a removed pool go to the first pool of its VM.
    ///
    /// # Errors
    /// When the list cannot be read or is damaged. No block is restored then.
    pub(crate) fn restore_memory(
        &self,
        place: &dyn Place,
        preamble: &Preamble,
        end: u64,
        proof: Proof<'_>,
    ) -> io::Result<Restored> {
        let mut done = Restored::default();
        let mut known = Known::default();
        let capacity = usize::try_from(self.stores.memory.capacity()).map_err(io::Error::other)?;
        let mut taken = vec![false; capacity];
        let begin = |head: &Head| known = self.known(head, proof);
        let mut portions = Vec::new();
        load(place, preamble, end, begin, |_, records| {
            portions.push(records)
        })?;
        for records in portions {
            let mut records = known.wanted(records, &mut done);
            let all = records.len();
            records.retain(|record| slot(record.slot, &taken).is_some());
            done.drop(
                count(all - records.len()),
                "the memory store is smaller now",
            );
            let saved = records.clone();
            self.sum_memory(&mut records, preamble.seed);
            for (record, saved) in records.iter().zip(saved) {
                let right = record.sum == saved.sum && slot(record.slot, &taken) == Some(false);
                let pool = known.pool(record);
                if let (true, Some(pool)) = (right, pool)
                    && self.take_in_memory(pool, record)
                {
                    set(&mut taken, record.slot);
                    done.blocks += 1;
                } else {
                    done.drop(1, "their content differs from the saved one");
                }
            }
        }
        self.stores.memory.restored(&taken);
        Ok(done)
    }

    fn take_in_memory(&self, pool: &PoolHandle, record: &Record) -> bool {
        let memory = &self.stores.memory;
        let mut policy = pool.policy.lock();
        let mut entry = self.index.lock(record.key);
        if entry.find(&self.stores).is_some() {
            return false;
        }
        memory.set_key(record.slot, record.key);
        let location = Location::memory(record.slot);
        entry.set(&self.stores, location);
        if let Some(found) = entry.find_at(location) {
            entry.set_uses(found, record.uses);
        }
        drop(entry);
        policy.restore(
            memory,
            pool.id.index,
            record.slot,
            record.list,
            record.reused,
        );
        pool.memory_used.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Returns the memory of an empty memory store to the kernel.
    pub(crate) fn give_up_memory(&self) {
        let memory = &self.stores.memory;
        if self.index.len() == 0 {
            let all = 0..memory.limit() / HUGE_SLOTS;
            // SAFETY: no slot is in use, and nothing is served yet.
            if let Err(error) = unsafe { memory.arena.release(all) } {
                tracing::warn!(%error, "the kernel did not take the memory of the last daemon's store back");
            }
        }
    }

    /// Restores the blocks that the last daemon has left on the SSD store, if any. Each block's checksum is verified when it is
    /// read.
    ///
    /// # Errors
    /// As [`restore_memory`](Self::restore_memory).
    pub(crate) fn restore_ssd(&self, proof: Proof<'_>) -> io::Result<Restored> {
        let mut done = Restored::default();
        let ssd = self.stores.working_ssd();
        let Some((ssd, device)) = ssd
            .as_ref()
            .and_then(|ssd| Some((ssd, ssd.device().file()?)))
        else {
            return Ok(done);
        };
        let Some(preamble) = device.take_left() else {
            return Ok(done);
        };
        let mut known = Known::default();
        let mut portions = Vec::new();
        let begin = |head: &Head| known = self.known(head, proof);
        load(device, &preamble, device.end()?, begin, |_, records| {
            portions.push(records)
        })?;
        let records = portions.into_iter().flatten().collect();
        let records = known.wanted(records, &mut done);
        let extents = usize::try_from(ssd.capacity() / EXTENT_SLOTS).map_err(io::Error::other)?;
        let mut taken = vec![false; extents];
        for of_extent in records.chunk_by(|one, next| extent(one) == extent(next)) {
            let blocks = count(of_extent.len());
            match (
                of_extent.first(),
                of_extent.first().and_then(|first| known.pool(first)),
            ) {
                (Some(first), Some(pool)) if slot(extent(first), &taken) == Some(false) => {
                    set(&mut taken, extent(first));
                    let fitting = self.take_on_ssd(pool, ssd, of_extent);
                    done.blocks += fitting;
                    done.drop(blocks - fitting, "the list of their places is damaged");
                }
                _ => done.drop(blocks, "the SSD store is smaller now"),
            }
        }
        ssd.restored(&taken);
        Ok(done)
    }

    /// Restores the blocks of one extent, all of one pool. Returns their number.
    fn take_on_ssd(&self, pool: &PoolHandle, ssd: &Arc<SsdStore>, records: &[Record]) -> u64 {
        let stamp = self.stamp_of_evicted(pool);
        let mut slots = Vec::<SavedSlot>::new();
        let mut log = pool.log.lock();
        let first = records.first().map_or(0, extent);
        // The keys must be set before the index names the slots.
        let all = records.iter().map(|record| {
            let sum = u32::try_from(record.sum).unwrap_or(0);
            (record.slot, record.key, sum, stamp)
        });
        for saved in all {
            if slots.iter().all(|(slot, ..)| *slot != saved.0) {
                slots.push(saved);
            }
        }
        log.restore(ssd, pool.id.index, first, &slots);
        let extent_slots = u64::from(EXTENT_SLOTS);
        pool.ssd_used.fetch_add(extent_slots, Ordering::Relaxed);
        let mut taken = 0;
        for (slot, key, ..) in slots {
            let mut entry = self.index.lock(key);
            if entry.find(&self.stores).is_some() {
                drop(entry);
                ssd.free(slot);
                continue;
            }
            entry.set(&self.stores, Location::ssd(slot));
            taken += 1;
        }
        if taken == 0 && log.release(ssd, first, false) {
            pool.ssd_used.fetch_sub(extent_slots, Ordering::Relaxed);
        }
        taken
    }

    /// Finds the current disks and pools for those of a head.
    fn known(&self, head: &Head, proof: Proof<'_>) -> Known {
        let registry = self.registry.lock();
        let vm = |name: &str| registry.vms.values().find(|vm| vm.name == name);
        let disks = head.disks.iter().map(|saved| {
            let disks = vm(&saved.vm).map(|vm| vm.disks.iter());
            let found = disks
                .into_iter()
                .flatten()
                .find(|disk| disk.name == saved.name);
            let verdict = match found {
                None => Err("it is not cached any more".into()),
                Some(found) if found.id.number != saved.number => {
                    Err("it has another number".into())
                }
                Some(found) => proof(head.end, saved, found),
            };
            let verdict = verdict.map_err(|why: String| format!("disk {:?}: {why}", saved.name));
            (u64::from(saved.number), verdict)
        });
        let disks = disks.collect();
        let pools = head.pools.iter().map(|saved| {
            let pools = &vm(&saved.vm)?.pools;
            let same = pools.iter().find(|pool| pool.name == saved.name);
            same.or(pools.first()).cloned()
        });
        Known {
            disks,
            pools: pools.collect(),
        }
    }
}

impl Known {
    fn pool(&self, record: &Record) -> Option<&PoolHandle> {
        let at = usize::try_from(record.pool).ok()?;
        self.pools.get(at)?.as_ref()
    }

    /// The records of blocks whose disks are unchanged and whose VMs exist.
    fn wanted(&self, records: Vec<Record>, done: &mut Restored) -> Vec<Record> {
        let mut records = records;
        records.retain(|record| {
            let why = match self.disks.get(&record.key.disk()) {
                Some(Ok(())) if self.pool(record).is_some() => return true,
                Some(Err(why)) => why,
                _ => "the list of their owners is damaged",
            };
            done.drop(1, why);
            false
        });
        records
    }
}

const fn extent(record: &Record) -> u32 {
    record.slot / EXTENT_SLOTS
}

/// Is the slot taken? `None` when there is no such slot.
fn slot(slot: u32, taken: &[bool]) -> Option<bool> {
    taken.get(usize::try_from(slot).ok()?).copied()
}

fn set(taken: &mut [bool], at: u32) {
    if let Some(taken) = usize::try_from(at).ok().and_then(|at| taken.get_mut(at)) {
        *taken = true;
    }
}

fn count(records: usize) -> u64 {
    u64::try_from(records).unwrap_or(u64::MAX)
}
