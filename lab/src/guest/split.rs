//! How the applications' bandwidth is split among those who want it, against how the weights say it should
//! be: what is in the wrong hands, and how long it takes until a new split holds.

use justitia_share::num::to_f64;
use justitia_share::{Weight, pv};

/// How far a part may be from what it should be.
const TOLERANCE: f64 = 0.1;
/// Over how long parts are taken, in seconds: usually, and where the kernel lets applications through in bursts, so that a
/// second holds two of them or none.
pub const WINDOW: f64 = 1.0;
pub const WIDE: f64 = 2.0;
/// For how long a split must hold, in seconds.
const HOLD: f64 = 2.0;
/// What all together have may be so much less than before without being missed.
const SLACK: f64 = 0.9;

/// Everybody's bytes since some beginning, at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Seconds since some beginning.
    pub at: f64,
    /// In the order of the weights.
    pub bytes: Vec<u64>,
}

/// Samples of one stretch of time in which nobody's weight changes and nobody comes or goes.
#[derive(Clone, Debug)]
pub struct Stretch {
    /// Everybody's weight; 0 of who wants nothing.
    pub weights: Vec<u64>,
    /// In the order of time.
    pub samples: Vec<Sample>,
    /// What all together had before, in bytes per second: what is missing of nine tenths of it is nobody's, and
    /// so in the wrong hands. 0 where there was no before.
    pub before: f64,
}

/// When a new split held, in seconds from the stretch's beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settled {
    /// From then on at most a tenth of the bandwidth was in the wrong hands.
    pub near: Option<f64>,
    /// From then on everybody was within a tenth of their own part.
    pub each: Option<f64>,
}

impl Stretch {
    /// How long it is, in seconds.
    pub fn seconds(&self) -> f64 {
        match (self.samples.first(), self.samples.last()) {
            (Some(first), Some(last)) => last.at - first.at,
            _ => 0.0,
        }
    }

    /// Everybody's bytes in it.
    pub fn bytes(&self) -> Vec<u64> {
        match (self.samples.first(), self.samples.last()) {
            (Some(first), Some(last)) => difference(first, last),
            _ => vec![0; self.weights.len()],
        }
    }

    /// What all together had in the last third, in bytes per second.
    pub fn late(&self) -> f64 {
        let late = self.samples.get(self.samples.len() / 3 * 2..);
        match late.map(|late| (late.first(), late.last())) {
            Some((Some(from), Some(to))) if to.at > from.at => {
                to_f64(difference(from, to).iter().sum()) / (to.at - from.at)
            }
            _ => 0.0,
        }
    }

    /// The part of the bandwidth that others have than the weights say, 0 to 1. `None` where nothing was
    /// transferred.
    pub fn misplaced(&self) -> Option<f64> {
        Some(misplaced(&self.ideal(), &parts(&self.bytes(), 0.0)?))
    }

    /// PV among those who want something.
    pub fn pv(&self) -> Option<f64> {
        let (weights, bytes): (Vec<_>, Vec<_>) = self
            .weights
            .iter()
            .zip(self.bytes())
            .filter_map(|(weight, bytes)| Some((Weight::try_from(*weight).ok()?, to_f64(bytes))))
            .unzip();
        pv(&weights, &bytes)
    }

    /// When the split held: the first moment from which the bandwidth in a `window` of so many seconds is as it should
    /// be, and that in every window that begins within the next two seconds.
    pub fn settled(&self, window: f64) -> Settled {
        let ideal = self.ideal();
        Settled {
            near: self.first(window, |parts| misplaced(&ideal, parts) <= TOLERANCE),
            each: self.first(window, |parts| {
                let close = |(ideal, part): (&f64, &f64)| (part - ideal).abs() <= TOLERANCE * ideal;
                ideal
                    .iter()
                    .zip(parts)
                    .filter(|(ideal, _)| **ideal > 0.0)
                    .all(close)
            }),
        }
    }

    fn ideal(&self) -> Vec<f64> {
        parts(&self.weights, 0.0).unwrap_or_else(|| vec![0.0; self.weights.len()])
    }

    fn first(&self, window: f64, good: impl Fn(&[f64]) -> bool) -> Option<f64> {
        let begin = self.samples.first()?.at;
        // Of every window that fits: when it begins, and whether all is as it should be in it.
        let windows: Vec<(f64, bool)> = self
            .samples
            .iter()
            .enumerate()
            .filter_map(|(index, from)| {
                let rest = self.samples.get(index..)?;
                let to = rest.iter().find(|to| to.at - from.at >= window)?;
                let before = SLACK * self.before * (to.at - from.at);
                let good = parts(&difference(from, to), before).is_some_and(|parts| good(&parts));
                Some((from.at - begin, good))
            })
            .collect();
        let last = windows.last()?.0;
        let holds = |at: f64| {
            let mut within = windows.iter().filter(|(t, _)| *t >= at && *t <= at + HOLD);
            within.all(|(_, good)| *good)
        };
        windows
            .iter()
            .map(|(at, _)| *at)
            .find(|at| at + HOLD <= last && holds(*at))
    }
}

fn difference(from: &Sample, to: &Sample) -> Vec<u64> {
    let pairs = from.bytes.iter().zip(&to.bytes);
    pairs.map(|(from, to)| to.saturating_sub(*from)).collect()
}

/// Of the sum, or of `least` where that is more; `None` where it is nothing.
fn parts(amounts: &[u64], least: f64) -> Option<Vec<f64>> {
    let all = to_f64(amounts.iter().sum()).max(least);
    (all > 0.0).then(|| amounts.iter().map(|amount| to_f64(*amount) / all).collect())
}

/// What those have too little who have too little.
fn misplaced(ideal: &[f64], parts: &[f64]) -> f64 {
    let missing = ideal.iter().zip(parts).map(|(ideal, part)| ideal - part);
    missing.filter(|missing| *missing > 0.0).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten samples a second; `rate` gives everybody's bytes per second at a time.
    fn stretch(weights: &[u64], seconds: u32, rate: impl Fn(f64) -> Vec<u64>) -> Stretch {
        let mut bytes = vec![0; weights.len()];
        let mut samples = Vec::new();
        for step in 0..=seconds * 10 {
            let at = f64::from(step) / 10.0;
            samples.push(Sample {
                at: 100.0 + at,
                bytes: bytes.clone(),
            });
            for (sum, rate) in bytes.iter_mut().zip(rate(at)) {
                *sum += rate / 10;
            }
        }
        Stretch {
            weights: weights.to_vec(),
            samples,
            before: 0.0,
        }
    }

    #[test]
    fn a_step_is_settled_when_the_new_split_begins_to_hold() {
        let steps = stretch(&[100, 300], 8, |t| {
            if t < 2.45 {
                vec![3000, 1000]
            } else {
                vec![1000, 3000]
            }
        });
        let settled = steps.settled(WINDOW);
        // A window with a part of the old split in it counts as good while the rest outweighs it.
        let each = settled.each.unwrap();
        assert!((2.3..=2.5).contains(&each), "{each}");
        let near = settled.near.unwrap();
        assert!((2.2..=each).contains(&near), "{near}");
        assert!((steps.seconds() - 8.0).abs() < 1e-6);
    }

    #[test]
    fn the_smallest_part_counts_as_much_as_the_largest() {
        // A third of its part is missing to the small one: 3 % of all.
        let slightly = stretch(&[100, 900], 6, |_| vec![700, 9300]);
        assert_eq!(slightly.settled(WINDOW).near, Some(0.0));
        assert_eq!(slightly.settled(WINDOW).each, None);
        assert!((slightly.misplaced().unwrap() - 0.03).abs() < 1e-9);
    }

    #[test]
    fn what_does_not_hold_is_not_settled() {
        let swinging = stretch(&[1, 1], 10, |t| {
            if t % 2.0 < 1.0 {
                vec![1000, 0]
            } else {
                vec![0, 1000]
            }
        });
        assert_eq!(swinging.settled(WINDOW).near, None);
        assert_eq!(swinging.settled(WIDE).near, Some(0.0));
        // Nothing moves, and there is too little time: neither is an answer.
        assert_eq!(
            stretch(&[1, 1], 5, |_| vec![0, 0]).settled(WINDOW).near,
            None
        );
        assert_eq!(stretch(&[1, 1], 5, |_| vec![0, 0]).misplaced(), None);
        assert_eq!(
            stretch(&[1, 1], 2, |_| vec![10, 10]).settled(WINDOW).near,
            None
        );
    }

    #[test]
    fn what_an_idle_one_leaves_must_be_taken_up() {
        // Two of three go on as before, in proportion to their weights, and what the third had lies idle.
        let mut wasted = stretch(&[100, 200, 0], 6, |_| vec![1000, 2000, 0]);
        wasted.before = 7000.0;
        assert_eq!(wasted.settled(WINDOW).near, None);
        assert_eq!(wasted.settled(WINDOW).each, None);
        let mut taken = stretch(&[100, 200, 0], 6, |t| {
            if t < 0.95 {
                vec![1000, 2000, 0]
            } else {
                vec![2200, 4400, 0]
            }
        });
        taken.before = 7000.0;
        let each = taken.settled(WINDOW).each.unwrap();
        assert!((0.5..=1.0).contains(&each), "{each}");
        assert!((taken.late() - 6600.0).abs() < 1.0, "{}", taken.late());
    }

    #[test]
    fn who_wants_nothing_is_entitled_to_nothing() {
        let rest = stretch(&[100, 200, 0], 4, |_| vec![1000, 2000, 0]);
        assert_eq!(rest.settled(WINDOW).each, Some(0.0));
        assert_eq!(rest.misplaced(), Some(0.0));
        assert!(rest.pv().unwrap() < 1e-9);
        assert_eq!(rest.bytes(), [4000, 8000, 0]);
    }
}
