//! The values that the phases record.

use std::collections::BTreeMap;

use super::job_report::JobReport;
use super::setup::Tenant;
use super::window::{Window, latencies};
use crate::protocol::Measurements;
use crate::report::schema::TenantValues;

/// The tenants' values and those of the run as a whole, by metric. A later value replaces an earlier one.
#[derive(Default)]
pub(super) struct Recorder {
    tenants: BTreeMap<String, BTreeMap<String, f64>>,
    whole: BTreeMap<String, f64>,
}

impl Recorder {
    /// Values of a tenant.
    pub(super) fn tenant(&mut self, tenant: &str, values: impl IntoIterator<Item = (String, f64)>) {
        let of_tenant = self.tenants.entry(tenant.to_owned()).or_default();
        of_tenant.extend(values);
    }

    /// Values of the run as a whole.
    pub(super) fn whole(&mut self, values: impl IntoIterator<Item = (String, f64)>) {
        self.whole.extend(values);
    }

    /// What a window measured: of the tenants whose jobs ended with these reports, and of those whose jobs go on in the
    /// background. Returns the total bandwidth of the former. With a `key` it is recorded as well, and with it begin the
    /// names of what operations took.
    pub(super) fn window<'a>(
        &mut self,
        window: &Window<'_>,
        reports: &[(String, JobReport)],
        background: impl Iterator<Item = &'a str>,
        key: Option<&str>,
    ) {
        for tenant in background {
            self.tenant(tenant, window.running(tenant));
        }
        let prefix = key.map_or_else(String::new, |key| format!("{key}_"));
        for (tenant, report) in reports {
            self.tenant(tenant, window.ended(tenant, report));
            let named = |(operation, took)| (format!("{prefix}{tenant}_{operation}"), took);
            self.whole(latencies(report).map(named));
        }
        self.whole(window.machine());
        let ratio = window.overall_hit_ratio();
        self.whole(ratio.map(|ratio| ("overall_hit_ratio".to_owned(), ratio)));
        let bandwidth = |(tenant, _): &(String, _)| self.tenants.get(tenant)?.get("bandwidth");
        let total: f64 = reports.iter().filter_map(bandwidth).sum();
        self.whole(key.map(|key| (key.to_owned(), total)));
    }

    /// All of them, in the order of the tenants.
    pub(super) fn finish(&mut self, tenants: &[Tenant]) -> Measurements {
        let mut values = std::mem::take(&mut self.tenants);
        let tenants = tenants.iter().map(|tenant| TenantValues {
            name: tenant.name.clone(),
            values: values.remove(&tenant.name).unwrap_or_default(),
        });
        Measurements {
            tenants: tenants.collect(),
            values: std::mem::take(&mut self.whole),
            ..Measurements::default()
        }
    }
}
