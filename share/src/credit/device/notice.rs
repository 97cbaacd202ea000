//! Following the tenants of a device: what each does there, and whether it waits.

use super::super::carry::Residual;
use super::super::correct::{Acts, Correction};
use super::super::limit::Limits;
use super::super::predict::{Predict, Swift};
use super::super::price::Flow;
use super::super::total::{BUSY, Verdict};
use super::belief::Belief;
use super::{BUFFERED, CreditLoop, Interval, Observed};
use crate::num;

/// Without I/O for so many seconds a tenant is not active and carries no limit.
pub(super) const ACTIVE: f64 = 1.5;
/// From this part of the interval on, being stalled is waiting.
pub(super) const STALLED: f64 = 0.3;
/// A tenant that uses this part of its limit wants more.
const USED_UP: f64 = 0.9;
/// If those who wait got less than this part of what they were allowed, it is no noise.
const FAR_OFF: f64 = 0.85;
/// One that has, and now uses this part, still counts as held for [`STICKS`] seconds.
const NEARLY_USED_UP: f64 = 0.7;
const STICKS: f64 = 1.0;
/// What a tenant has spent is remembered with this time constant, seconds; below this part of it, on a full
/// device, it is squeezed, and counts as held for so many seconds.
const PEAK: f64 = 10.0;
const SQUEEZED: f64 = 0.85;
const PROTECTED: f64 = 1.5;
/// Who waits for this part of the time while the device's queue is longer than so many seconds may be crowded out by
/// others' requests: what it does not use is nothing to give away until the queue has become short. If that takes so long,
/// or changes nothing, it is its nature, and it takes so many times as long until that is tried again.
const ALWAYS: f64 = 0.9;
const QUEUE: f64 = 0.02;
const DOUBT: f64 = 5.0;
const AGAIN: f64 = 12.0;
/// Whose applications get less than this part of their ideal for so many seconds, though they wait and it has much to
/// write, waits behind its own pages: what the kernel has handed to the throttling layer cannot be deleted or written again
/// until the limit has let it through. But who gets little in any case gets it in parts, with nothing in between.
const NOTHING: f64 = 0.05;
const STILL: f64 = 1.0;
/// So many seconds' worth of its ideal is more dirty pages than a tenant comes to have by its part; and while all are rid
/// of theirs, it is of its own at this part of its ideal, or faster.
const OLD: f64 = 3.0;
const RID: f64 = 0.5;
/// A tenant that moves less than this part of all bytes and of all requests does not contend.
const SOME: f64 = 0.03;
/// How fast averages follow: the time constant in seconds.
const SMOOTH: f64 = 0.6;
/// The same for what those get that write behind dirty pages.
const SMOOTH_APPLICATION: f64 = 1.5;
/// Of whom less than this part of what its applications write reaches devices, or is dirty yet, over about so many seconds, it
/// is memory that serves, as long as it takes less than so many times its part of the device: who deletes less of what it
/// writes than others do needs more of it for as much.
const BY_MEMORY: f64 = 0.65;
const BY_MEMORY_FOR: f64 = 10.0;
const AT_MOST: f64 = 2.0;
/// A writer behind dirty pages whose tasks wait for this part of the time has more to write.
const BACKLOG: f64 = 0.2;
/// Whose tasks wait for less than this part of the time may be resting.
const RESTS: f64 = 0.02;
/// Of what the device was given, so much it has done at least, or at most.
const LEAST_KEPT_UP: f64 = 0.1;
const MOST_KEPT_UP: f64 = 2.0;
/// So many seconds after a step, corrections go on.
pub(super) const SETTLED: f64 = 2.5;

/// A tenant, followed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct State {
    pub(super) mix: Flow,
    pub(super) application: f64,
    /// Its dirty pages, and by how much they grow a second, averaged like the application's bandwidth.
    pub(super) dirty: f64,
    pub(super) growth: f64,
    /// For how long that was averaged, seconds.
    pub(super) watched: f64,
    /// Whether it was there in the interval before.
    pub(super) followed: bool,
    /// What its applications wrote, what of that it wrote to devices or has dirty, bytes per second, and what it spent, all
    /// averaged over longer.
    pub(super) written: f64,
    pub(super) reached: f64,
    pub(super) spent: f64,
    /// What it moved and its applications are not said to have got, bytes per second; see `vouch.rs`.
    pub(super) hidden: f64,
    pub(super) stalled: f64,
    pub(super) predictor: Swift,
    pub(super) residual: Residual,
    pub(super) correction: Correction,
    pub(super) quiet: f64,
    pub(super) seen: bool,
    /// Waits for the device.
    pub(super) waiting: bool,
    /// Uses up what it may spend, or nothing limits it while it waits.
    pub(super) held: bool,
    /// Since it last used up what it may spend, seconds.
    pub(super) lacking: f64,
    /// What it spends on the average, and the most that this was lately.
    pub(super) spends: f64,
    pub(super) peak: f64,
    /// For so many seconds more, what it does not use may be what others took.
    pub(super) squeezed: f64,
    /// For how long it got the benefit of that doubt and did not use up what it may spend, seconds.
    pub(super) doubted: f64,
    /// For how long it has stood still behind its own pages, seconds, and whether it would under its limit.
    pub(super) still: f64,
    pub(super) behind_itself: Belief,
    /// Is corrected: what it gets depends on its credits or its room.
    pub(super) corrected: bool,
    /// What its applications would get by weight of what all get that contend, bytes per second.
    pub(super) ideal: f64,
    /// Its limit lets it write more than its credits, for others' sake: what it gets depends on its room alone.
    pub(super) lifted: bool,
    /// Its writes are not limited, since memory serves many of them: room decides as well.
    pub(super) free: bool,
    /// For so many seconds more it counts as one whose limits are lifted since others wait behind it: now they are, now
    /// they are not.
    pub(super) coupled: f64,
    /// What it has been short of, in seconds of its part; see `unfair.rs`.
    pub(super) short: f64,
    /// Its share, and for how long that has been so.
    pub(super) share: f64,
    pub(super) settled: f64,
    /// What it was thought to spend.
    pub(super) expected: f64,
    pub(super) standing: Option<(f64, Limits)>,
    /// Since its limits last moved, seconds.
    pub(super) stood: f64,
}

impl State {
    /// What decides how much its applications get.
    pub(super) fn acts(&self) -> Acts {
        if self.lifted || self.free || self.coupled > 0.0 {
            Acts::Room
        } else {
            Acts::Credits
        }
    }

    /// Whether much of what its applications write is written again, or deleted, before it reaches a device, of which it needs
    /// little more than `part`. The kernel hands all that a limited tenant has to write back to the throttling layer, where it
    /// can be neither deleted nor written again and its applications wait for it; without a limit it goes out as fast as the
    /// device takes it, and much of it never.
    pub(super) fn by_memory(&self, part: f64) -> bool {
        self.written > 0.0 && self.reached < BY_MEMORY * self.written && self.spent < AT_MOST * part
    }

    /// Whether it gets nothing until old dirty pages are written, many beside what is its part, and about as fast as that:
    /// they are from before it had only that. Corrected for it, it would have several times its part right after.
    pub(super) fn drains(&self) -> bool {
        self.application < NOTHING * self.ideal
            && self.dirty > OLD * self.ideal
            && self.application - self.growth >= RID * self.ideal
    }

    /// What is measured against `ideal`, bytes per second. A tenant that has too many dirty pages gets little until
    /// they are written, and yet is served; one that fills new room is no better off in the end. So of what its
    /// applications get, with and without what dirty pages grow by, and all between, it is what is nearest to the
    /// ideal.
    pub(super) fn served(&self, ideal: f64) -> f64 {
        let passing = self.application - self.growth;
        ideal.clamp(self.application.min(passing), self.application.max(passing))
    }
}

impl CreditLoop {
    /// Follows each tenant: its mixture, its demand, whether it waits.
    pub(super) fn notice(&mut self, interval: Interval, tenants: &[Observed]) {
        let follow = 1.0 - (-interval.seconds / SMOOTH).exp();
        let prices = self.total.prices();
        let sum = tenants
            .iter()
            .fold(Flow::default(), |sum, t| sum.plus(&t.flow));
        let mut all = Flow::default();
        let (mut got, mut allowed) = (0.0, 0.0);
        for tenant in tenants {
            all = all.plus(&tenant.flow);
            let state = self.states.entry(tenant.id).or_default();
            let follow = if state.seen { follow } else { 1.0 };
            if tenant.flow.is_some() {
                state.mix = state.mix.towards(&tenant.flow, follow);
                state.quiet = 0.0;
                state.seen = true;
            } else if tenant.dirty < BUFFERED || tenant.stalled < STALLED {
                // Else it waits with much to write: perhaps for another's data, which is no reason to forget it.
                state.quiet += interval.seconds;
            }
            let dirty = num::to_f64(tenant.dirty);
            let growth = (dirty - state.dirty) / interval.seconds;
            let long = 1.0 - (-interval.seconds / BY_MEMORY_FOR).exp();
            if state.followed {
                state.written += (tenant.written.unwrap_or(0.0) - state.written) * long;
                state.reached += (tenant.reached + growth - state.reached) * long;
            }
            (state.followed, state.dirty) = (true, dirty);
            if let Some(bandwidth) = tenant.application {
                // What was before the split had settled says nothing of it; after that, the mean of all there
                // is, until that is enough.
                if state.settled < SETTLED {
                    state.watched = 0.0;
                }
                state.watched += interval.seconds;
                let follow = 1.0 - (-interval.seconds / slowness(tenant)).exp();
                let follow = follow.max(interval.seconds / state.watched);
                state.application += (bandwidth - state.application) * follow;
                state.growth += (growth - state.growth) * follow;
            }
            let rests = rests(tenant);
            let follow_stalled = if rests { 1.0 } else { follow };
            state.stalled += (tenant.stalled - state.stalled) * follow_stalled;
            // Dirty pages go out in bursts: what a writer behind them uses is its average, and while its
            // tasks wait it has more to write, whatever it did in one interval; but not once it rests.
            let buffered = tenant.dirty >= BUFFERED && !rests;
            let backlog = buffered && state.stalled >= BACKLOG;
            let flow = if buffered { state.mix } else { tenant.flow };
            let used = state.standing.map(|(_, limits)| limits.used(&flow));
            let active = state.seen && state.quiet < ACTIVE;
            // Tasks that wait for asynchronous I/O are not stalled to the kernel: while the device is full,
            // whoever moves something to speak of counts as waiting for it. While it has pauses, who is
            // within its limits waits for something else.
            let full = interval.busy >= BUSY;
            let some = moves(&tenant.flow, &sum);
            let used_up = used.is_some_and(|part| part >= USED_UP);
            let stalled = tenant.stalled >= STALLED && (used.is_none() || full);
            state.waiting = active && (stalled || used_up || backlog || (full && some));
            state.lacking = if used_up {
                0.0
            } else {
                state.lacking + interval.seconds
            };
            let nearly = state.held
                && state.lacking < STICKS
                && used.is_some_and(|part| part >= NEARLY_USED_UP);
            // Where the device was the limit, a tenant that gets less than before may be losing to others:
            // what it does not use is nothing to give away.
            if let Some(prices) = prices {
                let spent = prices.cost(&tenant.flow);
                state.spends += (spent - state.spends) * follow;
                state.spent += (spent - state.spent) * long;
                let peak = state.peak * (-interval.seconds / PEAK).exp();
                state.peak = state.spends.max(peak);
                let squeezed = full
                    && self.verdict == Verdict::Saturated
                    && state.waiting
                    && state.spends < SQUEEZED * state.peak;
                state.squeezed = if squeezed {
                    PROTECTED
                } else if rests {
                    0.0
                } else {
                    state.squeezed - interval.seconds
                };
            }
            // After a step it may stand still until it is rid of what it has no room for any more.
            let still = buffered
                && state.standing.is_some()
                && state.settled >= SETTLED
                && tenant.stalled >= ALWAYS
                && tenant
                    .application
                    .is_some_and(|got| got < NOTHING * state.ideal);
            state.still = if still {
                state.still + interval.seconds
            } else {
                0.0
            };
            let long = STILL.max(num::to_f64(BUFFERED) / state.ideal.max(1.0));
            state
                .behind_itself
                .step(state.still >= long, interval.seconds);
            let crowded = full && tenant.stalled >= ALWAYS && interval.delay >= QUEUE;
            state.doubted = if used_up {
                0.0
            } else if crowded {
                (state.doubted + interval.seconds).min(DOUBT)
            } else {
                (state.doubted - interval.seconds / AGAIN).max(0.0)
            };
            state.held = active
                && (used_up
                    || nearly
                    || backlog
                    || (crowded && state.doubted < DOUBT)
                    || (state.waiting && used.is_none())
                    || state.squeezed > 0.0);
            state.corrected = active
                && tenant.application.is_some()
                && (state.held || (buffered && tenant.stalled >= STALLED));
            let Some(prices) = prices else { continue };
            let spent = prices.cost(&flow);
            if let (true, Some(used)) = (state.waiting, used) {
                allowed += state.expected;
                // Limits are kept on the average, and may be a little late or early in one interval.
                got += if used_up {
                    state.expected * used.min(1.1)
                } else {
                    spent.min(state.expected)
                };
            }
            state.predictor.observe(spent);
        }
        let kept_up = interval.kept_up.clamp(LEAST_KEPT_UP, MOST_KEPT_UP);
        let got = got * kept_up;
        all = all.times(kept_up);
        // Of a queue that was mostly filled before, nobody knows what was in it.
        self.done = if interval.kept_up <= MOST_KEPT_UP {
            all
        } else {
            Flow::default()
        };
        self.flow = if self.engaged && self.verdict != Verdict::Silent {
            self.flow.towards(&all, follow)
        } else {
            all
        };
        self.fulfilled = (allowed > 0.0).then(|| {
            let now = got / allowed;
            // What is far off counts at once.
            self.fulfilled
                .filter(|_| now >= FAR_OFF)
                .map_or(now, |before| before + (now - before) * follow)
        });
    }
}

/// Over how many seconds what a tenant's applications get is averaged.
pub(super) const fn slowness(tenant: &Observed) -> f64 {
    if tenant.dirty >= BUFFERED {
        SMOOTH_APPLICATION
    } else {
        SMOOTH
    }
}

/// Whether a tenant with dirty pages does nothing at all, and waits for nothing: it wants nothing for now, however many it
/// has.
fn rests(tenant: &Observed) -> bool {
    tenant.dirty >= BUFFERED
        && !tenant.flow.is_some()
        && tenant.stalled < RESTS
        && tenant.application.is_none_or(|got| got <= 0.0)
}

/// Whether a flow is something to speak of beside `all`.
fn moves(flow: &Flow, all: &Flow) -> bool {
    flow.bytes() > SOME * all.bytes() || flow.rios + flow.wios > SOME * (all.rios + all.wios)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_rid_of_old_dirty_pages_gets_nothing_meanwhile() {
        // What applications get, by how much dirty pages grow, how many there are; the ideal is 10.
        for (application, growth, dirty, drains) in [
            (0.0, -12.0, 200.0, true),
            (0.4, -10.0, 51.0, true),
            (0.0, -6.0, 31.0, true),
            // Too slowly: what it lacks is more than room.
            (0.0, -4.0, 200.0, false),
            // So many it has by its part.
            (0.0, -12.0, 29.0, false),
            (5.0, -12.0, 200.0, false),
            (0.0, 12.0, 200.0, false),
        ] {
            let state = State {
                application,
                growth,
                dirty,
                ideal: 10.0,
                ..State::default()
            };
            assert_eq!(state.drains(), drains, "{state:?}");
        }
    }

    #[test]
    fn what_is_written_of_old_dirty_pages_is_no_reason_for_a_correction() {
        // What applications get, by how much dirty pages grow, what is measured against an ideal of 10.
        for (application, growth, measured) in [
            (0.0, -15.0, 10.0),
            (20.0, 15.0, 10.0),
            (4.0, -2.0, 6.0),
            (16.0, 2.0, 14.0),
            (12.0, 0.0, 12.0),
        ] {
            let state = State {
                application,
                growth,
                ..State::default()
            };
            assert!((state.served(10.0) - measured).abs() < 1e-9, "{state:?}");
        }
    }
}
