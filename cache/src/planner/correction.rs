//! What a measured hit ratio says of a curve.

use justitia_api::CurveStatus;
use justitia_share::num::{to_f64, to_u64};

/// A difference between curve and measurement up to this is left, in hits of a get: half of what a target allows.
const TOLERANCE: f64 = 0.01;

/// Sixteenths of an octave by which a curve is stretched at most: a quarter more or less of each size. Twice the width of
/// a bucket of the curve's histogram, for the step of a loop that lies at another size.
const MAX_STEPS: i32 = 5;

/// By how much a curve is lowered or raised at most, hits of a get: policies differ from LRU by less.
const MAX_SHIFT: f64 = 0.2;

/// How the curve of a pool is corrected: its sizes are multiplied, then its hit ratios are shifted.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Correction {
    /// Sixteenths of an octave.
    steps: i32,
    /// Hits of a get by which the hit ratios are lowered; below 0 they are raised.
    shift: f64,
}

impl Correction {
    fn stretch(steps: i32) -> f64 {
        (f64::from(steps) / 16.0).exp2()
    }

    fn stretched(curve: &CurveStatus, size: f64, steps: i32) -> f64 {
        1.0 - curve.miss_ratio(to_u64(size / Self::stretch(steps)))
    }

    /// The hit ratio of a pool of this size, bytes.
    pub(super) fn hit_ratio(self, curve: &CurveStatus, size: f64) -> f64 {
        (Self::stretched(curve, size, self.steps) - self.shift).clamp(0.0, 1.0)
    }

    /// The smallest size, bytes, that has this hit ratio; `None` if none has.
    pub(super) fn size_for(self, curve: &CurveStatus, hit_ratio: f64) -> Option<f64> {
        let most_misses = 1.0 - hit_ratio - self.shift;
        let next = curve.points.iter().position(|(_, m)| *m <= most_misses)?;
        let (high, after) = *curve.points.get(next)?;
        let before = next.checked_sub(1).and_then(|at| curve.points.get(at));
        let size = before.map_or(to_f64(high), |(low, before)| {
            let part = (before - most_misses) / (before - after);
            part.mul_add(to_f64(high - low), to_f64(*low))
        });
        Some(size * Self::stretch(self.steps))
    }

    /// A pool that holds `size` bytes, and has for a while, has this hit ratio. The curve is stretched first, as far as
    /// that explains it and no further than needed; what remains is a shift, of which half is taken over.
    pub(super) fn learn(&mut self, curve: &CurveStatus, size: f64, measured: f64) {
        if (self.hit_ratio(curve, size) - measured).abs() <= TOLERANCE {
            return;
        }
        let off = |steps: &i32| Self::stretched(curve, size, *steps) - measured;
        let best = (-MAX_STEPS..=MAX_STEPS).map(|steps| off(&steps).abs());
        let best = best.fold(f64::INFINITY, f64::min);
        let good = (-MAX_STEPS..=MAX_STEPS).filter(|steps| off(steps).abs() <= best + TOLERANCE);
        let nearest = good.min_by_key(|steps| (steps - self.steps).abs());
        self.steps = nearest.unwrap_or(self.steps);
        let shift = f64::midpoint(self.shift, off(&self.steps));
        self.shift = shift.clamp(-MAX_SHIFT, MAX_SHIFT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(u64, f64)]) -> CurveStatus {
        CurveStatus {
            accesses: 1.0,
            points: points.to_vec(),
        }
    }

    #[test]
    fn the_smallest_size_with_a_hit_ratio() {
        let curve = curve(&[(0, 1.0), (100, 0.5), (300, 0.5), (400, 0.1)]);
        for (hit_ratio, expected) in [
            (0.0, Some(0.0)),
            (0.25, Some(50.0)),
            (0.5, Some(100.0)),
            (0.7, Some(350.0)),
            (0.95, None),
        ] {
            let found = Correction::default().size_for(&curve, hit_ratio);
            let near = |(a, b): (f64, f64)| (a - b).abs() < 1e-6;
            assert!(
                found.zip(expected).is_none_or(near),
                "{hit_ratio}: {found:?}"
            );
            assert_eq!(found.is_some(), expected.is_some(), "{hit_ratio}");
        }
    }

    #[test]
    fn a_loop_that_misses_is_larger_than_the_curve_says() {
        let curve = curve(&[(0, 1.0), (1000, 1.0), (1100, 0.0)]);
        let mut correction = Correction::default();
        correction.learn(&curve, 1110.0, 0.0);
        let size = correction.size_for(&curve, 0.99).unwrap();
        assert!((1110.0..1300.0).contains(&size), "{size}");
        assert!(correction.shift.abs() < 0.01, "{correction:?}");
        // Once it fits, nothing is learnt any more.
        let learnt = correction;
        correction.learn(&curve, size + 1.0, 1.0);
        assert_eq!(correction, learnt);
    }

    #[test]
    fn a_policy_that_hits_less_everywhere_lowers_the_curve() {
        let curve = curve(&[(0, 0.6), (1000, 0.4), (5000, 0.4)]);
        let mut correction = Correction::default();
        for _ in 0..8 {
            correction.learn(&curve, 3000.0, 0.5);
        }
        let found = correction.hit_ratio(&curve, 3000.0);
        assert!((found - 0.5).abs() <= TOLERANCE, "{found}");
        correction.learn(&curve, 3000.0, 0.0);
        assert!(
            correction.hit_ratio(&curve, 3000.0) >= 0.4 - 1e-9,
            "bounded"
        );
    }
}
