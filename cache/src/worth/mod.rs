//! Is the SSD store worth it for a pool? By what its reads there save, and what they and its writes cost.
//!
//! The law: blocks are admitted while *what was saved ≥ what was spent*, both in time. A read that the SSD answers, so that
//! no read of the disk is needed, saves what a read of that disk takes. Spent is the time of all reads of the SSD, those
//! in vain included (where another block was missing, the disk was read all the same), and for each block that has left
//! the SSD what its write took. A block that is still there has yet to show what it was worth.
//!
//! Times are what the readers waited: of a disk with a queue that is longer than of one without, and the same holds for the
//! SSD. So a pool leaves an SSD that others keep busy.
//!
//! With nothing known, all is admitted. Where it is not worth it, a little is ([`Sample`]), in runs, so that whole reads are
//! answered and show what the rest would be worth.

mod sample;
#[cfg(test)]
mod simulation;

pub(crate) use sample::Sample;

use justitia_share::RecentMean;
use serde::Serialize;

/// The mean time of the latest reads, or of the latest blocks written. Of 256 whose times vary twice as much as their mean
/// it is off by a sixth.
pub(crate) type Mean = RecentMean<256>;

/// It is decided when so many reads of the disk were saved, or their time was spent: a wrong admission costs no more.
const ENOUGH: u64 = 512;
/// And when so many were, where little is admitted: a 64th as much comes there.
const ENOUGH_SAMPLED: u64 = 16;
/// What is sampled stays longer than all would, and may be hit where all would not be. So each time that all was admitted
/// in vain doubles that, three times at most: then what that costs is a sixteenth of the reads meanwhile.
const DOUBLED: u32 = 3;

/// Of a pool that is not worth it, all is admitted again when a quarter more is saved than spent: so much a mean is off.
const MORE: (u64, u64) = (5, 4);

/// What of a pool is admitted to the SSD store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SsdAdmission {
    /// All.
    #[default]
    All,
    /// A little: writes cost more than reads save. What is there is read.
    Sample,
    /// A little: the disk is no slower than the SSD. What is there leaves when it is read.
    Leave,
}

/// What was decided so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) worth: SsdAdmission,
    /// How often all was admitted in vain since it was worth it.
    pub(crate) in_vain: u32,
}

/// What happened since the last decision.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Evidence {
    /// What reads of the disk would have taken that the SSD saved, nanoseconds.
    pub(crate) saved_ns: u64,
    /// What reads of the SSD took, nanoseconds.
    pub(crate) reading_ns: u64,
    /// Blocks that were written to the SSD and have left it: taken by a hit, evicted, or removed by a write.
    pub(crate) left: u64,
}

/// What a read of the disk takes, and what a block takes that is written to the SSD, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prices {
    pub(crate) disk_read_ns: u64,
    pub(crate) write_ns: u64,
}

/// What follows; `None` while too little has happened.
pub(crate) fn decide(before: Decision, seen: &Evidence, at: Prices) -> Option<Decision> {
    let spent = seen
        .reading_ns
        .saturating_add(seen.left.saturating_mul(at.write_ns));
    let all = before.worth == SsdAdmission::All;
    let (enough, (more, than)) = match all {
        true => (ENOUGH, (1, 1)),
        false => (ENOUGH_SAMPLED << before.in_vain.min(DOUBLED), MORE),
    };
    if seen.saved_ns.max(spent) < enough.saturating_mul(at.disk_read_ns.max(1)) {
        return None;
    }
    let product = |ns: u64, by: u64| u128::from(ns) * u128::from(by);
    let in_vain = before.in_vain;
    Some(if product(seen.saved_ns, than) >= product(spent, more) {
        Decision {
            worth: SsdAdmission::All,
            in_vain: if all { 0 } else { in_vain },
        }
    } else {
        let reads_are_worth_it = seen.saved_ns >= seen.reading_ns;
        Decision {
            worth: if reads_are_worth_it {
                SsdAdmission::Sample
            } else {
                SsdAdmission::Leave
            },
            in_vain: in_vain.saturating_add(all.into()),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use SsdAdmission::{All, Leave, Sample};

    #[test]
    fn what_saves_less_than_it_costs_is_not_admitted() {
        // A read of the disk takes 1 ms, a write of a block 10 us. Times in ms.
        for (before, saved, reading, left, expected) in [
            // Too little is known, whatever it says.
            (All, 0, 511, 0, None),
            (All, 511, 0, 0, None),
            (Leave, 15, 0, 0, None),
            // Reads cost as much as they save, or a little more.
            (All, 600, 600, 0, Some(All)),
            (All, 600, 601, 0, Some(Leave)),
            // Reads save something, but less than the writes cost.
            (All, 600, 100, 50_000, Some(All)),
            (All, 600, 100, 50_100, Some(Sample)),
            // Nothing is ever read again.
            (All, 0, 0, 51_199, None),
            (All, 0, 0, 51_200, Some(Sample)),
            // Once it was not worth it, it must be so by a quarter.
            (Leave, 124, 100, 0, Some(Sample)),
            (Sample, 125, 100, 0, Some(All)),
            (Leave, 125, 100, 0, Some(All)),
            (Sample, 99, 100, 0, Some(Leave)),
            (Leave, 124, 50, 5_000, Some(Sample)),
            (Sample, 0, 0, 1_600, Some(Sample)),
        ] {
            let seen = Evidence {
                saved_ns: saved * 1_000_000,
                reading_ns: reading * 1_000_000,
                left,
            };
            let at = Prices {
                disk_read_ns: 1_000_000,
                write_ns: 10_000,
            };
            let decision = Decision {
                worth: before,
                in_vain: 0,
            };
            let found = decide(decision, &seen, at).map(|found| found.worth);
            assert_eq!(found, expected, "{before:?} {seen:?}");
        }
    }

    #[test]
    fn who_came_back_in_vain_must_show_more() {
        let at = Prices {
            disk_read_ns: 1,
            write_ns: 1,
        };
        let seen = |saved_ns, left| Evidence {
            saved_ns,
            left,
            ..Evidence::default()
        };
        let mut now = Decision::default();
        for (saved, left, worth, in_vain) in [
            (0, 512, Sample, 1),
            (31, 0, Sample, 1),
            (32, 0, All, 1),
            (0, 512, Sample, 2),
            (63, 0, Sample, 2),
            (64, 0, All, 2),
            (0, 512, Sample, 3),
            (128, 0, All, 3),
            (0, 512, Sample, 4),
            (127, 0, Sample, 4),
            (128, 0, All, 4),
            // It was worth it.
            (512, 512, All, 0),
            (0, 512, Sample, 1),
            (0, 512, Sample, 1),
        ] {
            now = decide(now, &seen(saved, left), at).unwrap_or(now);
            assert_eq!(now, Decision { worth, in_vain }, "{saved} {left}");
        }
    }

    #[test]
    fn no_figure_is_too_large_or_too_small() {
        for saved_ns in [0, 1, u64::MAX] {
            for reading_ns in [0, 1, u64::MAX] {
                for left in [0, 1, u64::MAX] {
                    for disk_read_ns in [0, 1, u64::MAX] {
                        let seen = Evidence {
                            saved_ns,
                            reading_ns,
                            left,
                        };
                        let at = Prices {
                            disk_read_ns,
                            write_ns: u64::MAX,
                        };
                        let found = decide(Decision::default(), &seen, at);
                        let cheap = reading_ns == 0 && left == 0;
                        assert!(
                            !cheap || found.is_none_or(|found| found.worth == All),
                            "{seen:?}"
                        );
                    }
                }
            }
        }
        // Where no time passes, nothing is decided.
        let none = Prices {
            disk_read_ns: 0,
            write_ns: 0,
        };
        assert_eq!(
            decide(Decision::default(), &Evidence::default(), none),
            None
        );
    }
}
