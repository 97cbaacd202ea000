//! How long the tenants' calls took, window by window.

use std::collections::HashMap;
use std::time::Instant;

use justitia_api::{LatencyHistogram, LatencyHistograms, LatencyStatus};
use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::probes::{Histogram, IoProbes, Latencies};
use justitia_share::num::to_f64;

use super::rate_window::WINDOW;

/// Quantiles of the last whole window, from histograms that the probes sum up since they were attached.
#[derive(Debug, Default)]
pub(super) struct LatencyWindow {
    /// When the window began.
    begun: Option<Instant>,
    /// The histograms at that time.
    sums: HashMap<CgroupId, Latencies>,
    latest: HashMap<CgroupId, LatencyStatus>,
}

impl LatencyWindow {
    /// Reads the histograms, once a window.
    pub(super) fn sample(&mut self, probes: &IoProbes, now: Instant) {
        if self.begun.is_some_and(|at| now - at < WINDOW) {
            return;
        }
        let Ok(sums) = probes.latencies() else { return };
        self.begun = Some(now);
        self.latest = sums
            .iter()
            .map(|(id, sum)| (*id, quantiles(sum, self.sums.get(id))))
            .collect();
        self.sums = sums;
    }

    /// A tenant's latencies in the last whole window.
    pub(super) fn latest(&self, id: CgroupId) -> Option<LatencyStatus> {
        self.latest.get(&id).copied()
    }

    /// How long a tenant's calls took until the last whole window ended.
    pub(super) fn histograms(&self, id: CgroupId) -> Option<LatencyHistograms> {
        let sums = self.sums.get(&id)?;
        Some(LatencyHistograms {
            read: coarser(&sums.read),
            write: coarser(&sums.write),
            sync: coarser(&sums.sync),
        })
    }

    /// Forgets a removed cgroup.
    pub(super) fn remove(&mut self, id: CgroupId) {
        self.sums.remove(&id);
        self.latest.remove(&id);
    }
}

fn quantiles(sum: &Latencies, before: Option<&Latencies>) -> LatencyStatus {
    let seconds = |of: fn(&Latencies) -> &Histogram, quantile: f64| {
        let recent = before.map_or_else(|| *of(sum), |before| of(sum).since(of(before)));
        recent.quantile_ns(quantile).map(|ns| to_f64(ns) / 1e9)
    };
    LatencyStatus {
        read_p50: seconds(|l| &l.read, 0.5),
        read_p99: seconds(|l| &l.read, 0.99),
        write_p50: seconds(|l| &l.write, 0.5),
        write_p99: seconds(|l| &l.write, 0.99),
        sync_p99: seconds(|l| &l.sync, 0.99),
    }
}

/// The same with the fewer buckets that the status has: those of the probes end at powers of 2, its at powers of 4.
fn coarser(fine: &Histogram) -> LatencyHistogram {
    let mut coarse = LatencyHistogram {
        sum: to_f64(fine.sum_ns) / 1e9,
        ..LatencyHistogram::default()
    };
    for (n, calls) in fine.buckets.iter().enumerate() {
        let bucket = (n / 2).min(LatencyHistogram::BUCKETS - 1);
        coarse.buckets[bucket] += calls;
    }
    coarse
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_counted_below_a_bound_that_it_did_not_reach() {
        for n in 0..Histogram::BUCKETS {
            let mut fine = Histogram {
                sum_ns: 2_500_000_000,
                ..Histogram::default()
            };
            fine.buckets[n] = 7;
            let coarse = coarser(&fine);
            assert_eq!((coarse.count(), coarse.sum), (7, 2.5));
            let bucket = coarse.buckets.iter().position(|calls| *calls > 0).unwrap();
            let bound = LatencyHistogram::upper_bound(bucket);
            let took = Histogram::upper_ns(n).map_or(f64::MAX, |ns| to_f64(ns) / 1e9);
            assert!(took <= bound * 1.000_001, "{took} s below {bound} s");
            let tight = n == 0 || bound.is_infinite() || took > bound / 4.0;
            assert!(tight, "{took} s far below {bound} s");
        }
    }
}
