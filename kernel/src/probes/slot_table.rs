//! The slots of the programs' counters: which cgroup has which, and how a slot passes from one cgroup to another.
//!
//! Programs allocate slots; the reader frees them. A slot of a removed cgroup is reported once more and freed at the next
//! sample. When few slots are free, the least used ones are evicted: the cgroup is taken out of `slot_of_cgroup`, the
//! reader waits until no program can hold the slot any more, keeps what was counted in it, and frees it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use libbpf_rs::{MapCore as _, MapFlags};

use super::counter_map::{COUNTERS_WORDS, SLOT_WORDS, decode};
use super::mapped::MappedArray;
use super::object::ProbeObject;
use super::slot_usage::SlotUsage;
use super::{Counters, ProbeError, Sample};
use crate::cgroup::CgroupId;

/// How long a program runs at most, from the lookup of a slot to the last addition.
const MAX_PROGRAM_TIME: Duration = Duration::from_millis(100);

/// The slots and their counters.
#[derive(Debug)]
pub(super) struct SlotTable {
    /// The counters: for each processor one of each slot.
    counters: MappedArray,
    slots: MappedArray,
    slot_count: usize,
    processors: usize,
    /// Slots of removed cgroups that the last sample reported: free from the next one on.
    removed: Vec<usize>,
    usage: SlotUsage,
    /// Slots that are being evicted.
    evictions: Vec<Eviction>,
    /// What cgroups had counted in slots that they no longer have.
    retired: HashMap<CgroupId, Counters>,
}

/// A slot on its way from one cgroup to another.
#[derive(Debug)]
struct Eviction {
    slot: usize,
    /// The cgroup that counted in it; `None` when it was removed, and its counts have been reported.
    cgroup: Option<CgroupId>,
    since: Instant,
    /// Whether no program can find it any more.
    unreachable: bool,
}

impl SlotTable {
    /// Maps the arrays. Slot 0 is shared by all cgroups without a slot.
    pub(super) fn map(
        object: &ProbeObject,
        slot_count: usize,
        processors: usize,
    ) -> Result<Self, ProbeError> {
        let words = slot_count * processors * COUNTERS_WORDS;
        let counters = object.map("cgroup_counters")?;
        let slots = object.map("slots")?;
        Ok(Self {
            counters: MappedArray::map("cgroup_counters", &counters, words)?,
            slots: MappedArray::map("slots", &slots, slot_count * SLOT_WORDS)?,
            slot_count,
            processors,
            removed: Vec::new(),
            usage: SlotUsage::new(slot_count),
            evictions: Vec::new(),
            retired: HashMap::new(),
        })
    }

    /// Gives the programs every slot but slot 0.
    pub(super) fn free_all(&self, object: &ProbeObject) -> Result<(), ProbeError> {
        self.free(object, 1..self.slot_count)
    }

    /// The counters of slot 0.
    pub(super) fn overflow(&self) -> Counters {
        self.counters(0)
    }

    /// Adds what each cgroup has counted, and frees slots: those of removed cgroups, and when few are free, the least
    /// used.
    #[expect(
        clippy::indexing_slicing,
        reason = "a slot is a number below `slot_count`, of which the lists are made"
    )]
    pub(super) fn sample(
        &mut self,
        object: &ProbeObject,
        sample: &mut Sample,
    ) -> Result<(), ProbeError> {
        let now = Instant::now();
        self.free_unused(object, now)?;
        sample.cgroups.clone_from(&self.retired);
        let mut evicting = vec![false; self.slot_count];
        for eviction in &self.evictions {
            evicting[eviction.slot] = true;
            if let Some(cgroup) = eviction.cgroup {
                *sample.cgroups.entry(cgroup).or_default() += self.counters(eviction.slot);
            }
        }
        let mut counted = vec![None; self.slot_count];
        let mut free = 0;
        for slot in 1..self.slot_count {
            let cgroup = self.cgroup(slot);
            if cgroup.0 == 0 {
                free += 1;
            } else if self.is_removed(slot) {
                let counters = self.take_removed(slot, cgroup, evicting[slot]);
                sample.cgroups.remove(&cgroup);
                sample.removed.push((cgroup, counters));
            } else if !evicting[slot] {
                let counters = self.counters(slot);
                *sample.cgroups.entry(cgroup).or_default() += counters;
                counted[slot] = Some(counters);
            }
        }
        self.usage.update(counted.into_iter(), now);
        self.evict(object, free, now)
    }

    /// The slot of a removed cgroup: all that the cgroup has counted.
    fn take_removed(&mut self, slot: usize, cgroup: CgroupId, evicting: bool) -> Counters {
        let mut counters = self.forget_evicted(cgroup);
        if evicting {
            // Removed while the slot is evicted: the eviction frees it.
            self.slots.set(slot * SLOT_WORDS + 1, 0);
        } else {
            self.removed.push(slot);
            counters += self.counters(slot);
        }
        counters
    }

    /// One cgroup's counters over all slots; `None` if it has none.
    pub(super) fn counters_of(&self, object: &ProbeObject, id: CgroupId) -> Option<Counters> {
        let slot_of = object.map("slot_of_cgroup").ok()?;
        let found = slot_of.lookup(&id.0.to_ne_bytes(), MapFlags::ANY).ok()?;
        let slot = found
            .and_then(|slot| slot.try_into().map(u32::from_ne_bytes).ok())
            .and_then(|slot| usize::try_from(slot).ok())
            .filter(|slot| (1..self.slot_count).contains(slot));
        let evicted = self.evictions.iter().filter(|one| one.cgroup == Some(id));
        let slots = slot.into_iter().chain(evicted.map(|one| one.slot));
        slots
            .map(|slot| self.counters(slot))
            .chain(self.retired.get(&id).copied())
            .reduce(|mut sum, one| {
                sum += one;
                sum
            })
    }

    /// Forgets what was counted in evicted slots for cgroups that are not known any more.
    pub(super) fn retain(&mut self, known: impl Fn(CgroupId) -> bool) {
        self.retired.retain(|id, _| known(*id));
    }

    /// Marks the slots of these cgroups as of removed ones.
    pub(super) fn mark_removed(
        &mut self,
        object: &ProbeObject,
        removed: &[CgroupId],
    ) -> Result<(), ProbeError> {
        for cgroup in removed {
            self.forget_evicted(*cgroup);
        }
        let slot_of = object.map("slot_of_cgroup")?;
        for slot in 1..self.slot_count {
            let cgroup = self.cgroup(slot);
            let evicting = || self.evictions.iter().any(|one| one.slot == slot);
            if cgroup.0 == 0 || !removed.contains(&cgroup) || evicting() {
                continue;
            }
            // Not there when the probe was faster: then the slot is already marked.
            if slot_of.delete(&cgroup.0.to_ne_bytes()).is_ok() {
                self.clear_cgroup_ptr(slot);
                self.slots.set(slot * SLOT_WORDS + 1, 1);
            }
        }
        Ok(())
    }

    /// Makes programs look up every cgroup's slot again.
    pub(super) fn clear_cgroup_ptrs(&self) {
        for slot in 1..self.slot_count {
            self.clear_cgroup_ptr(slot);
        }
    }

    /// Where few slots are free, begins to evict those that are used least; returns their cgroups. What they do from now
    /// on is counted in another slot, if there is one.
    fn evict(&mut self, object: &ProbeObject, free: usize, now: Instant) -> Result<(), ProbeError> {
        let soon = free + self.evictions.len() + self.removed.len();
        let least_used = self.usage.least_used(soon, now);
        if least_used.is_empty() {
            return Ok(());
        }
        let slot_of = object.map("slot_of_cgroup")?;
        for slot in least_used {
            let cgroup = self.cgroup(slot);
            // Not there when it was removed meanwhile.
            if slot_of.delete(&cgroup.0.to_ne_bytes()).is_ok() {
                self.clear_cgroup_ptr(slot);
                self.evictions.push(Eviction {
                    slot,
                    cgroup: Some(cgroup),
                    since: now,
                    unreachable: false,
                });
            }
        }
        Ok(())
    }

    /// Frees the slots in which no program counts any more.
    fn free_unused(&mut self, object: &ProbeObject, now: Instant) -> Result<(), ProbeError> {
        // No program has written to those of removed cgroups since the sample before last.
        let mut unused = std::mem::take(&mut self.removed);
        unused.extend(self.finish_evictions(now));
        for &slot in &unused {
            self.clear(slot);
        }
        self.free(object, unused)
    }

    /// The slots whose eviction is over; what was counted in them is kept.
    fn finish_evictions(&mut self, now: Instant) -> Vec<usize> {
        let (over, mut evictions): (Vec<_>, Vec<_>) = std::mem::take(&mut self.evictions)
            .into_iter()
            .partition(|one| one.unreachable && now - one.since >= MAX_PROGRAM_TIME);
        for eviction in &mut evictions {
            // A program that had looked the slot up before may have stored the cgroup's address again.
            if !eviction.unreachable && now - eviction.since >= MAX_PROGRAM_TIME {
                self.clear_cgroup_ptr(eviction.slot);
                (eviction.since, eviction.unreachable) = (now, true);
            }
        }
        self.evictions = evictions;
        for eviction in &over {
            if let Some(cgroup) = eviction.cgroup {
                let counters = self.counters(eviction.slot);
                *self.retired.entry(cgroup).or_default() += counters;
            }
        }
        over.into_iter().map(|eviction| eviction.slot).collect()
    }

    /// What a removed cgroup had counted in evicted slots; it is forgotten.
    fn forget_evicted(&mut self, removed: CgroupId) -> Counters {
        let mut sum = self.retired.remove(&removed).unwrap_or_default();
        let of_removed = |one: &Eviction| one.cgroup == Some(removed);
        for eviction in self.evictions.iter().filter(|one| of_removed(one)) {
            sum += self.counters(eviction.slot);
        }
        for eviction in self.evictions.iter_mut().filter(|one| of_removed(one)) {
            eviction.cgroup = None;
        }
        sum
    }

    fn cgroup(&self, slot: usize) -> CgroupId {
        CgroupId(self.slots.get(slot * SLOT_WORDS))
    }

    fn is_removed(&self, slot: usize) -> bool {
        self.slots.get(slot * SLOT_WORDS + 1) != 0
    }

    /// The index of the first word of a slot's counters on each processor.
    fn starts(&self, slot: usize) -> impl Iterator<Item = usize> {
        let slot_count = self.slot_count;
        (0..self.processors).map(move |processor| (processor * slot_count + slot) * COUNTERS_WORDS)
    }

    /// A slot's counters, over all processors.
    fn counters(&self, slot: usize) -> Counters {
        let mut sum = Counters::default();
        for start in self.starts(slot) {
            let words = self.counters.words().get(start..start + COUNTERS_WORDS);
            sum += decode(words.unwrap_or_default());
        }
        sum
    }

    /// Makes programs look up the slot again, which until now found it by the address of its cgroup.
    fn clear_cgroup_ptr(&self, slot: usize) {
        for start in self.starts(slot) {
            self.counters.set(start, 0);
        }
    }

    fn clear(&self, slot: usize) {
        for start in self.starts(slot) {
            self.counters.clear(start..start + COUNTERS_WORDS);
        }
        self.slots.clear(slot * SLOT_WORDS..(slot + 1) * SLOT_WORDS);
    }

    fn free(
        &self,
        object: &ProbeObject,
        slots: impl IntoIterator<Item = usize>,
    ) -> Result<(), ProbeError> {
        let queue = object.map("free_slots")?;
        for slot in slots {
            let value = u32::try_from(slot).unwrap_or_default().to_ne_bytes();
            queue
                .update(&[], &value, MapFlags::ANY)
                .map_err(|error| ProbeError::Map {
                    map: "free_slots",
                    reason: error.to_string(),
                })?;
        }
        Ok(())
    }
}
