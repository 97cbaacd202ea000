//! Phases in which the split of the applications' bandwidth is sampled.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use justitia_share::num::to_f64;

use super::settling::{Interval, Sample, WIDE_WINDOW, WINDOW};
use super::setup::Tenant;

/// The sampling interval.
const PERIOD: Duration = Duration::from_millis(100);

/// Samples for `seconds`. A tenant that does no I/O has the weight 0; `before` is the total before, in bytes per
/// second.
pub(super) fn sample(
    tenants: &[Tenant],
    weights: Vec<u64>,
    before: f64,
    seconds: u64,
) -> Result<Interval> {
    let begin = Instant::now();
    let end = begin + Duration::from_secs(seconds);
    let mut samples = Vec::new();
    let mut next = begin;
    loop {
        let bytes = tenants
            .iter()
            .map(|tenant| Ok(tenant.cgroup.application()?.total()))
            .collect::<Result<_>>()?;
        let now = Instant::now();
        samples.push(Sample {
            at: (now - begin).as_secs_f64(),
            bytes,
        });
        if now >= end {
            return Ok(Interval {
                weights,
                samples,
                before,
            });
        }
        next = (next + PERIOD).max(now).min(end);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// All such phases together.
#[derive(Default)]
pub(super) struct SplitStats {
    seconds: f64,
    bytes: Vec<u64>,
    misallocated: Mean,
    pv: Mean,
    /// The total at the end of the last one, in bytes per second.
    final_total: f64,
}

#[derive(Default)]
struct Mean {
    sum: f64,
    seconds: f64,
}

impl Mean {
    fn add(&mut self, value: Option<f64>, seconds: f64) {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            self.sum += value * seconds;
            self.seconds += seconds;
        }
    }

    fn get(&self) -> Option<f64> {
        (self.seconds > 0.0).then(|| self.sum / self.seconds)
    }
}

impl SplitStats {
    /// Adds one phase.
    pub(super) fn add(&mut self, interval: &Interval) {
        let seconds = interval.seconds();
        self.seconds += seconds;
        self.bytes.resize(interval.weights.len(), 0);
        for (sum, bytes) in self.bytes.iter_mut().zip(interval.bytes()) {
            *sum += bytes;
        }
        self.misallocated.add(interval.misallocated(), seconds);
        self.pv.add(interval.pv(), seconds);
        self.final_total = interval.final_total();
    }

    /// The total at the end of the last one, in bytes per second; 0 before the first.
    pub(super) fn final_total(&self) -> f64 {
        self.final_total
    }

    /// The disk's speed changes from `before` to `now`, in whatever unit, and the total is expected to change by the same
    /// factor.
    pub(super) fn expect(&mut self, now: u64, before: u64) {
        self.final_total *= if before > 0 {
            to_f64(now) / to_f64(before)
        } else {
            0.0
        };
    }

    /// Bytes per second, in the tenants' order.
    pub(super) fn bandwidth(&self) -> Vec<f64> {
        let seconds = self.seconds.max(1e-3);
        let per_second = |bytes: &u64| to_f64(*bytes) / seconds;
        self.bytes.iter().map(per_second).collect()
    }

    /// The values of the run as a whole.
    pub(super) fn whole(&self) -> BTreeMap<String, f64> {
        [
            ("misallocated", self.misallocated.get()),
            ("pv_sampled", self.pv.get()),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value?)))
        .collect()
    }
}

/// The values of one phase under its key: settling times, or the phase's length where the split has not settled; its
/// total, PV, Jain's index, and the worst second.
pub(super) fn settling(key: &str, interval: &Interval) -> Vec<(String, f64)> {
    let times = interval.settling_times(WINDOW);
    let wide = interval.settling_times(WIDE_WINDOW);
    let never = interval.seconds();
    let bytes: u64 = interval.bytes().iter().sum();
    let mut values = vec![
        (key.to_owned(), times.overall.unwrap_or(never)),
        (format!("{key}_each"), times.each.unwrap_or(never)),
        (format!("{key}_wide"), wide.overall.unwrap_or(never)),
        (format!("{key}_total"), to_f64(bytes) / never.max(1e-3)),
    ];
    let figures = [
        ("pv", interval.pv()),
        ("jain", interval.jain()),
        ("worst", interval.worst_second()),
    ];
    let measured = figures
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)));
    values.extend(measured.map(|(name, value)| (format!("{key}_{name}"), value)));
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interval(weights: &[u64], bytes: &[u64], seconds: f64) -> Interval {
        let sample = |at, bytes| Sample { at, bytes };
        Interval {
            weights: weights.to_vec(),
            samples: vec![
                sample(0.0, vec![0; bytes.len()]),
                sample(seconds, bytes.to_vec()),
            ],
            before: 0.0,
        }
    }

    #[test]
    fn the_means_of_phases_are_weighted_by_length() {
        let mut stats = SplitStats::default();
        stats.add(&interval(&[100, 300], &[3000, 1000], 3.0));
        stats.add(&interval(&[100, 0], &[1000, 0], 1.0));
        assert_eq!(stats.bandwidth(), [1000.0, 250.0]);
        let whole = stats.whole();
        // Half of the first phase's bandwidth was misallocated, nothing of the second's.
        assert!((whole["misallocated"] - 0.375).abs() < 1e-9, "{whole:?}");
        assert!(whole["pv_sampled"] > 0.5, "{whole:?}");
    }

    #[test]
    fn a_split_that_never_settles_counts_with_the_phases_length() {
        let values = settling("turn", &interval(&[1, 1], &[14, 28], 7.0));
        let expected = [
            ("turn", 7.0),
            ("turn_each", 7.0),
            ("turn_wide", 7.0),
            ("turn_total", 6.0),
            ("turn_pv", 1.0 / 3.0),
            ("turn_jain", 0.9),
            ("turn_worst", 2.0 / 3.0),
        ];
        assert_eq!(values, expected.map(|(key, value)| (key.to_owned(), value)));
    }

    #[test]
    fn the_expected_total_follows_the_disks_speed() {
        let mut stats = SplitStats::default();
        let mut steady = interval(&[1, 1], &[0, 0], 0.0);
        steady.samples = (0..10)
            .map(|second| Sample {
                at: to_f64(second),
                bytes: vec![second * 300; 2],
            })
            .collect();
        stats.add(&steady);
        assert!((stats.final_total() - 600.0).abs() < 1e-9);
        stats.expect(6, 60);
        assert!((stats.final_total() - 60.0).abs() < 1e-9);
        stats.expect(60, 0);
        assert!(stats.final_total() < 1e-9);
    }
}
