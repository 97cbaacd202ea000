//! How much each slot is used, and which slots are evicted when few are free.

use std::time::{Duration, Instant};

use justitia_share::HalfLife;
use justitia_share::num::to_f64;

use super::Counters;
use crate::PAGE_SIZE;

/// While fewer than one slot in so many is free, some are evicted …
const LOW_FREE: usize = 8;
/// … until one in so many is.
const ENOUGH_FREE: usize = 4;
/// The half-life of what a cgroup did.
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
    /// What was counted lately, decayed.
    recent: f64,
}

/// The use of every slot.
#[derive(Debug)]
pub(super) struct SlotUsage {
    slots: Vec<Option<Usage>>,
    updated: Option<Instant>,
}

impl SlotUsage {
    /// Of so many slots, slot 0 included, which is never evicted.
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
