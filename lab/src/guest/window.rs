//! What is measured between two moments.

use std::collections::BTreeMap;

use anyhow::Result;
use justitia_share::num::to_f64;

use super::app_counters::AppCounters;
use super::cgroup::Transfer;
use super::job_report::JobReport;
use super::machine::MachineCounters;
use super::setup::Tenant;
use crate::spec::Throttle;

/// The tenants' counters at one moment.
pub(super) struct Snapshot {
    device: BTreeMap<String, Transfer>,
    application: BTreeMap<String, Transfer>,
    app_counters: AppCounters,
    machine: MachineCounters,
}

impl Snapshot {
    /// Now. `probes`: whether an agent's probes count. `agent`: its process, if one runs.
    pub(super) fn take(tenants: &[Tenant], probes: bool, agent: Option<u32>) -> Result<Self> {
        let device = |tenant: &Tenant| Ok((tenant.name.clone(), tenant.cgroup.device()?));
        let application = |tenant: &Tenant| Ok((tenant.name.clone(), tenant.cgroup.application()?));
        Ok(Self {
            device: tenants.iter().map(device).collect::<Result<_>>()?,
            application: tenants.iter().map(application).collect::<Result<_>>()?,
            app_counters: if probes {
                AppCounters::sample()?
            } else {
                AppCounters::default()
            },
            machine: MachineCounters::now(agent)?,
        })
    }
}

/// Two moments, and the time between them.
pub(super) struct Window<'a> {
    /// Where it begins.
    pub before: &'a Snapshot,
    /// Where it ends.
    pub after: &'a Snapshot,
    /// The seconds that bandwidth is computed over.
    pub seconds: f64,
    /// What the disk can do in one.
    pub throttle: Throttle,
}

impl Window<'_> {
    /// Bandwidths of a tenant whose job goes on, so that there is no report yet.
    pub(super) fn running(&self, tenant: &str) -> Vec<(String, f64)> {
        let since = transfer(&self.after.application, tenant)
            .since(transfer(&self.before.application, tenant));
        let mut values = vec![self.bandwidth(tenant, since.total())];
        values.extend(self.device(tenant));
        values
    }

    /// What is measured of a tenant whose job has ended with this report.
    pub(super) fn ended(&self, tenant: &str, report: &JobReport) -> Vec<(String, f64)> {
        let operations = to_f64(report.operations) / self.seconds;
        let mut values = vec![
            self.bandwidth(tenant, report.read + report.written),
            ("operations".to_owned(), operations),
        ];
        values.extend(self.device(tenant));
        values.extend(latencies(report));
        let (before, after) = (&self.before.app_counters, &self.after.app_counters);
        if let Some(ratio) = after.hit_ratio(tenant, before) {
            values.push(("hit_ratio".to_owned(), ratio));
        }
        values
    }

    /// What the machine did.
    pub(super) fn machine(&self) -> Vec<(String, f64)> {
        let since = self.after.machine.since(self.before.machine);
        since.values(self.seconds)
    }

    /// The hit ratio of all tenants together; `None` where nothing was read.
    pub(super) fn overall_hit_ratio(&self) -> Option<f64> {
        let before = &self.before.app_counters;
        self.after.app_counters.overall_hit_ratio(before)
    }

    /// By the probes' counters; by `reported` bytes where no probes run.
    fn bandwidth(&self, tenant: &str, reported: u64) -> (String, f64) {
        let (before, after) = (&self.before.app_counters, &self.after.app_counters);
        let bytes = after.bytes(tenant, before).unwrap_or(reported);
        ("bandwidth".to_owned(), to_f64(bytes) / self.seconds)
    }

    /// What it transferred to and from the disk, and the part of the disk's time that this takes by the disk's limits.
    fn device(&self, tenant: &str) -> [(String, f64); 2] {
        let since =
            transfer(&self.after.device, tenant).since(transfer(&self.before.device, tenant));
        let bytes = to_f64(since.total()) / self.seconds;
        let requests = to_f64(since.requests) / self.seconds;
        let of = |did: f64, limit: u64| if limit > 0 { did / to_f64(limit) } else { 0.0 };
        let part = of(bytes, self.throttle.bytes_per_second)
            .max(of(requests, self.throttle.requests_per_second));
        [("device".to_owned(), bytes), ("disk_part".to_owned(), part)]
    }
}

/// The percentiles of every operation that a job reports.
pub(super) fn latencies(report: &JobReport) -> impl Iterator<Item = (String, f64)> {
    report.latencies.iter().flat_map(|(operation, latency)| {
        [("p50", latency.p50), ("p99", latency.p99)]
            .map(|(percentile, value)| (format!("{operation}_{percentile}"), value))
    })
}

fn transfer(of: &BTreeMap<String, Transfer>, tenant: &str) -> Transfer {
    of.get(tenant).copied().unwrap_or_default()
}
