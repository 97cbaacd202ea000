//! What is measured of a pool: the hit ratio that its size has, and how long a miss takes.

use super::correction::Correction;
use justitia_api::CurveStatus;
use justitia_share::num::to_f64;

/// A hit ratio of fewer gets is not known well enough: of so many it is to 0.011 (one standard deviation of a part of a
/// half).
const MIN_GETS: u64 = 2000;

/// A pool whose size has changed by more than this part meanwhile is still filling, and its hit ratio is of no one size.
const SETTLED: f64 = 1.0 / 32.0;

/// So many reads of the disk tell how long one takes.
const MIN_READS: u64 = 100;

/// What was counted of a pool since some moment, and what follows for its curve.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measured {
    begun: Option<Counted>,
    pub(super) correction: Correction,
    /// The last hit ratio that was measured.
    pub(super) hit_ratio: Option<f64>,
    /// How long a miss waited for the disk, the last time that enough did, microseconds.
    pub(super) miss_us: Option<f64>,
    reads: (u64, u64),
}

/// Counts of a pool, and what it holds, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Counted {
    pub(super) gets: u64,
    pub(super) hits: u64,
    pub(super) holds: f64,
    /// Reads of the disk, and how long they took together, microseconds.
    pub(super) reads: u64,
    pub(super) read_us: u64,
}

impl Measured {
    /// Takes over what is counted by now.
    pub(super) fn update(&mut self, now: Counted, curve: Option<&CurveStatus>) {
        self.time(now);
        let Some(begun) = self.begun else {
            self.begun = Some(now);
            return;
        };
        let gets = now.gets.saturating_sub(begun.gets);
        let settled = (now.holds - begun.holds).abs() <= SETTLED * now.holds.max(begun.holds);
        if gets < MIN_GETS && settled {
            return;
        }
        self.begun = Some(now);
        if gets < MIN_GETS {
            return;
        }
        let hit_ratio = to_f64(now.hits.saturating_sub(begun.hits)) / to_f64(gets);
        self.hit_ratio = Some(hit_ratio);
        if let (Some(curve), true) = (curve, settled) {
            self.correction.learn(curve, now.holds, hit_ratio);
        }
    }

    /// How long reads of the disk take, from when it was measured last.
    fn time(&mut self, now: Counted) {
        let (reads, time) = self.reads;
        let new = now.reads.saturating_sub(reads);
        if new >= MIN_READS {
            let time = to_f64(now.read_us.saturating_sub(time)) / to_f64(new);
            self.miss_us = Some(time);
            self.reads = (now.reads, now.read_us);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(gets: u64, hits: u64, holds: f64) -> Counted {
        Counted {
            gets,
            hits,
            holds,
            ..Counted::default()
        }
    }

    #[test]
    fn the_time_of_a_miss_is_that_of_the_last_hundred_at_least() {
        let mut measured = Measured::default();
        for (reads, read_us, expected) in [
            (99, 99_000, None),
            (100, 100_000, Some(1000.0)),
            (150, 900_000, Some(1000.0)),
            (200, 300_000, Some(2000.0)),
        ] {
            let now = Counted {
                reads,
                read_us,
                ..Counted::default()
            };
            measured.update(now, None);
            assert_eq!(measured.miss_us, expected, "{reads}");
        }
    }

    #[test]
    fn a_hit_ratio_needs_gets_and_a_correction_a_size_that_is_kept() {
        let curve = CurveStatus {
            accesses: 1.0,
            points: vec![(0, 0.0)],
        };
        let mut measured = Measured::default();
        measured.update(counted(0, 0, 100.0), Some(&curve));
        measured.update(counted(1000, 500, 100.0), Some(&curve));
        assert_eq!(measured.hit_ratio, None, "too few");
        measured.update(counted(2000, 1000, 101.0), Some(&curve));
        assert_eq!(measured.hit_ratio, Some(0.5));
        let learnt = measured.correction;
        assert_ne!(learnt, Correction::default());
        measured.update(counted(9000, 1000, 200.0), Some(&curve));
        assert_eq!(measured.hit_ratio, Some(0.0));
        assert_eq!(measured.correction, learnt, "it grows");
        measured.update(counted(9010, 1000, 300.0), Some(&curve));
        measured.update(counted(11_100, 3100, 300.0), Some(&curve));
        assert_ne!(measured.correction, learnt, "counted since it has the size");
    }
}
