//! What one tenant's accesses say of the cache that it can use.

use std::time::Instant;

use justitia_share::curve::{BLOCK, Curve, HALF_LIFE, Recent, ReuseTimes, Room, next_shift};
use justitia_share::num::{to_f64, to_u64};

use crate::model::WorkingSet;
use justitia_api::{CurveStatus, Evidence};

/// What the probes have counted of one tenant by now.
#[derive(Clone, Debug, Default)]
pub struct ReuseCounts {
    /// Reuse times.
    pub reuse: ReuseTimes,
    /// Accesses that made a block forgotten.
    pub evicted: u64,
    /// Blocks that are remembered and were accessed within [`LIVE`].
    pub live: u64,
}

/// Entries accessed within so many of the tenant's accesses count as used lately.
pub const LIVE: u64 = 1 << 20;

/// So much more than the curve says is useful, as a part of it: reuse times are known to an eighth, and a thousand sampled
/// blocks tell the size of a set to 3 %. Of a loop, a little too little is of no use at all.
const MARGIN: f64 = 0.125;

/// A curve is told to within this.
const STEP: f64 = 0.01;
/// With fewer accesses a second there is nothing to tell.
const LEAST: f64 = 0.01;

/// A tenant's accesses, and what follows from them.
#[derive(Debug)]
pub struct Reuse {
    since: Instant,
    at: Instant,
    before: ReuseCounts,
    recent: Recent,
    curve: Curve,
    shift: u32,
    useful: f64,
}

impl Reuse {
    /// Watched from `now` on, when so many accesses had been counted.
    #[must_use]
    pub fn new(now: Instant, visits: u64) -> Self {
        let mut before = ReuseCounts::default();
        before.reuse.visits = visits;
        Self {
            since: now,
            at: now,
            before,
            recent: Recent::default(),
            curve: Curve::default(),
            shift: 0,
            useful: 0.0,
        }
    }

    /// Takes what was counted by now. `capacity` is the largest cache that a tenant can have, bytes.
    pub fn take(&mut self, counted: ReuseCounts, capacity: u64, now: Instant) {
        let new = counted.reuse.since(&self.before.reuse);
        let capacity = capacity / BLOCK;
        let shift = next_shift(Room {
            shift: self.shift,
            accesses: new.visits,
            evicted: counted.evicted.wrapping_sub(self.before.evicted),
            live: counted.live,
            horizon: capacity,
        });
        self.recent
            .add(&new, now.saturating_duration_since(self.at));
        if shift < self.shift {
            self.recent.look_at_more();
        }
        self.shift = shift;
        (self.before, self.at) = (counted, now);
        self.curve = Curve::of(&self.recent);
        self.useful = self.curve.useful(to_f64(capacity)) * (1.0 + MARGIN);
    }

    /// One block in 2^this is to be looked at.
    #[must_use]
    pub const fn shift(&self) -> u32 {
        self.shift
    }

    /// The curve, as it is told; `None` while nothing is accessed.
    #[must_use]
    pub fn status(&self) -> Option<CurveStatus> {
        // What a count is worth that goes on for ever: counts fade.
        let counted = HALF_LIFE.as_secs_f64() / std::f64::consts::LN_2;
        let accesses = self.curve.accesses() / counted;
        let bytes = |blocks: f64| to_u64(blocks * to_f64(BLOCK));
        (accesses >= LEAST).then(|| CurveStatus {
            accesses,
            points: self
                .curve
                .steps(STEP)
                .into_iter()
                .map(|(blocks, misses)| (bytes(blocks), (misses * 1e4).round() / 1e4))
                .collect(),
        })
    }

    /// What it says to the planners.
    #[must_use]
    pub fn working_set(&self) -> WorkingSet {
        let watched = self.at.saturating_duration_since(self.since);
        WorkingSet {
            useful: to_u64(self.useful).saturating_mul(BLOCK),
            observed_for: watched,
            evidence: Evidence::Accesses,
        }
    }
}
