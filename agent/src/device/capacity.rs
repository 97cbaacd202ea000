//! What a disk can do, as io.cost needs it: what a request costs, and how much may be handed out (WDT, slides "TotalCredit updater").
//!
//! io.cost divides what it hands out, and nothing beyond. A hair below what the disk can do weights hold exactly; a few per cent
//! above they hold hardly at all: requests wait at the disk and not before it, and a tenant with few of them gives away what its weight
//! gives it. That lasts until the disk's queue has been empty. So the rate follows the disk from below. What of the rate is not completed while the
//! disk is busy is what it cannot do, and a queue that fills there says so first.

use super::disk_sampler::{BUSY, Interval, LOOKED_AT};
use super::prices::{Costs, Prices, Sums};
use super::weights::Contention;

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
/// The rate is raised by this part, and after each raise that stands by twice as much, up to twice the rate; for a moment: the more at once, the sooner it shows whether the disk can do it, and the shorter weights do
/// not hold if it cannot (as BBR looks for bandwidth; Cardwell et al., "BBR: Congestion-Based Congestion Control", 2016).
const RAISE: f64 = 0.25;
/// So many seconds: in the first half of it a disk takes in advance what it has room for.
const RAISED: f64 = 1.0;
/// Tenants that use less than this part of a raise have no more of it.
const USED: f64 = 0.5;
/// A disk that does this part more for a raise, though not all, is measured again.
const GAIN: f64 = 0.05;
/// It is raised so many seconds after the disk was the bottleneck, since what it did then may be known badly; after twice as many each
/// time that a raise has shown nothing,
const HOLD: f64 = 2.0;
/// at most so many,
const MOST_HOLD: f64 = 256.0;
/// but at once where the disk is busy for less than this part of what is usual at the rate.
const RESTS: f64 = 0.7;
/// What is usual is what was so in about so many seconds.
const USUALLY: f64 = 8.0;
/// Tenants that leave more than this part of the rate unused do not need a higher one.
const UNUSED: f64 = 0.25;
/// Requests wait at the disk where there are so many times as many as there need to be: its queue is filling, although nothing is missing yet.
const WAITS: f64 = 3.0;
/// How many there are at least is forgotten within about so many seconds.
const REMEMBERED: f64 = 20.0;
/// At once the rate falls to this part of itself at most.
const FALL: f64 = 0.5;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// The disk's queue is to be empty, for so many seconds more at most.
    Empties(f64),
    /// The rate stands for so many seconds more.
    Holds(f64),
    /// It is raised, for a moment.
    Raised(Raised),
}

/// What was used of a raised rate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Raised {
    /// For how long, seconds.
    seconds: f64,
    /// For how long it counts, and how much was used then, seconds of the rate: by then a disk has taken in advance what it has room for.
    counts: f64,
    used: f64,
}

impl Raised {
    fn and(self, seen: &Interval) -> Self {
        let seconds = if self.seconds < RAISED / 2.0 {
            0.0
        } else {
            seen.seconds
        };
        Self {
            seconds: self.seconds + seen.seconds,
            counts: self.counts + seconds,
            used: self.used + seen.used.unwrap_or(1.0) * seconds,
        }
    }

    /// The part of the raised rate; 1 before any is known.
    fn used(&self) -> f64 {
        if self.counts > 0.0 {
            self.used / self.counts
        } else {
            1.0
        }
    }
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
    /// By which part it is raised next.
    raise: f64,
    /// What the rate was before it was raised, until it is known that tenants use more.
    before: Option<f64>,
    /// How long the rate stands next, seconds.
    hold: f64,
    /// How busy the disk was in the last second, and usually is while the rate stands.
    busy: Option<[f64; 2]>,
    /// How many requests were at the disk in the last second, and at least are.
    queue: Option<[f64; 2]>,
    /// What was used of io.cost, and what came to the disk, seconds of the disk: with the journal, which passes io.cost.
    paid: [f64; 2],
    /// The part of the rate that was completed in the last second.
    did: f64,
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
            raise: RAISE,
            before: None,
            hold: HOLD,
            busy: None,
            queue: None,
            paid: [did; 2],
            did: 1.0,
        }
    }

    /// What io.cost is to hand out, a second.
    #[must_use]
    fn rate(&self) -> Prices {
        self.prices.part(self.handed_out())
    }

    /// The same, seconds of the disk.
    fn handed_out(&self) -> f64 {
        match self.phase {
            Phase::Empties(_) => EMPTYING * self.rate,
            Phase::Holds(_) => self.rate,
            Phase::Raised(_) => (1.0 + self.raise) * self.rate,
        }
    }

    /// The interval with what was completed of the rate as used. The kernel sums up what is used fifty milliseconds late, and before it is done.
    fn completed(&mut self, seen: &Interval) -> Interval {
        let handed_out = self.handed_out();
        let completed = self.prices.cost(seen.bytes, seen.requests);
        let size = seen.bytes / seen.requests.max(1.0);
        let queued = self.prices.cost(size, 1.0) * seen.queued;
        let kept = (-seen.seconds / USUALLY).exp();
        if let Some(used) = seen.used {
            let (used, passed) = (
                used * handed_out * seen.seconds,
                completed * seen.seconds + queued,
            );
            let [paid, all] = self.paid;
            self.paid = [kept * paid + used, kept * all + passed.max(0.0)];
        }
        let [paid, all] = self.paid;
        let used = completed / handed_out * (paid / all).min(1.0);
        self.did += (used - self.did) * (1.0 - (-seen.seconds / MEASURED).exp());
        Interval {
            used: seen.used.map(|_| used),
            ..*seen
        }
    }

    /// Takes in an interval in which tenants contended.
    fn step(&mut self, seen: &Interval, learnt: Prices) {
        let seen = &self.completed(seen);
        let left = |time: f64| (time - seen.seconds).max(0.0);
        let waits = self.waits(seen);
        if let Phase::Empties(time) = self.phase {
            self.phase = match !waits && seen.busy < BUSY || left(time) == 0.0 {
                true => Phase::Holds(self.hold),
                false => Phase::Empties(left(time)),
            };
            return;
        }
        let misses = self.misses(seen);
        let rests_more = self.rests_more(seen);
        let needed = seen.used.is_none_or(|used| used >= 1.0 - UNUSED);
        self.phase = match self.phase {
            Phase::Raised(raised) => self.try_raised(seen, misses, raised),
            _ if misses => {
                let (stood, did) = (self.learn(learnt), self.since.used());
                self.fall(stood, did)
            }
            _ if waits && self.missing <= MISSING => self.fall(self.rate, self.did),
            Phase::Holds(time) if left(time) == 0.0 && self.is_unused() => self.give_up(),
            Phase::Holds(time)
                if needed && (rests_more || left(time) == 0.0 && self.missing == 0.0) =>
            {
                self.before = None;
                Phase::Raised(Raised::default())
            }
            Phase::Holds(time) => Phase::Holds(left(time)),
            Phase::Empties(_) => self.phase,
        };
    }

    /// The raise stands, and is followed by another, if tenants use it.
    fn try_raised(&mut self, seen: &Interval, misses: bool, raised: Raised) -> Phase {
        let now = raised.and(seen);
        if misses {
            let measured = self.since.seconds >= MEASURED;
            let gain = match measured {
                true => self.gain(self.since.used()),
                false => self.gain(seen.used.unwrap_or(1.0)),
            };
            return match gain > 1.0 + GAIN {
                true if measured => {
                    self.rate *= gain;
                    self.hold = HOLD;
                    self.empty()
                }
                true => Phase::Raised(now),
                false => self.take_back(),
            };
        }
        if now.seconds < RAISED {
            return Phase::Raised(now);
        }
        if now.used() * (1.0 + self.raise) < 1.0 + USED * self.raise {
            return self.take_back();
        }
        self.before = self.before.or(Some(self.rate));
        self.rate *= 1.0 + self.raise;
        self.raise = (2.0 * self.raise).min(1.0);
        self.hold = HOLD;
        Phase::Raised(Raised::default())
    }

    /// Whether a raise that stood is not used after all: some requests that came at once, as after a pause, looked as if the disk could do more.
    /// Where tenants do not use the rate it divides nothing.
    fn is_unused(&self) -> bool {
        self.before.is_some() && self.did * (1.0 + RAISE) < 1.0 + USED * RAISE
    }

    /// The rate is what it was before it was raised.
    fn give_up(&mut self) -> Phase {
        self.rate = self.before.take().unwrap_or(self.rate);
        self.take_back()
    }

    /// Nothing came of it.
    fn take_back(&mut self) -> Phase {
        self.hold = (2.0 * self.hold).min(MOST_HOLD);
        self.empty()
    }

    /// By which factor the rate can be higher, by what the disk did of a raised one.
    fn gain(&self, used: f64) -> f64 {
        BELOW * (1.0 + self.raise) * used
    }

    /// The disk's queue is to be empty.
    fn empty(&mut self) -> Phase {
        (self.missing, self.since) = (0.0, Sums::default());
        self.raise = RAISE;
        self.busy = self.busy.map(|[_, usually]| [usually; 2]);
        Phase::Empties(MOST_EMPTYING)
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

    /// Whether requests wait at the disk, where their weights do not count.
    fn waits(&mut self, seen: &Interval) -> bool {
        let now = seen.under_way.max(1.0);
        let [lately, least] = self.queue.unwrap_or([now; 2]);
        let empties = matches!(self.phase, Phase::Empties(_));
        let lately = match empties {
            true => now,
            false => lately + (now - lately) * (1.0 - (-seen.seconds / MEASURED).exp()),
        };
        let least = (least * (seen.seconds / REMEMBERED).exp()).min(lately);
        self.queue = Some([lately, least]);
        (empties || seen.busy >= BUSY) && lately > WAITS * least
    }

    /// Whether the disk cannot do what is handed out.
    fn misses(&mut self, seen: &Interval) -> bool {
        let Some(used) = seen.used else {
            return false;
        };
        let missed = (seen.busy - used - FORGOTTEN) * seen.seconds;
        self.missing = match seen.busy < LOOKED_AT {
            true => 0.0,
            false => (self.missing + missed).max(0.0),
        };
        if self.missing == 0.0 {
            self.since = Sums::default();
            return false;
        }
        self.since.add(seen);
        let raised = matches!(self.phase, Phase::Raised(_));
        let known = raised || self.since.seconds >= MEASURED;
        self.missing > MUCH || (self.missing > MISSING && known)
    }

    /// The disk is the bottleneck, and did this part of the rate, which is `stood` by now. That requests are dear is known at once; one that does
    /// less than it usually does may do so for a moment.
    fn fall(&mut self, stood: f64, did: f64) -> Phase {
        let did = did.min(1.0);
        self.rate = (BELOW * stood * did).max(FALL * stood.min(1.0));
        self.before = None;
        if did < 1.0 - GAIN {
            self.hold = HOLD;
        }
        self.empty()
    }

    /// What the rate is by prices that have been learnt better since.
    fn learn(&mut self, learnt: Prices) -> f64 {
        let stood = self.rate * self.since.cost(&learnt) / self.since.cost(&self.prices);
        (self.prices, self.paid) = (learnt, [stood; 2]);
        stood
    }
}

/// What io.cost hands out of one disk: while tenants contend, once it is known what the disk can do.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    capacity: Option<Capacity>,
    /// What the disk did while it was busy, since contention began.
    completed: Sums,
    /// For how long it has had requests and completed none, seconds.
    silent: f64,
}

impl Rate {
    /// Takes in an interval. What a disk does that completes nothing shows once it does: so the rate does not move while it stands still, when
    /// a write of a model would wait for it.
    pub fn step(&mut self, contention: Contention, seen: &Interval, costs: &Costs) {
        if seen.busy >= BUSY && seen.requests <= 0.0 {
            self.silent += seen.seconds;
            return;
        }
        let silent = std::mem::take(&mut self.silent);
        let part = seen.seconds / (seen.seconds + silent);
        self.take_in(
            contention,
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

    fn take_in(&mut self, contention: Contention, seen: &Interval, costs: &Costs) {
        let engaged = contention == Contention::Engaged;
        if let (Some(capacity), true) = (&mut self.capacity, engaged) {
            capacity.step(seen, costs.prices().unwrap_or(capacity.prices));
            return;
        }
        self.capacity = None;
        if contention == Contention::None || seen.busy < LOOKED_AT {
            self.completed = Sums::default();
            return;
        }
        if self.completed.seconds >= 2.0 * MEASURED {
            self.completed.halve();
        }
        // It rests for moments.
        let busy = seen.busy * seen.seconds;
        self.completed.add(&Interval {
            seconds: busy,
            bytes: seen.bytes / seen.busy,
            requests: seen.requests / seen.busy,
            ..*seen
        });
        if engaged && self.completed.seconds >= MEASURED && self.completed.bytes > 0.0 {
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
