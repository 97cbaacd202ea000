//! The capacity of a disk for io.cost: the cost of a request, and the rate that may be handed out (WDT, slides "TotalCredit
//! updater").
//!
//! io.cost divides only the rate that it hands out. Slightly below the disk's capacity weights hold exactly. A few per cent
//! above it they hardly hold: requests wait at the disk and not before it, and a tenant with few requests loses its part. That
//! lasts until the disk's queue has been empty. So the rate follows the disk from below.
//!
//! The part of the rate that is not completed while requests wait at the disk is beyond its capacity. The part that is not
//! completed while none wait was not requested. If requests take longer than their part of the bandwidth, the disk's counters
//! show it just as busy at two thirds of its capacity.

use super::disk_sampler::{BUSY, Interval, LOOKED_AT};
use super::prices::{Costs, Prices, Sums};
use super::weights::Contention;

/// The rate is this part of the disk's throughput when it was the bottleneck.
const BELOW: f64 = 0.99;
/// And this part of that until the disk's queue is empty.
const EMPTYING: f64 = 0.8;
/// The seconds in which a disk's throughput, spare capacity and shrinking queue show. In the first half of a moment a disk
/// accepts requests in advance, into its cache.
const MOMENT: f64 = 1.0;
/// The disk is the bottleneck once this much of the rate is missing, seconds of it: more than one lump. A disk that pauses for
/// less than half a moment is not slower, so the sum takes that long to grow to this.
const MISSING: f64 = 0.03;
/// This much of the missing sum is forgotten, seconds in a second: pausing tenants leave gaps.
const FORGOTTEN: f64 = 0.002;
/// The rate is raised by this part for a moment, and by twice as much after each successful raise. A larger raise shows sooner
/// whether the disk can do it, and weights fail for a shorter time if it cannot (Cardwell et al., "BBR: Congestion-Based
/// Congestion Control", 2016, probes for bandwidth this way).
const RAISE: f64 = 0.25;
/// The largest raise, as a multiple of the rate.
const MOST_RAISE: f64 = 3.0;
/// Tenants that use less than this part of the rate do not need it: it is not raised, and a raise is taken back.
const NEEDED: f64 = 0.9;
/// A disk whose throughput grows by this part with a raise, though not by all of it, is measured again.
const GAIN: f64 = 0.05;
/// The rate is raised this many seconds after the disk was the bottleneck. The time doubles with each raise in vain.
const HOLD: f64 = 2.0;
/// The most seconds between two raises.
const MOST_HOLD: f64 = 64.0;
/// The rate is raised at once if the disk is busy for less than this part of the usual time, and in proportion to the idle
/// time.
const RESTS: f64 = 0.7;
/// The usual busy time is forgotten within about this many seconds.
const REMEMBERED: f64 = 20.0;
/// Requests wait at the disk if there are this many times the least number. A queue counts as empty with at most this many
/// requests.
const WAITS: f64 = 3.0;
/// A queue shrinks as long as at most this part of it remains after a moment. A queue that does not shrink is as empty as
/// possible: a disk that serves several requests at a time always has some.
const SHORTER: f64 = 0.9;
/// The rate falls at most to this part of itself at once.
const FALL: f64 = 0.01;
/// The lower bound of the rate, bytes per second: the kernel gets no less, so a raise of a lower rate would have no effect.
pub(super) const LEAST_BYTES: f64 = 65_536.0;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Less is handed out until the disk's queue is empty.
    Empties(Emptying),
    /// The rate stays for this many seconds more.
    Holds(f64),
    /// More is handed out for a moment.
    Raised(Raised),
}

/// A shrinking queue of a disk.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Emptying {
    /// The largest number of requests.
    most: f64,
    /// The smallest number of requests so far.
    left: f64,
    /// Seconds without clearly fewer requests.
    seconds: f64,
    /// The used part of the rate in that time, seconds.
    used: f64,
}

impl Emptying {
    /// The start, whatever is queued at the disk.
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

    /// Whether more than a third of the queue is left, and more than a few requests.
    fn is_left(&self, seen: &Interval) -> bool {
        seen.under_way > WAITS.max(self.most / WAITS)
    }
}

/// A raise, and the used part of the raised rate.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Raised {
    /// The raise, as a part of the rate.
    by: f64,
    /// Its duration so far, seconds.
    seconds: f64,
    /// Seconds in which use has counted.
    counted: f64,
    /// The use in that time, seconds of the raised rate.
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

/// How the disk serves the rate.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Served {
    /// The completed part of the rate in the last moment.
    used: f64,
    /// The busy part of the last moment.
    busy: f64,
    /// The usual busy part while the rate stays.
    usually_busy: f64,
    /// The mean number of requests at the disk in the last moment.
    waiting: f64,
    /// The least number of requests at the disk.
    least_waiting: f64,
}

impl Served {
    /// Whether the disk is less busy than usual: it has become faster, or its requests cheaper.
    fn rests(&self) -> bool {
        self.busy < RESTS * self.usually_busy
    }

    /// Whether requests waited at the disk, where weights do not count, in the last moment.
    fn waits(&self) -> bool {
        self.is_queue(self.waiting)
    }

    /// Whether some of this many requests wait.
    fn is_queue(&self, requests: f64) -> bool {
        requests > WAITS * self.least_waiting
    }
}

/// The capacity of one disk.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Capacity {
    prices: Prices,
    /// The available part of the prices' capacity: seconds of the disk in a second.
    rate: f64,
    phase: Phase,
    /// The part of the rate that was not used while the disk was busy, seconds of the rate.
    missing: f64,
    /// The disk's sums since something is missing.
    since: Sums,
    /// The rate before the raise, until it is known whether tenants need the raised one.
    before: Option<f64>,
    /// The next holding time of the rate, seconds.
    hold: f64,
    /// How the disk serves; `None` before the first interval.
    served: Option<Served>,
    /// Bytes and requests per second completed in the last moment.
    throughput: [f64; 2],
    /// The charges of io.cost, and the disk's completions, in seconds of the disk: the journal bypasses io.cost.
    paid: [f64; 2],
}

impl Capacity {
    /// The capacity of a disk that completed these bytes and requests per second when it was the bottleneck.
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

    /// The rate for io.cost, per second.
    #[must_use]
    fn rate(&self) -> Prices {
        self.prices.part(self.handed_out())
    }

    /// The same, in seconds of the disk.
    fn handed_out(&self) -> f64 {
        match self.phase {
            Phase::Empties(_) => EMPTYING * self.rate,
            Phase::Holds(_) => self.rate,
            Phase::Raised(raised) => (1.0 + raised.by) * self.rate,
        }
    }

    /// Handles an interval in which tenants contended.
    fn step(&mut self, seen: &Interval, learnt: Prices) {
        let seen = &self.completed(seen);
        let served = self.notice(seen);
        self.phase = match self.phase {
            Phase::Empties(emptying) => self.try_empty(seen, emptying, served, learnt),
            Phase::Raised(raised) => self.try_raised(seen, raised, served),
            Phase::Holds(time) => self.try_held(seen, time, served, learnt),
        };
    }

    /// The interval with the completed part of the rate as its use. The kernel's own sum of use is fifty milliseconds late, and
    /// counts requests before they complete.
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

    /// Updates the running means, and returns them.
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

    /// The rate holds once the disk's queue is empty. If the queue does not shrink while less is done than handed out, the disk
    /// is at its capacity. A queue of requests whose cost is too low never shrinks. But a lower rate changes the mixture, and
    /// this shows their cost. A disk that serves several requests at a time always has some.
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

    /// The rate holds, unless the disk cannot do it or could do more, or requests turn out to have other prices.
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

    /// A disk that is partly idle may do more in proportion. If it cannot, this busy part becomes the usual one: a disk that
    /// accepts requests in advance, as a throttled one does, is hardly ever busy just below its rate.
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

    /// The raise is kept, and another one follows, if tenants need it.
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

    /// The disk cannot do the raised rate: the rate becomes its throughput, if that is more than before.
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

    /// A kept raise is not needed, or not all of it: a burst of requests, as after a pause, looked like more capacity. A rate
    /// that tenants do not use divides nothing. A rate below their use makes them wait for nothing.
    fn give_up(&mut self, used: f64) -> Phase {
        let needed = self.rate * (used / NEEDED).min(1.0);
        let before = self.before.take().unwrap_or(self.rate);
        self.rate = needed.max(before);
        self.take_back()
    }

    /// A raise was in vain.
    fn take_back(&mut self) -> Phase {
        self.hold = (2.0 * self.hold).min(MOST_HOLD);
        self.empty()
    }

    /// Lowers the rate until the disk's queue is empty.
    fn empty(&mut self) -> Phase {
        (self.missing, self.since) = (0.0, Sums::default());
        if let Some(served) = &mut self.served {
            served.busy = served.usually_busy;
        }
        Phase::Empties(Emptying::BEGINS)
    }

    /// Whether the disk cannot do the rate.
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

    /// Adopts the learnt prices, if they change the requests' part of the disk's throughput (bytes and requests per second).
    /// The rate becomes the throughput at these prices.
    fn adopt(&mut self, throughput: [f64; 2], learnt: Prices) -> Option<Phase> {
        let [bytes, requests] = throughput;
        let part = |prices: &Prices| requests / prices.requests / prices.cost(bytes, requests);
        // Without a completed request both parts are NaN, and nothing differs.
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

/// The rate of io.cost on one disk: while tenants contend, once the disk's capacity is known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    capacity: Option<Capacity>,
    /// The sums of the disk's busy time since contention began.
    completed: Sums,
    /// How long it has had requests and completed none, seconds.
    silent: f64,
}

impl Rate {
    /// Handles an interval. A disk that completes nothing is accounted for once it does. So the rate does not change during the
    /// stall, when a write of a model would wait for it.
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
        // The disk rests for moments.
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

    /// Whether tenants use the rate, so that it is divided by weight. Otherwise each tenant gets all that it demands.
    #[must_use]
    pub fn is_used(&self) -> bool {
        let served = self.capacity.as_ref().and_then(|one| one.served);
        served.is_none_or(|served| served.used >= NEEDED || served.waits())
    }

    /// The rate for io.cost, per second; `None` if it should be off.
    #[must_use]
    pub fn handed_out(&self) -> Option<Prices> {
        self.capacity.as_ref().map(Capacity::rate)
    }
}

#[cfg(test)]
mod tests;
