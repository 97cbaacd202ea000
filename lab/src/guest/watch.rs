//! Phases in which the split of the applications' bandwidth is watched.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use justitia_share::num::to_f64;

use super::setup::Tenant;
use super::split::{Sample, Stretch, WIDE, WINDOW};

/// How often everybody's bytes are read.
const PERIOD: Duration = Duration::from_millis(100);

/// Lets time pass. Who wants nothing has the weight 0; `before` is what all together had before, in bytes per
/// second.
pub fn watch(tenants: &[Tenant], weights: Vec<u64>, before: f64, seconds: u64) -> Result<Stretch> {
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
            return Ok(Stretch {
                weights,
                samples,
                before,
            });
        }
        next = (next + PERIOD).max(now).min(end);
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// What was seen in all such phases together.
#[derive(Default)]
pub struct Watched {
    seconds: f64,
    bytes: Vec<u64>,
    misplaced: Mean,
    pv: Mean,
    /// What all together had at last, in bytes per second.
    late: f64,
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

impl Watched {
    /// One more.
    pub fn add(&mut self, stretch: &Stretch) {
        let seconds = stretch.seconds();
        self.seconds += seconds;
        self.bytes.resize(stretch.weights.len(), 0);
        for (sum, bytes) in self.bytes.iter_mut().zip(stretch.bytes()) {
            *sum += bytes;
        }
        self.misplaced.add(stretch.misplaced(), seconds);
        self.pv.add(stretch.pv(), seconds);
        self.late = stretch.late();
    }

    /// What all together had at the end of the last one, in bytes per second; 0 before the first.
    pub fn late(&self) -> f64 {
        self.late
    }

    /// The disk does `now` instead of `before`, in whatever unit, and all together will have as much more or less.
    pub fn expect(&mut self, now: u64, before: u64) {
        self.late *= if before > 0 {
            to_f64(now) / to_f64(before)
        } else {
            0.0
        };
    }

    /// Everybody's bytes per second, in the tenants' order.
    pub fn bandwidth(&self) -> Vec<f64> {
        let seconds = self.seconds.max(1e-3);
        let per_second = |bytes: &u64| to_f64(*bytes) / seconds;
        self.bytes.iter().map(per_second).collect()
    }

    /// What is kept of the run as a whole.
    pub fn whole(&self) -> BTreeMap<String, f64> {
        [
            ("misplaced", self.misplaced.get()),
            ("pv_watched", self.pv.get()),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value?)))
        .collect()
    }
}

/// What is kept of one phase under its key: when the split held, or the phase's length; and how it was split.
pub fn kept(key: &str, stretch: &Stretch) -> Vec<(String, f64)> {
    let settled = stretch.settled(WINDOW);
    let wide = stretch.settled(WIDE);
    let never = stretch.seconds();
    let bytes: u64 = stretch.bytes().iter().sum();
    let mut kept = vec![
        (key.to_owned(), settled.near.unwrap_or(never)),
        (format!("{key}_each"), settled.each.unwrap_or(never)),
        (format!("{key}_wide"), wide.near.unwrap_or(never)),
        (format!("{key}_total"), to_f64(bytes) / never.max(1e-3)),
    ];
    kept.extend(stretch.pv().map(|pv| (format!("{key}_pv"), pv)));
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(weights: &[u64], bytes: &[u64], seconds: f64) -> Stretch {
        let sample = |at, bytes| Sample { at, bytes };
        Stretch {
            weights: weights.to_vec(),
            samples: vec![
                sample(0.0, vec![0; bytes.len()]),
                sample(seconds, bytes.to_vec()),
            ],
            before: 0.0,
        }
    }

    #[test]
    fn phases_count_by_their_length() {
        let mut watched = Watched::default();
        watched.add(&stretch(&[100, 300], &[3000, 1000], 3.0));
        watched.add(&stretch(&[100, 0], &[1000, 0], 1.0));
        assert_eq!(watched.bandwidth(), [1000.0, 250.0]);
        let whole = watched.whole();
        // Half of the first phase's was in the wrong hands, nothing of the second's.
        assert!((whole["misplaced"] - 0.375).abs() < 1e-9, "{whole:?}");
        assert!(whole["pv_watched"] > 0.5, "{whole:?}");
    }

    #[test]
    fn what_never_settles_counts_with_the_phases_length() {
        let kept = kept("turn", &stretch(&[1, 1], &[14, 28], 7.0));
        let expected = [
            ("turn", 7.0),
            ("turn_each", 7.0),
            ("turn_wide", 7.0),
            ("turn_total", 6.0),
            ("turn_pv", 1.0 / 3.0),
        ];
        assert_eq!(kept, expected.map(|(key, value)| (key.to_owned(), value)));
    }

    #[test]
    fn a_slower_disk_is_expected_to_do_less() {
        let mut watched = Watched::default();
        let mut steady = stretch(&[1, 1], &[0, 0], 0.0);
        steady.samples = (0..10)
            .map(|second| Sample {
                at: to_f64(second),
                bytes: vec![second * 300; 2],
            })
            .collect();
        watched.add(&steady);
        assert!((watched.late() - 600.0).abs() < 1e-9);
        watched.expect(6, 60);
        assert!((watched.late() - 60.0).abs() < 1e-9);
        watched.expect(60, 0);
        assert!(watched.late() < 1e-9);
    }
}
