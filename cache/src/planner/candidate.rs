//! A pool whose size is chosen, and what its curve says of sizes.

use super::correction::Correction;
use justitia_api::CurveStatus;

/// What is aimed at for a target, added to it, the best first: a little more, so that chance does not take it below; or the
/// most that the curve has, as long as the target may be reached if the curve is off; what is measured then says whether.
const AIMS: [f64; 7] = [0.005, 0.0, -0.01, -0.02, -0.03, -0.04, -0.05];

/// A size whose hit ratio is at most this much below the target is kept.
const TARGET_TOLERANCE: f64 = 0.01;

/// What is left over may be tried on a pool that lacks little for so many hits of a get more.
const TRIED_FOR: f64 = 0.05;

/// A pool without a target keeps this part of what its declared weight gives: nobody takes all of a neighbour's, by reading
/// more often than it does.
const KEPT: f64 = 0.125;

/// A hit ratio that is lower by this much is as good.
const SAME_HITS: f64 = 0.01;

/// A pool whose size is chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    pub(super) curve: &'a CurveStatus,
    pub(super) correction: Correction,
    /// What its declared weight gives, bytes.
    pub(super) declared: f64,
    /// The hit ratio that it is to have, if one is declared.
    pub(super) target: Option<f64>,
    /// The target was out of reach so far: it has to be reached in full to count.
    pub(super) was_out_of_reach: bool,
}

impl Candidate<'_> {
    /// Hits a second of this size.
    pub(super) fn hits(&self, size: f64) -> f64 {
        self.correction.hit_ratio(self.curve, size) * self.curve.accesses
    }

    /// The size that the target needs; `None` without one, and where no size up to `most` reaches it.
    pub(super) fn need(&self, most: f64) -> Option<f64> {
        let target = self.target?;
        let aims = if self.was_out_of_reach { 1 } else { AIMS.len() };
        AIMS.into_iter().take(aims).find_map(|more| {
            let size = self.correction.size_for(self.curve, target + more)?;
            (size <= most).then_some(size)
        })
    }

    /// Is this size enough for the target, which needs so much?
    pub(super) fn is_enough(&self, size: f64, need: f64) -> bool {
        let has = self.correction.hit_ratio(self.curve, size);
        size >= need
            || self
                .target
                .is_none_or(|target| has >= target - TARGET_TOLERANCE)
    }

    /// What it has at least while it has no target: less than the part kept, if it has the same hits with less.
    pub(super) fn floor(&self) -> f64 {
        let most = self.declared * KEPT;
        let hit_ratio = self.correction.hit_ratio(self.curve, most);
        if hit_ratio <= SAME_HITS {
            return 0.0;
        }
        let same = self.correction.size_for(self.curve, hit_ratio - SAME_HITS);
        same.unwrap_or(most).min(most)
    }

    /// How much more it takes until it has more hits; `None` when nothing does.
    pub(super) fn lacks(&self, size: f64) -> Option<f64> {
        let has = self.correction.hit_ratio(self.curve, size);
        let more = self.correction.size_for(self.curve, has + TRIED_FOR)?;
        Some(more - size)
    }
}
