//! What the cache holds, over a restart of the daemon: saved by the one that ends, restored by the next.

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

// What is saved of the stores when the daemon ends.

/// Blocks of an extent, bytes.
const EXTENT_BYTES: u64 = EXTENT_SLOTS as u64 * BLOCK_BYTES;

/// Threads that make checksums of blocks. More would wait for the memory's bandwidth.
const THREADS: usize = 8;

/// The time in which the SSD store's device must show that it answers, however long the rest has taken.
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

    /// Gives records of the memory store the checksums of the blocks in their slots, which are not written meanwhile.
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

    /// Gives the SSD store up, without removing what is left on it. The cache serves no disk any more.
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

// What a daemon takes of what the last one has left, before anything is served.

/// Says whether the image of a disk is what it was; why not, in words, else. Given the number of the end at which it was saved.
pub(crate) type Proof<'a> = &'a dyn Fn([u64; 2], &SavedDisk, &DiskHandle) -> Result<(), String>;

/// What the disks and pools of a head are now.
#[derive(Default)]
struct Known {
    /// By number: why their blocks are dropped, if they are.
    disks: BTreeMap<u64, Result<(), String>>,
    /// `None` when there is no such VM any more.
    pools: Vec<Option<PoolHandle>>,
}

impl Cache {
    /// Takes blocks of the memory store, which has the memory of the last daemon's. `end` is where what was saved may end. What
    /// belonged to a pool that there is no more belongs to its VM's first.
    ///
    /// # Errors
    /// When it cannot be read, or is not what was saved: nothing was taken.
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
                    done.drop(1, "their content is not what was saved");
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

    /// Gives the memory of a memory store that has no blocks back.
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

    /// Takes what the last daemon has left on the SSD store, if that is anything. Each block is compared with its checksum when
    /// it is read.
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
                    done.drop(blocks - fitting, "what says where they are is damaged");
                }
                _ => done.drop(blocks, "the SSD store is smaller now"),
            }
        }
        ssd.restored(&taken);
        Ok(done)
    }

    /// Takes the blocks of one extent, of one pool; returns how many.
    fn take_on_ssd(&self, pool: &PoolHandle, ssd: &Arc<SsdStore>, records: &[Record]) -> u64 {
        let stamp = self.stamp_of_evicted(pool);
        let mut slots = Vec::<SavedSlot>::new();
        let mut log = pool.log.lock();
        let first = records.first().map_or(0, extent);
        // The keys must be there before the index names the slots.
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

    /// The disks and pools of a head, as they are known now.
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

    /// The records of blocks whose disks have not changed, and whose VMs are there.
    fn wanted(&self, records: Vec<Record>, done: &mut Restored) -> Vec<Record> {
        let mut records = records;
        records.retain(|record| {
            let why = match self.disks.get(&record.key.disk()) {
                Some(Ok(())) if self.pool(record).is_some() => return true,
                Some(Err(why)) => why,
                _ => "what says whose they are is damaged",
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
