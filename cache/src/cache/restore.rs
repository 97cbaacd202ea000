//! What a daemon takes of what the last one has left, before anything is served.

use super::disk::DiskHandle;
use super::pool::PoolHandle;
use super::state::Cache;
use crate::index::Location;
use crate::store::{EXTENT_SLOTS, HUGE_SLOTS, SavedSlot, SsdStore};
use crate::warm::{Head, Place, Preamble, Record, Restored, SavedDisk, load};
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
