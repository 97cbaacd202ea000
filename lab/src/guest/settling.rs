//! How the applications' bandwidth is split among the tenants that do I/O, against the split by weight: how much is
//! misallocated, and how long it takes until a new split has settled.

use justitia_share::num::to_f64;
use justitia_share::{Weight, jain, pv};

/// The band around a tenant's share in which its part counts as settled, relative; and the part of the bandwidth that may
/// be misallocated.
const TOLERANCE: f64 = 0.1;
/// The window over which parts are computed, in seconds.
pub(super) const WINDOW: f64 = 1.0;
/// A wider window: where the kernel lets applications through in bursts, one second holds two of them or none.
pub(super) const WIDE_WINDOW: f64 = 2.0;
/// For how long a split must hold, in seconds.
const HOLD: f64 = 2.0;
/// The worst of this many seconds counts, where there are as many.
const WORST_OF: usize = 100;
/// A second may be shorter by this much, since samples are not taken on time.
const EARLY: f64 = 0.02;
/// The total may fall to this part of the total before without counting as misallocated.
const SLACK: f64 = 0.9;

/// The tenants' bytes since some beginning, at one moment.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    /// Seconds since some beginning.
    pub at: f64,
    /// In the order of the weights.
    pub bytes: Vec<u64>,
}

/// Samples of an interval in which no weight changes and no tenant starts or stops.
#[derive(Clone, Debug)]
pub(super) struct Interval {
    /// The tenants' weights; 0 of a tenant that does no I/O.
    pub weights: Vec<u64>,
    /// In the order of time.
    pub samples: Vec<Sample>,
    /// The total before, in bytes per second: what is missing of nine tenths of it counts as misallocated. 0 where
    /// there was no interval before.
    pub before: f64,
}

/// When a new split had settled, in seconds from the interval's beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SettlingTimes {
    /// From then on at most a tenth of the bandwidth was misallocated.
    pub overall: Option<f64>,
    /// From then on every tenant was within a tenth of its own share.
    pub each: Option<f64>,
}

impl Interval {
    /// Its length in seconds.
    pub(super) fn seconds(&self) -> f64 {
        match (self.samples.first(), self.samples.last()) {
            (Some(first), Some(last)) => last.at - first.at,
            _ => 0.0,
        }
    }

    /// The tenants' bytes in it.
    pub(super) fn bytes(&self) -> Vec<u64> {
        match (self.samples.first(), self.samples.last()) {
            (Some(first), Some(last)) => difference(first, last),
            _ => vec![0; self.weights.len()],
        }
    }

    /// The total in the last third, in bytes per second.
    pub(super) fn final_total(&self) -> f64 {
        let end = self.samples.get(self.samples.len() / 3 * 2..);
        match end.map(|end| (end.first(), end.last())) {
            Some((Some(from), Some(to))) if to.at > from.at => {
                to_f64(difference(from, to).iter().sum()) / (to.at - from.at)
            }
            _ => 0.0,
        }
    }

    /// The part of the bandwidth that tenants lack of their shares, 0 to 1. `None` where nothing was transferred.
    pub(super) fn misallocated(&self) -> Option<f64> {
        Some(misallocated(&self.ideal(), &parts(&self.bytes(), 0.0)?))
    }

    /// PV among the tenants that do I/O.
    pub(super) fn pv(&self) -> Option<f64> {
        let (weights, bytes) = self.of_weight();
        pv(&weights, &bytes)
    }

    /// Jain's index among them.
    pub(super) fn jain(&self) -> Option<f64> {
        let (weights, bytes) = self.of_weight();
        jain(&weights, &bytes)
    }

    /// What a tenant has in its worst second of a hundred, of its share of the interval's mean bandwidth; the least that
    /// one of those has that do I/O. `None` of less than a second, and where nothing was transferred.
    pub(super) fn worst_second(&self) -> Option<f64> {
        let all = to_f64(self.bytes().iter().sum());
        let seconds = self.whole_seconds();
        let worst = |(tenant, share): (usize, f64)| {
            let had = |(length, bytes): &(f64, Vec<u64>)| {
                Some(to_f64(*bytes.get(tenant)?) / (length * share * all / self.seconds()))
            };
            let mut each: Vec<f64> = seconds.iter().filter_map(had).collect();
            each.sort_by(f64::total_cmp);
            each.get(each.len() / WORST_OF).copied()
        };
        let shares = self.ideal().into_iter().enumerate();
        let of_those = shares.filter(|(_, share)| *share > 0.0 && all > 0.0);
        of_those.filter_map(worst).reduce(f64::min)
    }

    /// The seconds of the interval one after the other: how long each was by the samples, and the tenants' bytes in it.
    fn whole_seconds(&self) -> Vec<(f64, Vec<u64>)> {
        let mut seconds = Vec::new();
        let mut samples = self.samples.iter();
        let Some(mut from) = samples.next() else {
            return seconds;
        };
        for sample in samples {
            if sample.at - from.at >= WINDOW - EARLY {
                seconds.push((sample.at - from.at, difference(from, sample)));
                from = sample;
            }
        }
        seconds
    }

    /// Weights and bytes of the tenants that do I/O.
    fn of_weight(&self) -> (Vec<Weight>, Vec<f64>) {
        self.weights
            .iter()
            .zip(self.bytes())
            .filter_map(|(weight, bytes)| Some((Weight::try_from(*weight).ok()?, to_f64(bytes))))
            .unzip()
    }

    /// When the split had settled: the first moment from which the bandwidth over `window` seconds is within the band,
    /// and so in every window that begins within the next two seconds.
    pub(super) fn settling_times(&self, window: f64) -> SettlingTimes {
        let ideal = self.ideal();
        SettlingTimes {
            overall: self.first_held(window, |parts| misallocated(&ideal, parts) <= TOLERANCE),
            each: self.first_held(window, |parts| {
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

    fn first_held(&self, window: f64, good: impl Fn(&[f64]) -> bool) -> Option<f64> {
        let begin = self.samples.first()?.at;
        // Of every window that fits: when it begins, and whether it is good.
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

/// As parts of the sum, or of `smallest` where that is more; `None` where it is 0.
fn parts(amounts: &[u64], smallest: f64) -> Option<Vec<f64>> {
    let all = to_f64(amounts.iter().sum()).max(smallest);
    (all > 0.0).then(|| amounts.iter().map(|amount| to_f64(*amount) / all).collect())
}

/// The sum of what tenants lack of their shares.
fn misallocated(ideal: &[f64], parts: &[f64]) -> f64 {
    let missing = ideal.iter().zip(parts).map(|(ideal, part)| ideal - part);
    missing.filter(|missing| *missing > 0.0).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten samples a second; `rate` gives the tenants' bytes per second at a time.
    fn interval(weights: &[u64], seconds: u32, rate: impl Fn(f64) -> Vec<u64>) -> Interval {
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
        Interval {
            weights: weights.to_vec(),
            samples,
            before: 0.0,
        }
    }

    #[test]
    fn the_settling_time_of_a_step_is_when_the_new_split_begins_to_hold() {
        let steps = interval(&[100, 300], 8, |t| {
            if t < 2.45 {
                vec![3000, 1000]
            } else {
                vec![1000, 3000]
            }
        });
        let settled = steps.settling_times(WINDOW);
        // A window with a part of the old split in it counts as good while the rest outweighs it.
        let each = settled.each.unwrap();
        assert!((2.3..=2.5).contains(&each), "{each}");
        let near = settled.overall.unwrap();
        assert!((2.2..=each).contains(&near), "{near}");
        assert!((steps.seconds() - 8.0).abs() < 1e-6);
    }

    #[test]
    fn a_tenant_settles_by_its_own_share_however_small() {
        // The small one lacks a third of its share: 3 % of the total.
        let slightly = interval(&[100, 900], 6, |_| vec![700, 9300]);
        assert_eq!(slightly.settling_times(WINDOW).overall, Some(0.0));
        assert_eq!(slightly.settling_times(WINDOW).each, None);
        assert!((slightly.misallocated().unwrap() - 0.03).abs() < 1e-9);
    }

    #[test]
    fn an_oscillating_split_has_not_settled() {
        let swinging = interval(&[1, 1], 10, |t| {
            if t % 2.0 < 1.0 {
                vec![1000, 0]
            } else {
                vec![0, 1000]
            }
        });
        assert_eq!(swinging.settling_times(WINDOW).overall, None);
        assert_eq!(swinging.settling_times(WIDE_WINDOW).overall, Some(0.0));
        // No bytes, and too short an interval: neither has a settling time.
        assert_eq!(
            interval(&[1, 1], 5, |_| vec![0, 0])
                .settling_times(WINDOW)
                .overall,
            None
        );
        assert_eq!(interval(&[1, 1], 5, |_| vec![0, 0]).misallocated(), None);
        assert_eq!(
            interval(&[1, 1], 2, |_| vec![10, 10])
                .settling_times(WINDOW)
                .overall,
            None
        );
    }

    #[test]
    fn an_idle_tenants_unused_share_counts_as_misallocated() {
        // Two of three go on as before, in proportion to their weights, and the share of the third stays unused.
        let mut wasted = interval(&[100, 200, 0], 6, |_| vec![1000, 2000, 0]);
        wasted.before = 7000.0;
        assert_eq!(wasted.settling_times(WINDOW).overall, None);
        assert_eq!(wasted.settling_times(WINDOW).each, None);
        let mut taken = interval(&[100, 200, 0], 6, |t| {
            if t < 0.95 {
                vec![1000, 2000, 0]
            } else {
                vec![2200, 4400, 0]
            }
        });
        taken.before = 7000.0;
        let each = taken.settling_times(WINDOW).each.unwrap();
        assert!((0.5..=1.0).contains(&each), "{each}");
        assert!(
            (taken.final_total() - 6600.0).abs() < 1.0,
            "{}",
            taken.final_total()
        );
    }

    #[test]
    fn the_worst_second_is_one_of_a_hundred() {
        let stalls = |seconds, stalled: f64| {
            interval(&[100, 300, 0], seconds, move |t| {
                if t >= 2.0 - 1e-6 && t < 2.0 + stalled - 1e-6 {
                    vec![500, 4000, 0]
                } else {
                    vec![1000, 3000, 0]
                }
            })
        };
        let worst = |seconds, stalled| stalls(seconds, stalled).worst_second().unwrap();
        assert!((worst(10, 0.0) - 1.0).abs() < 0.01);
        assert!((worst(10, 1.0) - 0.5).abs() < 0.02, "{}", worst(10, 1.0));
        assert!(worst(200, 1.0) > 0.95, "the second worst of 200");
        assert!(worst(200, 3.0) < 0.55, "three of 200");
        assert!((stalls(10, 0.0).jain().unwrap() - 1.0).abs() < 1e-9);
        assert_eq!(interval(&[1, 1], 5, |_| vec![0, 0]).worst_second(), None);
    }

    #[test]
    fn an_idle_tenant_is_entitled_to_nothing() {
        let rest = interval(&[100, 200, 0], 4, |_| vec![1000, 2000, 0]);
        assert_eq!(rest.settling_times(WINDOW).each, Some(0.0));
        assert_eq!(rest.misallocated(), Some(0.0));
        assert!(rest.pv().unwrap() < 1e-9);
        assert_eq!(rest.bytes(), [4000, 8000, 0]);
    }
}
