//! What a disk can do, as io.cost needs it: what a request costs, and how much may be handed out (WDT, slides "TotalCredit updater").
//!
//! io.cost divides what it hands out, and nothing beyond. A hair below what the disk can do weights hold exactly; a few per cent
//! above they hold hardly at all: requests wait at the disk and not before it, and a tenant with few of them gives away what its weight
//! gives it. That lasts until the disk's queue has been empty. So the rate follows the disk from below. What tenants do not use of the rate while the
//! disk has requests all the time is what it cannot do.

use super::disk_sampler::{BUSY, Interval, LOOKED_AT};
use super::prices::{Costs, Prices, Sums};

/// The rate is this part of what the disk did when it was the bottleneck,
const BELOW: f64 = 0.99;
/// and this part of that until its queue has been empty,
const EMPTYING: f64 = 0.8;
/// for at most so many seconds: a disk that serves several requests at a time is always busy.
const MOST_EMPTYING: f64 = 1.0;
/// The disk is the bottleneck once so many seconds' worth of the rate is missing: more than what comes in one lump,
const MISSING: f64 = 0.03;
/// in this many seconds, which say what it can do. What a disk takes in advance is more,
const MEASURED: f64 = 1.0;
/// but this much is no accident.
const MUCH: f64 = 0.25;
/// Of what is missing so much is forgotten a second: tenants that pause leave gaps.
const FORGOTTEN: f64 = 0.002;
/// The rate is raised by this part first, and by twice the last part each time after.
const STEP: f64 = 0.02;
/// It is raised so many seconds after the disk was the bottleneck, since what it did then may be known badly; after twice as many each
/// time that a raise has shown nothing,
const HOLD: f64 = 2.0;
/// at most so many,
const MOST_HOLD: f64 = 256.0;
/// but at once where the disk is busy for less than this part of what is usual at the rate.
const RESTS: f64 = 0.7;
/// What is usual is what was so in about so many seconds.
const USUALLY: f64 = 8.0;
/// Between two raises are so many seconds: what a disk takes in advance, or its queue, is filling.
const FILLING: f64 = 2.0;
/// Tenants that leave more than this part of the rate unused do not need a higher one.
const UNUSED: f64 = 0.25;
/// Where it still rests, so many; and where it rested and does no more, the raise is taken back after so many.
const RESTING: f64 = 0.5;
/// A raise of more than this is another disk than before.
const ANOTHER: f64 = 0.25;
/// At once the rate falls to this part of itself at most.
const FALL: f64 = 0.5;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// The disk's queue is to be empty, for so many seconds more at most.
    Empties(f64),
    /// The rate stands for so many seconds more.
    Holds(f64),
    /// It was raised so many seconds ago.
    Raised(f64),
}

/// The capacity of one disk.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Capacity {
    prices: Prices,
    /// Of what the prices say, so much can be had: seconds of the disk in a second.
    rate: f64,
    phase: Phase,
    /// What was not used of the rate while the disk was busy, seconds of the rate.
    missing: f64,
    /// What it did since.
    since: Sums,
    /// How long the rate stands when the disk is the bottleneck next, seconds.
    hold: f64,
    /// How busy the disk was in the last second, and usually is while the rate stands.
    busy: Option<[f64; 2]>,
    /// By which part it is raised next.
    step: f64,
    /// By which factor it has been raised since the disk was the bottleneck.
    raised: f64,
}

impl Capacity {
    /// Of a disk that did this part of what it can do by these prices, when it was the bottleneck.
    #[must_use]
    fn of(prices: Prices, did: f64) -> Self {
        Self {
            prices,
            rate: BELOW * did,
            phase: Phase::Empties(MOST_EMPTYING),
            missing: 0.0,
            since: Sums::default(),
            hold: HOLD,
            busy: None,
            step: STEP,
            raised: 1.0,
        }
    }

    /// What io.cost is to hand out, a second.
    #[must_use]
    fn rate(&self) -> Prices {
        self.prices.part(match self.phase {
            Phase::Empties(_) => EMPTYING * self.rate,
            Phase::Holds(_) | Phase::Raised(_) => self.rate,
        })
    }

    /// Takes in an interval in which tenants contended.
    fn step(&mut self, seen: &Interval, learnt: Prices) {
        let rests = seen.busy < BUSY;
        let left = |time: f64| time - seen.seconds;
        if let Phase::Empties(time) = self.phase {
            self.phase = match rests || left(time) <= 0.0 {
                true => Phase::Holds(self.hold),
                false => Phase::Empties(left(time)),
            };
            return;
        }
        let misses = self.misses(seen);
        let rests_more = self.rests_more(seen);
        let unused = seen.used.is_some_and(|used| used < 1.0 - UNUSED);
        self.phase = match self.phase {
            _ if misses => self.fall(learnt),
            Phase::Holds(time)
                if unused || !rests_more && (left(time) > 0.0 || self.missing > 0.0) =>
            {
                Phase::Holds(left(time).max(0.0))
            }
            Phase::Raised(ago) if unused || !self.may_raise(ago + seen.seconds, rests_more) => {
                Phase::Raised(ago + seen.seconds)
            }
            _ => self.raise(),
        };
    }

    /// Whether the rate is raised once more, so many seconds after the last time.
    fn may_raise(&self, ago: f64, rests_more: bool) -> bool {
        self.missing == 0.0 && ago >= if rests_more { RESTING } else { FILLING }
    }

    /// Whether the disk is less busy than it usually is where the rate stands: it has got faster, or its requests cheaper.
    fn rests_more(&mut self, seen: &Interval) -> bool {
        let mean =
            |old: f64, over: f64| old + (seen.busy - old) * (1.0 - (-seen.seconds / over).exp());
        let [lately, usually] = self.busy.unwrap_or([seen.busy; 2]);
        let usually = match self.phase {
            Phase::Holds(_) => mean(usually, USUALLY),
            _ => usually,
        };
        let lately = mean(lately, MEASURED);
        self.busy = Some([lately, usually]);
        lately < RESTS * usually
    }

    /// Whether the disk usually rests now and then where the rate stands. Then it is too high if it never does, however little is missing.
    fn usually_rests(&self) -> bool {
        self.busy.is_some_and(|[_, usually]| usually < BUSY)
    }

    /// Whether the disk cannot do what is handed out.
    fn misses(&mut self, seen: &Interval) -> bool {
        let raised = matches!(self.phase, Phase::Raised(_));
        let Some(used) = seen.used else {
            return false;
        };
        let missed = match raised && self.usually_rests() {
            true => MISSING / RESTING,
            false => 1.0 - used - FORGOTTEN,
        };
        let missed = missed * seen.seconds;
        self.missing = match seen.busy < BUSY {
            true => 0.0,
            false => (self.missing + missed).max(0.0),
        };
        if self.missing == 0.0 {
            self.since = Sums::default();
            return false;
        }
        self.since.add(seen);
        let known = self.returns() || self.since.seconds >= MEASURED;
        self.missing > MUCH || (self.missing > MISSING && known)
    }

    /// Whether the rate has been raised, and by so little that it stood right before.
    fn returns(&self) -> bool {
        matches!(self.phase, Phase::Raised(_)) && self.raised <= 1.0 + ANOTHER
    }

    /// The disk is the bottleneck.
    fn fall(&mut self, learnt: Prices) -> Phase {
        if self.returns() {
            self.rate /= self.raised;
            self.hold = (2.0 * self.hold).min(MOST_HOLD);
        } else {
            self.fall_to_what_it_did(learnt);
            self.hold = HOLD;
        }
        (self.missing, self.since) = (0.0, Sums::default());
        self.busy = self.busy.map(|[_, usually]| [usually; 2]);
        (self.step, self.raised) = (STEP, 1.0);
        Phase::Empties(MOST_EMPTYING)
    }

    /// Prices may have been learnt better since: then what the rate is of has changed.
    fn fall_to_what_it_did(&mut self, learnt: Prices) {
        let did = self.since.did(&self.prices, self.rate).min(1.0);
        let stood = self.rate * self.since.cost(&learnt) / self.since.cost(&self.prices);
        // That requests are dear is known by now; a disk that does less than it usually does may do so for a moment.
        self.rate = (BELOW * stood * did).max(FALL * stood.min(1.0));
        self.prices = learnt;
    }

    fn raise(&mut self) -> Phase {
        self.rate *= 1.0 + self.step;
        self.raised *= 1.0 + self.step;
        self.step = (2.0 * self.step).min(1.0);
        Phase::Raised(0.0)
    }
}

/// What io.cost hands out of one disk: while tenants contend, once it is known what the disk can do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    capacity: Option<Capacity>,
    /// What the disk did in the intervals in which it was busy, since it last rested.
    completed: Sums,
    /// For how long it has had requests and completed none, seconds.
    silent: f64,
}

impl Rate {
    /// Takes in an interval. What a disk does that completes nothing shows once it does: so the rate does not move while it stands still, when
    /// a write of a model would wait for it.
    pub fn step(&mut self, contended: bool, seen: &Interval, costs: &Costs) {
        if seen.busy >= BUSY && seen.requests <= 0.0 {
            self.silent += seen.seconds;
            return;
        }
        let silent = std::mem::take(&mut self.silent);
        let part = seen.seconds / (seen.seconds + silent);
        self.take_in(
            contended,
            &Interval {
                seconds: seen.seconds + silent,
                bytes: seen.bytes * part,
                requests: seen.requests * part,
                used: seen.used.map(|used| used * part),
                ..*seen
            },
            costs,
        );
    }

    fn take_in(&mut self, contended: bool, seen: &Interval, costs: &Costs) {
        if let (Some(capacity), true) = (&mut self.capacity, contended) {
            capacity.step(seen, costs.prices().unwrap_or(capacity.prices));
            return;
        }
        self.capacity = None;
        if seen.busy < LOOKED_AT {
            self.completed = Sums::default();
        }
        if seen.busy < BUSY {
            return;
        }
        if self.completed.seconds >= 2.0 * MEASURED {
            self.completed.halve();
        }
        self.completed.add(seen);
        if contended && self.completed.seconds >= MEASURED && self.completed.bytes > 0.0 {
            let of_bytes = Prices {
                bytes: self.completed.bytes / self.completed.seconds,
                requests: f64::INFINITY,
            };
            let prices = costs.prices().unwrap_or(of_bytes);
            let did = self.completed.cost(&prices);
            self.capacity = Some(Capacity::of(prices, did));
            self.completed = Sums::default();
        }
    }

    /// What io.cost is to hand out, a second; `None` if it is to be off.
    #[must_use]
    pub fn handed_out(&self) -> Option<Prices> {
        self.capacity.as_ref().map(Capacity::rate)
    }
}

#[cfg(test)]
mod tests;
