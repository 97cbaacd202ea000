//! How long the tenants' calls took, window by window.

use std::collections::HashMap;
use std::time::Instant;

use justitia_api::LatencyStatus;
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
