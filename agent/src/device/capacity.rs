//! What a disk can do, as io.cost needs it: what a request costs, and how much may be handed out (WDT, slides "TotalCredit updater").
//!
//! io.cost divides what it hands out, and nothing beyond. A hair below what the disk can do weights hold exactly; a few per cent
//! above they hold hardly at all: requests wait at the disk and not before it, and a tenant with few of them gives away what its weight
//! gives it. That lasts until the disk's queue has been empty. So the rate follows the disk from below. What of the rate is not completed while
//! requests wait at the disk is what it cannot do. What is not completed while none wait nobody has asked for: a disk whose requests take longer than
//! their part of its bandwidth is as busy, as its counters have it, with two thirds of what it can do.

use super::disk_sampler::{BUSY, Interval, LOOKED_AT};
use super::prices::{Costs, Prices, Sums};
use super::weights::Contention;

/// The rate is this part of what the disk did when it was the bottleneck.
const BELOW: f64 = 0.99;
/// And this part of that until the disk's queue is empty.
const EMPTYING: f64 = 0.8;
/// What shows within a moment, seconds: how much a disk does, whether it can do more, whether its queue gets shorter. In the first half of a
/// moment a disk takes in advance what its cache has room for.
const MOMENT: f64 = 1.0;
/// The disk is the bottleneck once so much of the rate is missing, seconds of it: more than what arrives in one lump. A disk that pauses
/// for less than half a moment does not do less: so long it takes until so much counts.
const MISSING: f64 = 0.03;
/// So much of what is missing is forgotten, seconds of it in a second: tenants that pause leave gaps.
const FORGOTTEN: f64 = 0.002;
/// The rate is raised by this part for a moment, and by twice as much after each raise that stands. The more at once,
/// the sooner it shows whether the disk can do it, and the shorter weights do not hold if it cannot (Cardwell et al., "BBR:
/// Congestion-Based Congestion Control", 2016, looks for bandwidth so).
const RAISE: f64 = 0.25;
/// A raise is by at most so many times the rate.
const MOST_RAISE: f64 = 3.0;
/// Tenants that use less than this part of the rate do not need it: it is not raised, and a raise of it does not stand.
const NEEDED: f64 = 0.9;
/// A disk that does this part more for a raise, though not all of it, is measured again.
const GAIN: f64 = 0.05;
/// The rate is raised so many seconds after the disk was the bottleneck, and after twice as many each time that a raise has shown nothing.
const HOLD: f64 = 2.0;
/// At most so many seconds lie between two raises.
const MOST_HOLD: f64 = 64.0;
/// The rate is raised at once where the disk is busy for less than this part of the time that is usual at the rate, and by as much as it rests.
const RESTS: f64 = 0.7;
/// What is usual is forgotten within about so many seconds.
const REMEMBERED: f64 = 20.0;
/// Requests wait at the disk where there are so many times as many as there need to be. A queue is empty once so many are left at most.
const WAITS: f64 = 3.0;
/// A queue gets shorter as long as this part of it is left after a moment. One that does not is as empty as it can be: a disk that serves several
/// requests at a time always has some.
const SHORTER: f64 = 0.9;
/// At once the rate falls to this part of itself at most.
const FALL: f64 = 0.01;
/// The rate does not fall below this, bytes per second: the kernel is handed no less, so that a raise of less would have no effect.
pub(super) const LEAST_BYTES: f64 = 65_536.0;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Less is handed out until the disk's queue is empty.
    Empties(Emptying),
    /// The rate stands for so many seconds more.
    Holds(f64),
    /// More is handed out for a moment.
    Raised(Raised),
}

/// How a disk's queue gets shorter.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Emptying {
    /// How many requests were there at most.
    most: f64,
    /// How many were left.
    left: f64,
    /// For how long there have not been clearly fewer, seconds.
    seconds: f64,
    /// What was used in that time, seconds of what is handed out.
    used: f64,
}

impl Emptying {
    /// Whatever is at the disk.
    const BEGINS: Self = Self {
        most: 0.0,
        left: f64::INFINITY,
        seconds: 0.0,
        used: 0.0,
    };

    fn and(self, seen: &Interval) -> Self {
        let shorter = seen.under_way < SHORTER * self.left;
        let before = match shorter {
            true => Self {
                left: seen.under_way,
                seconds: 0.0,
                used: 0.0,
                ..self
            },
            false => self,
        };
        Self {
            most: self.most.max(seen.under_way),
            seconds: before.seconds + seen.seconds,
            used: before.used + seen.used.unwrap_or(1.0) * seen.seconds,
            ..before
        }
    }

    /// Whether more than a third is left of it, and more than a few requests.
    fn is_left(&self, seen: &Interval) -> bool {
        seen.under_way > WAITS.max(self.most / WAITS)
    }
}

/// A raise, and what was used of the raised rate.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Raised {
    /// By which part of the rate.
    by: f64,
    /// For how long, seconds.
    seconds: f64,
    /// For how long what is used has counted, seconds.
    counted: f64,
    /// How much was used in that time, seconds of the raised rate.
    used: f64,
}

impl Raised {
    fn by(part: f64) -> Self {
        Self {
            by: part.min(MOST_RAISE),
            seconds: 0.0,
            counted: 0.0,
            used: 0.0,
        }
    }

    fn and(self, seen: &Interval) -> Self {
        let counted = match self.seconds < MOMENT / 2.0 {
            true => 0.0,
            false => seen.seconds,
        };
        Self {
            seconds: self.seconds + seen.seconds,
            counted: self.counted + counted,
            used: self.used + seen.used.unwrap_or(1.0) * counted,
            ..self
        }
    }

    /// Whether tenants need the raised rate.
    fn is_needed(&self) -> bool {
        self.used >= NEEDED * self.counted
    }
}

/// How the disk serves what is handed out.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Served {
    /// The part of the rate that was completed in the last moment.
    used: f64,
    /// The part of the last moment in which the disk was busy.
    busy: f64,
    /// That part as it usually is while the rate stands.
    usually_busy: f64,
    /// How many requests were at the disk in the last moment.
    waiting: f64,
    /// How few there are at least.
    least_waiting: f64,
}

impl Served {
    /// Whether the disk is less busy than usual: it has got faster, or its requests cheaper.
    fn rests(&self) -> bool {
        self.busy < RESTS * self.usually_busy
    }

    /// Whether requests wait at the disk, where their weights do not count: in the last moment.
    fn waits(&self) -> bool {
        self.is_queue(self.waiting)
    }

    /// Whether some wait where so many are at the disk.
    fn is_queue(&self, requests: f64) -> bool {
        requests > WAITS * self.least_waiting
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
    /// What the disk did since something is missing.
    since: Sums,
    /// What the rate was before it was raised, until it is known that tenants need it.
    before: Option<f64>,
    /// How long the rate stands next, seconds.
    hold: f64,
    /// How the disk serves; `None` before the first interval.
    served: Option<Served>,
    /// What it completed in the last moment, per second: bytes and requests.
    throughput: [f64; 2],
    /// What was used of io.cost, and what the disk completed, seconds of the disk: the journal passes io.cost.
    paid: [f64; 2],
}

impl Capacity {
    /// Of a disk that completed so many bytes and requests per second, when it was the bottleneck.
    #[must_use]
    fn of(prices: Prices, throughput: [f64; 2]) -> Self {
        let did = prices.cost(throughput[0], throughput[1]);
        Self {
            prices,
            rate: BELOW * did,
            phase: Phase::Empties(Emptying::BEGINS),
            missing: 0.0,
            since: Sums::default(),
            before: None,
            hold: HOLD,
            served: None,
            throughput,
            paid: [did; 2],
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
            Phase::Raised(raised) => (1.0 + raised.by) * self.rate,
        }
    }

    /// Takes in an interval in which tenants contended.
    fn step(&mut self, seen: &Interval, learnt: Prices) {
        let seen = &self.completed(seen);
        let served = self.notice(seen);
        self.phase = match self.phase {
            Phase::Empties(emptying) => self.try_empty(seen, emptying, served, learnt),
            Phase::Raised(raised) => self.try_raised(seen, raised, served),
            Phase::Holds(time) => self.try_held(seen, time, served, learnt),
        };
    }

    /// The interval with what was completed of the rate as used. The kernel's own sum of what is used is fifty milliseconds late, and counts
    /// requests before they are done.
    fn completed(&mut self, seen: &Interval) -> Interval {
        let handed_out = self.handed_out();
        let completed = self.prices.cost(seen.bytes, seen.requests);
        let size = seen.bytes / seen.requests.max(1.0);
        let queued = self.prices.cost(size, 1.0) * seen.queued;
        if let Some(used) = seen.used {
            let kept = (-seen.seconds / REMEMBERED).exp();
            let used = used * handed_out * seen.seconds;
            let all = (completed * seen.seconds + queued).max(0.0);
            self.paid = [kept * self.paid[0] + used, kept * self.paid[1] + all];
        }
        let [paid, all] = self.paid;
        let used = completed / handed_out * (paid / all).min(1.0);
        Interval {
            used: seen.used.map(|_| used),
            ..*seen
        }
    }

    /// Has the running means follow, and returns them.
    fn notice(&mut self, seen: &Interval) -> Served {
        let mean = |old: f64, now: f64, over: f64| {
            old + (now - old) * (1.0 - (-seen.seconds / over).exp())
        };
        let (used, waiting) = (seen.used.unwrap_or(1.0), seen.under_way.max(1.0));
        let last = self.served.unwrap_or(Served {
            used,
            busy: seen.busy,
            usually_busy: seen.busy,
            waiting,
            least_waiting: waiting,
        });
        let waiting = match self.phase {
            Phase::Empties(_) => waiting,
            _ => mean(last.waiting, waiting, MOMENT),
        };
        let least = last.least_waiting * (seen.seconds / REMEMBERED).exp();
        let served = Served {
            used: mean(last.used, used, MOMENT),
            busy: mean(last.busy, seen.busy, MOMENT),
            usually_busy: match self.phase {
                Phase::Holds(_) => mean(last.usually_busy, seen.busy, REMEMBERED),
                _ => last.usually_busy,
            },
            waiting,
            least_waiting: least.min(waiting),
        };
        let [bytes, requests] = self.throughput;
        self.throughput = [
            mean(bytes, seen.bytes, MOMENT),
            mean(requests, seen.requests, MOMENT),
        ];
        self.served = Some(served);
        served
    }

    /// The rate stands once the disk's queue is empty. Where it does not get shorter while less is done than handed out, the disk can do no more. One
    /// that is full of requests that cost too little never gets shorter: but while less is handed out the mixture is another, and shows what
    /// they cost. A disk that serves several requests at a time always has some.
    fn try_empty(
        &mut self,
        seen: &Interval,
        emptying: Emptying,
        served: Served,
        learnt: Prices,
    ) -> Phase {
        let now = emptying.and(seen);
        let is_full = seen.busy >= BUSY;
        let stays = is_full || served.waits() || now.is_left(seen);
        if stays && now.seconds < MOMENT {
            return Phase::Empties(now);
        }
        if stays && let Some(empties) = self.adopt(self.throughput, learnt) {
            return empties;
        }
        match now.used / now.seconds {
            did if is_full && did < 1.0 - GAIN => self.fall(EMPTYING * did),
            _ => Phase::Holds(self.hold),
        }
    }

    /// The rate stands, unless the disk cannot do it or could do more, or requests turn out to have other prices.
    fn try_held(&mut self, seen: &Interval, time: f64, served: Served, learnt: Prices) -> Phase {
        if self.misses(seen, served) {
            let adopted = self.adopt(self.since.throughput(), learnt);
            return adopted.unwrap_or_else(|| self.fall(self.since.used()));
        }
        let used = seen.used.unwrap_or(1.0);
        if seen.busy >= BUSY && served.waits() && used >= 1.0 - GAIN {
            return match used >= 1.0 {
                true => self.empty(),
                false => self.fall(used),
            };
        }
        let over = time <= seen.seconds;
        if over
            && served.busy >= BUSY
            && let Some(empties) = self.adopt(self.throughput, learnt)
        {
            return empties;
        }
        if over && self.before.is_some() && served.used < NEEDED {
            return self.give_up(served.used);
        }
        if served.used >= NEEDED && (served.rests() || over && self.missing == 0.0) {
            self.before = None;
            return self.raise(seen, served);
        }
        Phase::Holds((time - seen.seconds).max(0.0))
    }

    /// A disk that rests may do as much more as it rests. If it cannot, that is how busy it usually is: one that takes requests in advance, as a
    /// throttled one does, is hardly ever busy just below its rate.
    fn raise(&mut self, seen: &Interval, served: Served) -> Phase {
        if !served.rests() {
            return Phase::Raised(Raised::by(RAISE));
        }
        self.served = Some(Served {
            usually_busy: seen.busy,
            ..served
        });
        let more = served.usually_busy / seen.busy - 1.0;
        Phase::Raised(Raised::by(more.max(RAISE)))
    }

    /// The raise stands, and is followed by another, if tenants need it.
    fn try_raised(&mut self, seen: &Interval, raised: Raised, served: Served) -> Phase {
        let now = raised.and(seen);
        if self.misses(seen, served) {
            return self.measure(seen, now);
        }
        if now.seconds < MOMENT {
            return Phase::Raised(now);
        }
        self.before = self.before.or(Some(self.rate));
        self.rate *= 1.0 + now.by;
        if !now.is_needed() {
            return self.give_up(now.used / now.counted);
        }
        self.hold = HOLD;
        (self.missing, self.since) = (0.0, Sums::default());
        Phase::Raised(Raised::by(2.0 * now.by))
    }

    /// The disk cannot do the raised rate: its rate is what it did, if that is more than before.
    fn measure(&mut self, seen: &Interval, raised: Raised) -> Phase {
        let measured = self.since.seconds >= MOMENT;
        let used = match measured {
            true => self.since.used(),
            false => seen.used.unwrap_or(1.0),
        };
        let gain = BELOW * (1.0 + raised.by) * used;
        if gain <= 1.0 + GAIN {
            return self.take_back();
        }
        if !measured {
            return Phase::Raised(raised);
        }
        self.rate *= gain;
        self.hold = HOLD;
        self.empty()
    }

    /// A raise that stood is not needed, or not all of it: requests that came at once, as after a pause, looked as if the disk could do more. A rate
    /// that tenants do not use divides nothing. One below what they use has them wait for nothing.
    fn give_up(&mut self, used: f64) -> Phase {
        let needed = self.rate * (used / NEEDED).min(1.0);
        let before = self.before.take().unwrap_or(self.rate);
        self.rate = needed.max(before);
        self.take_back()
    }

    /// Nothing came of a raise.
    fn take_back(&mut self) -> Phase {
        self.hold = (2.0 * self.hold).min(MOST_HOLD);
        self.empty()
    }

    /// Has the disk's queue become empty.
    fn empty(&mut self) -> Phase {
        (self.missing, self.since) = (0.0, Sums::default());
        if let Some(served) = &mut self.served {
            served.busy = served.usually_busy;
        }
        Phase::Empties(Emptying::BEGINS)
    }

    /// Whether the disk cannot do what is handed out.
    fn misses(&mut self, seen: &Interval, served: Served) -> bool {
        let Some(used) = seen.used else {
            return false;
        };
        let wanted = match served.is_queue(seen.under_way) {
            true => seen.busy,
            false => 0.0,
        };
        let raised = matches!(self.phase, Phase::Raised(_));
        let most = match raised {
            true => f64::INFINITY,
            false => MISSING / (MOMENT / 2.0),
        };
        let missed = (wanted - used - FORGOTTEN).min(most) * seen.seconds;
        self.missing = match seen.busy < LOOKED_AT {
            true => 0.0,
            false => (self.missing + missed).max(0.0),
        };
        if self.missing == 0.0 {
            self.since = Sums::default();
            return false;
        }
        self.since.add(seen);
        self.missing > MISSING && (raised || self.since.seconds >= MOMENT)
    }

    /// The disk is the bottleneck, and did this part of the rate.
    fn fall(&mut self, did: f64) -> Phase {
        let did = did.clamp(FALL, 1.0);
        self.rate = (BELOW * did * self.rate).max(LEAST_BYTES / self.prices.bytes);
        self.before = None;
        if did < 1.0 - GAIN {
            self.hold = HOLD;
        }
        self.empty()
    }

    /// Takes the prices that have been learnt, if by them requests take another part of what the disk did: so many bytes and requests, per
    /// second. The rate is what it did by them.
    fn adopt(&mut self, throughput: [f64; 2], learnt: Prices) -> Option<Phase> {
        let [bytes, requests] = throughput;
        let part = |prices: &Prices| requests / prices.requests / prices.cost(bytes, requests);
        // Without a completed request neither part is a number, and nothing differs.
        let differ = (part(&learnt) - part(&self.prices)).abs() >= GAIN;
        if !differ {
            return None;
        }
        let [paid, all] = self.paid;
        let done = learnt.cost(bytes, requests);
        let did = done * (paid / all).min(1.0);
        (self.prices, self.paid) = (learnt, [did, done]);
        (self.rate, self.before, self.hold) = (BELOW * did, None, HOLD);
        Some(self.empty())
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
        if self.completed.seconds >= 2.0 * MOMENT {
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
        if engaged && self.completed.seconds >= MOMENT && self.completed.bytes > 0.0 {
            let throughput = self.completed.throughput();
            let of_bytes = Prices {
                bytes: throughput[0],
                requests: f64::INFINITY,
            };
            let prices = costs.prices().unwrap_or(of_bytes);
            self.capacity = Some(Capacity::of(prices, throughput));
            self.completed = Sums::default();
        }
    }

    /// Whether tenants use what is handed out, so that it is divided by weight. Otherwise each tenant has all that it wants.
    #[must_use]
    pub fn is_used(&self) -> bool {
        let served = self.capacity.as_ref().and_then(|one| one.served);
        served.is_none_or(|served| served.used >= NEEDED || served.waits())
    }

    /// What io.cost is to hand out, a second; `None` if it is to be off.
    #[must_use]
    pub fn handed_out(&self) -> Option<Prices> {
        self.capacity.as_ref().map(Capacity::rate)
    }
}

#[cfg(test)]
mod tests;
