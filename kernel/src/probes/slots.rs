//! Which slots are given to others when they get few: those of the cgroups that use theirs least.

use std::time::{Duration, Instant};

use justitia_share::num::to_f64;

use super::Counters;

/// While fewer than one slot in so many is free, some are taken back …
const SCARCE: usize = 8;
/// … until one in so many is.
const ENOUGH: usize = 4;
/// What a cgroup did so long ago counts half.
const HALF: Duration = Duration::from_secs(2);
/// One that has just got its slot keeps it for so long, to show what it does.
const SETTLES: Duration = Duration::from_secs(1);
/// What an event counts that moved no bytes.
const EVENT: u64 = 4096;

/// A cgroup's use of its slot.
#[derive(Clone, Copy, Debug)]
struct Use {
    since: Instant,
    /// All that it did.
    amount: u64,
    /// What it did lately.
    lately: f64,
}

/// How much every slot is used.
#[derive(Debug)]
pub(super) struct Uses {
    slots: Vec<Option<Use>>,
    at: Option<Instant>,
}

impl Uses {
    /// Of so many slots, slot 0 included, which is never given to others.
    pub(super) fn of(slots: usize) -> Self {
        Self {
            slots: vec![None; slots],
            at: None,
        }
    }

    /// Takes what each slot has counted up to now; `None` for slots that nobody has or that nobody may be given.
    pub(super) fn take(&mut self, counters: impl Iterator<Item = Option<Counters>>, now: Instant) {
        let past = self.at.map_or(Duration::ZERO, |at| now - at);
        let decay = 0.5_f64.powf(past.as_secs_f64() / HALF.as_secs_f64());
        self.at = Some(now);
        for (slot, counters) in self.slots.iter_mut().zip(counters) {
            let Some(counters) = counters else {
                *slot = None;
                continue;
            };
            let amount = amount(&counters);
            let before = slot.unwrap_or(Use {
                since: now,
                amount: 0,
                lately: 0.0,
            });
            *slot = Some(Use {
                amount,
                lately: before.lately * decay + to_f64(amount.saturating_sub(before.amount)),
                ..before
            });
        }
    }

    /// The slots that are to be given to others, while `free` are free. Of those that are used least the ones that were just
    /// given stay for now, and no other goes in their place.
    pub(super) fn least(&self, free: usize, now: Instant) -> Vec<usize> {
        let all = self.slots.len();
        if free >= all.div_ceil(SCARCE) {
            return Vec::new();
        }
        let mut used: Vec<(usize, Use)> = self
            .slots
            .iter()
            .enumerate()
            .filter_map(|(slot, one)| Some((slot, (*one)?)))
            .collect();
        used.sort_by(|(_, a), (_, b)| {
            let least = a.lately.total_cmp(&b.lately);
            least.then(a.since.cmp(&b.since))
        });
        used.truncate((all / ENOUGH).saturating_sub(free));
        used.retain(|(_, one)| now - one.since >= SETTLES);
        used.into_iter().map(|(slot, _)| slot).collect()
    }
}

/// What was counted as one number.
fn amount(counters: &Counters) -> u64 {
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
    sum(&bytes).wrapping_add(sum(&events).wrapping_mul(EVENT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: u64) -> Option<Counters> {
        let mut counters = Counters::default();
        counters.read.buffered.bytes = bytes;
        Some(counters)
    }

    /// Sixteen slots beside the first, of which all but `free` are had. Slot 3 goes on reading, slot 5 has read most,
    /// but has not for a while.
    fn uses(free: usize, begin: Instant) -> Uses {
        let mut uses = Uses::of(17);
        for second in 0..=20 {
            let counters = (0..17).map(|slot| match slot {
                0 => None,
                3 => read(4096 * second),
                5 => read(1 << 30),
                slot if slot > 16 - free => None,
                _ => read(4096),
            });
            uses.take(counters, begin + Duration::from_secs(second));
        }
        uses
    }

    #[test]
    fn while_enough_are_free_everybody_keeps_its_own() {
        let begin = Instant::now();
        assert!(uses(3, begin).least(3, begin).is_empty());
    }

    #[test]
    fn who_uses_its_slot_least_gives_it_to_others() {
        let begin = Instant::now();
        let now = begin + Duration::from_secs(20);
        let taken = uses(1, begin).least(1, now);
        assert_eq!(taken.len(), 3, "{taken:?}");
        assert!(taken.iter().all(|slot| ![0, 3, 16].contains(slot)));
        // What was done long ago is forgotten in the end, and what is done now counts most.
        let mut uses = uses(0, begin);
        let later = now + Duration::from_secs(200);
        let rest = (0..17).map(|slot| match slot {
            0 => None,
            3 => read(4096 * 21),
            5 => read(1 << 30),
            _ => read(4096),
        });
        uses.take(rest, later);
        assert!(!uses.least(0, later).contains(&3));
    }

    #[test]
    fn newcomers_do_not_drive_out_who_uses_its_slot() {
        let begin = Instant::now();
        let mut uses = Uses::of(17);
        uses.take(
            (0..17).map(|slot| (slot == 3).then(|| read(4096)).flatten()),
            begin,
        );
        // All others come at once, each for one read.
        let later = begin + Duration::from_secs(5);
        let all = (0..17).map(|slot| match slot {
            0 => None,
            3 => read(1 << 20),
            _ => read(4096),
        });
        uses.take(all, later);
        assert!(uses.least(0, later).is_empty());
    }

    #[test]
    fn a_newcomer_is_not_sent_away_at_once() {
        let begin = Instant::now();
        let mut uses = Uses::of(17);
        let all = |bytes| (0..17).map(move |slot| (slot > 0).then(|| read(bytes)).flatten());
        uses.take(all(4096), begin);
        let at = |ms| begin + Duration::from_millis(ms);
        assert!(uses.least(0, at(500)).is_empty());
        uses.take(all(4096), at(1000));
        assert_eq!(uses.least(0, at(1000)).len(), 4);
    }
}
