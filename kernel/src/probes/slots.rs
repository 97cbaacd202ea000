//! The slots of the programs' counters: which cgroup has which, and how a slot passes from one cgroup to another.
//!
//! Programs allocate slots; the reader frees them. A slot of a removed cgroup is reported once more and freed at the next
//! sample. When few slots are free, the least used ones are evicted: the cgroup is taken out of `slot_of_cgroup`, the
//! reader waits until no program can hold the slot any more, keeps what was counted in it, and frees it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use justitia_share::num::to_f64;
use justitia_share::{HalfLife, PAGE_SIZE};
use libbpf_rs::MapCore as _;
use libbpf_rs::MapFlags;

use super::counters::{COUNTERS_WORDS, Counters, ProbeSample, SLOT_WORDS, decode};
use super::limits::ProbeError;
use super::mapped::MappedArray;
use super::object::ProbeObject;
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
        sample: &mut ProbeSample,
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

// How much each slot is used, and which slots are evicted when few are free.

/// While fewer than one slot in this many is free, some are evicted …
const LOW_FREE: usize = 8;
/// … until one in this many is.
const ENOUGH_FREE: usize = 4;
/// The half-life of a cgroup's activity.
const HALF_LIFE: HalfLife = HalfLife::new(Duration::from_secs(2));
/// A slot that was just allocated is not evicted for so long, to show how much it is used.
const MIN_AGE: Duration = Duration::from_secs(1);
/// What an event counts that moved no bytes, in bytes.
const EVENT_BYTES: u64 = PAGE_SIZE;

/// The use of one slot.
#[derive(Clone, Copy, Debug)]
struct Usage {
    since: Instant,
    /// All that was counted in it.
    total: u64,
    /// The latest counts, decayed.
    recent: f64,
}

/// The use of every slot.
#[derive(Debug)]
pub(super) struct SlotUsage {
    slots: Vec<Option<Usage>>,
    updated: Option<Instant>,
}

impl SlotUsage {
    /// Of this number of slots, slot 0 included, which is never evicted.
    pub(super) fn new(slots: usize) -> Self {
        Self {
            slots: vec![None; slots],
            updated: None,
        }
    }

    /// Takes what each slot has counted up to now; `None` for slots that are free or being freed.
    pub(super) fn update(
        &mut self,
        counters: impl Iterator<Item = Option<Counters>>,
        now: Instant,
    ) {
        let elapsed = self.updated.map_or(Duration::ZERO, |at| now - at);
        let decay = HALF_LIFE.decay(elapsed);
        self.updated = Some(now);
        for (slot, counters) in self.slots.iter_mut().zip(counters) {
            let Some(counters) = counters else {
                *slot = None;
                continue;
            };
            let total = total(&counters);
            let before = slot.unwrap_or(Usage {
                since: now,
                total: 0,
                recent: 0.0,
            });
            *slot = Some(Usage {
                total,
                recent: before.recent * decay + to_f64(total.saturating_sub(before.total)),
                ..before
            });
        }
    }

    /// The slots to evict while `free` are free, the least used first. Of those, slots that were just allocated stay for
    /// now, and no other is evicted instead.
    pub(super) fn least_used(&self, free: usize, now: Instant) -> Vec<usize> {
        let all = self.slots.len();
        if free >= all.div_ceil(LOW_FREE) {
            return Vec::new();
        }
        let mut used: Vec<(usize, Usage)> = self
            .slots
            .iter()
            .enumerate()
            .filter_map(|(slot, usage)| Some((slot, (*usage)?)))
            .collect();
        used.sort_by(|(_, a), (_, b)| {
            let recent = a.recent.total_cmp(&b.recent);
            recent.then(a.since.cmp(&b.since))
        });
        used.truncate((all / ENOUGH_FREE).saturating_sub(free));
        used.retain(|(_, usage)| now - usage.since >= MIN_AGE);
        used.into_iter().map(|(slot, _)| slot).collect()
    }
}

/// All counters as one number of bytes.
fn total(counters: &Counters) -> u64 {
    let (read, written) = (counters.read.total(), counters.written.total());
    let bytes = [read.bytes, written.bytes, counters.cache_miss_bytes];
    let events = [
        counters.faults,
        counters.demand_misses,
        counters.throttled_bios,
        read.operations,
        written.operations,
    ];
    let sum = |all: &[u64]| all.iter().fold(0, |sum: u64, one| sum.wrapping_add(*one));
    sum(&bytes).wrapping_add(sum(&events).wrapping_mul(EVENT_BYTES))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: u64) -> Option<Counters> {
        let mut counters = Counters::default();
        counters.read.buffered.bytes = bytes;
        Some(counters)
    }

    /// Sixteen slots beside the first, of which `free` are free. Slot 3 goes on reading, slot 5 has read most, but has
    /// not for a while.
    fn usage(free: usize, begin: Instant) -> SlotUsage {
        let mut usage = SlotUsage::new(17);
        for second in 0..=20 {
            let counters = (0..17).map(|slot| match slot {
                0 => None,
                3 => read(4096 * second),
                5 => read(1 << 30),
                slot if slot > 16 - free => None,
                _ => read(4096),
            });
            usage.update(counters, begin + Duration::from_secs(second));
        }
        usage
    }

    #[test]
    fn while_enough_are_free_none_is_evicted() {
        let begin = Instant::now();
        assert!(usage(3, begin).least_used(3, begin).is_empty());
    }

    #[test]
    fn the_least_used_slots_are_evicted() {
        let begin = Instant::now();
        let now = begin + Duration::from_secs(20);
        let taken = usage(1, begin).least_used(1, now);
        assert_eq!(taken.len(), 3, "{taken:?}");
        assert!(taken.iter().all(|slot| ![0, 3, 16].contains(slot)));
        // What was counted long ago decays, and what is counted now weighs most.
        let mut usage = self::usage(0, begin);
        let later = now + Duration::from_secs(200);
        let rest = (0..17).map(|slot| match slot {
            0 => None,
            3 => read(4096 * 21),
            5 => read(1 << 30),
            _ => read(4096),
        });
        usage.update(rest, later);
        assert!(!usage.least_used(0, later).contains(&3));
    }

    #[test]
    fn newcomers_do_not_evict_a_slot_in_use() {
        let begin = Instant::now();
        let mut usage = SlotUsage::new(17);
        usage.update(
            (0..17).map(|slot| (slot == 3).then(|| read(4096)).flatten()),
            begin,
        );
        // All others are allocated at once, each for one read.
        let later = begin + Duration::from_secs(5);
        let all = (0..17).map(|slot| match slot {
            0 => None,
            3 => read(1 << 20),
            _ => read(4096),
        });
        usage.update(all, later);
        assert!(usage.least_used(0, later).is_empty());
    }

    #[test]
    fn a_new_slot_is_not_evicted_at_once() {
        let begin = Instant::now();
        let mut usage = SlotUsage::new(17);
        let all = |bytes| (0..17).map(move |slot| (slot > 0).then(|| read(bytes)).flatten());
        usage.update(all(4096), begin);
        let at = |ms| begin + Duration::from_millis(ms);
        assert!(usage.least_used(0, at(500)).is_empty());
        usage.update(all(4096), at(1000));
        assert_eq!(usage.least_used(0, at(1000)).len(), 4);
    }
}
