//! How much of a pool is offered on a file system, by the verdicts on its blocks: refused blocks cost the guest.

use std::time::Duration;

use justitia_guest_protocol::puts::{Tally, Verdict};

pub(crate) use justitia_kernel::probes::OFFER_NOTHING as NOTHING;

/// The least offer outside pauses is one block in `2^LEAST`: so changes are noticed.
pub(crate) const LEAST: u32 = 6;

/// Blocks before a decision: fewer may come from one directory.
const ENOUGH: u64 = 64;

/// How much is offered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offer {
    /// One block in `2^shift`.
    pub(crate) shift: u32,
    /// Nothing is offered until then.
    pub(crate) paused_until: Option<Duration>,
    /// Pauses in a row, without success in between.
    pauses: u32,
}

impl Offer {
    /// The shift for the kernel's map.
    pub(crate) const fn in_kernel(&self) -> u32 {
        match self.paused_until {
            Some(_) => NOTHING,
            None => self.shift,
        }
    }
}

/// The next offer, from the verdicts since the last decision; `None` while they are too few. `now` is any clock's.
pub(crate) fn decide(before: Offer, seen: &Tally, now: Duration) -> Option<Offer> {
    if let Some(until) = before.paused_until {
        return (now >= until).then_some(Offer {
            shift: LEAST,
            paused_until: None,
            ..before
        });
    }
    let total = seen.total();
    if total < ENOUGH >> before.shift.min(3) {
        return None;
    }
    let of = |verdict| seen.of(verdict);
    // Content that is not the disk's: encrypted, compressed, or transformed otherwise.
    if of(Verdict::Mismatch) > total / 4 {
        let pauses = before.pauses.saturating_add(1);
        return Some(Offer {
            shift: LEAST,
            paused_until: Some(now + pause_length(pauses)),
            pauses,
        });
    }
    let unwanted = of(Verdict::Held) + of(Verdict::NoRoom) + of(Verdict::OutOfRange);
    let worthless = unwanted > total / 2 || of(Verdict::Unknown) > total / 4 * 3;
    let shift = if worthless {
        (before.shift + 1).min(LEAST)
    } else if unwanted < total / 4 && of(Verdict::Accepted) > total / 4 {
        before.shift.saturating_sub(1)
    } else {
        before.shift
    };
    let pauses = if of(Verdict::Accepted) > total / 2 {
        0
    } else {
        before.pauses
    };
    Some(Offer {
        shift,
        paused_until: None,
        pauses,
    })
}

// Pauses, in which nothing is offered: each is twice as long as the one before.

/// The first pause.
const FIRST: Duration = Duration::from_secs(60);
/// The number of pauses that grow: the longest lasts 64 minutes.
const GROWING: u32 = 7;

/// The length of the `number`th pause in a row; the first has number 1.
pub(crate) fn pause_length(number: u32) -> Duration {
    FIRST * 2_u32.pow(number.clamp(1, GROWING) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(counts: &[(Verdict, u64)]) -> Tally {
        let mut tally = Tally::default();
        counts.iter().for_each(|(v, n)| tally.add(*v, *n));
        tally
    }

    fn at(shift: u32) -> Offer {
        Offer {
            shift,
            ..Offer::default()
        }
    }

    #[test]
    fn what_is_refused_is_offered_less() {
        use Verdict::{Accepted, Held, Mismatch, NoRoom, Raced, Unknown};
        let now = Duration::from_secs(1000);
        let pause = |pauses, seconds| Offer {
            shift: LEAST,
            paused_until: Some(now + Duration::from_secs(seconds)),
            pauses,
        };
        for (before, counts, expected) in [
            // Too few to decide; where little is offered, fewer suffice.
            (at(0), &[(Accepted, 63)][..], None),
            (at(3), &[(Accepted, 8)], Some(at(2))),
            // All is well: more, and never more than all.
            (at(0), &[(Accepted, 100)], Some(at(0))),
            (at(5), &[(Accepted, 60), (Unknown, 40)], Some(at(4))),
            // The cache has it already, or has no room.
            (at(0), &[(Held, 60), (Accepted, 40)], Some(at(1))),
            (at(6), &[(NoRoom, 100)], Some(at(6))),
            (at(2), &[(Held, 40), (Accepted, 60)], Some(at(2))),
            // The host knows nothing of most.
            (at(0), &[(Unknown, 80), (Accepted, 20)], Some(at(1))),
            (at(0), &[(Unknown, 70), (Accepted, 30)], Some(at(0))),
            // Some files are written, or encrypted; the others are worth it.
            (
                at(0),
                &[(Mismatch, 20), (Accepted, 60), (Raced, 20)],
                Some(at(0)),
            ),
            // It encrypts: a pause, then a longer one.
            (at(0), &[(Mismatch, 64)], Some(pause(1, 60))),
            (
                Offer { pauses: 1, ..at(6) },
                &[(Mismatch, 60), (Accepted, 40)],
                Some(pause(2, 120)),
            ),
            (
                Offer { pauses: 7, ..at(6) },
                &[(Mismatch, 60)],
                Some(pause(8, 3840)),
            ),
            (Offer { pauses: 5, ..at(6) }, &[(Accepted, 60)], Some(at(5))),
        ] {
            assert_eq!(
                decide(before, &tally(counts), now),
                expected,
                "{before:?} {counts:?}"
            );
        }
    }

    #[test]
    fn after_a_pause_little_is_offered() {
        let now = Duration::from_secs(60);
        let paused = Offer {
            paused_until: Some(now),
            pauses: 1,
            ..at(LEAST)
        };
        assert_eq!(paused.in_kernel(), NOTHING);
        let nothing = Tally::default();
        assert_eq!(
            decide(paused, &nothing, now - Duration::from_nanos(1)),
            None
        );
        let after = decide(paused, &nothing, now).unwrap();
        assert_eq!((after.in_kernel(), after.pauses), (LEAST, 1));
    }

    #[test]
    fn each_is_twice_as_long_up_to_an_hour() {
        let seconds = [0, 1, 2, 7, 8, u32::MAX].map(|number| pause_length(number).as_secs());
        assert_eq!(seconds, [60, 60, 120, 3840, 3840, 3840]);
    }
}
