//! What the tenants' applications read and write, as the agent's probes count it. In configurations without an agent,
//! one runs that only observes: it changes nothing, and costs all configurations the same.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use justitia_api::{AppStatus, Status, TenantStatus, client};
use justitia_share::num::to_f64;

use crate::report::schema::Curve;

const SOCKET: &str = "/run/justitia/justitia.sock";

/// The counters at one moment, by the tenant's name. Empty where no probes run.
#[derive(Clone, Debug, Default)]
pub(super) struct AppCounters(BTreeMap<String, AppStatus>);

impl AppCounters {
    /// Asks the agent.
    pub(super) fn sample() -> Result<Self> {
        Ok(Self(
            status()?
                .tenants
                .into_iter()
                .filter_map(|tenant| Some((tenant.path, tenant.app?)))
                .collect(),
        ))
    }

    /// Bytes that a tenant's applications have read and written since an earlier sample, by whatever calls; `None`
    /// where they were not counted.
    pub(super) fn bytes(&self, tenant: &str, before: &Self) -> Option<u64> {
        let sum = |app: &AppStatus| app.read_bytes + app.write_bytes;
        let (now, then) = (self.0.get(tenant)?, before.0.get(tenant)?);
        Some(sum(now).saturating_sub(sum(then)))
    }

    /// The part of what a tenant has read since an earlier sample that no device had to deliver; `None` where it
    /// has read nothing through the page cache, or was not counted.
    pub(super) fn hit_ratio(&self, tenant: &str, before: &Self) -> Option<f64> {
        let (now, then) = (self.0.get(tenant)?, before.0.get(tenant)?);
        ratio(
            now.cache_read_bytes.saturating_sub(then.cache_read_bytes),
            now.cache_miss_bytes.saturating_sub(then.cache_miss_bytes),
        )
    }

    /// The hit ratio of all tenants together.
    pub(super) fn overall_hit_ratio(&self, before: &Self) -> Option<f64> {
        let sum = |sample: &Self, of: fn(&AppStatus) -> u64| sample.0.values().map(of).sum::<u64>();
        let since = |of| sum(self, of).saturating_sub(sum(before, of));
        ratio(
            since(|app: &AppStatus| app.cache_read_bytes),
            since(|app: &AppStatus| app.cache_miss_bytes),
        )
    }
}

/// The miss-ratio curves of the tenants that have one.
pub(super) fn curves() -> Result<Vec<Curve>> {
    let of = |tenant: TenantStatus| {
        let points = tenant.curve?.points.into_iter();
        Some(Curve {
            tenant: tenant.path,
            points: points
                .map(|(size, misses)| (to_f64(size), misses))
                .collect(),
        })
    };
    Ok(status()?.tenants.into_iter().filter_map(of).collect())
}

fn status() -> Result<Status> {
    client::ask(Path::new(SOCKET)).with_context(|| format!("asking the agent at {SOCKET}"))
}

fn ratio(read: u64, filled: u64) -> Option<f64> {
    // Readahead may fetch what is never asked for.
    (read > 0).then(|| 1.0 - to_f64(filled.min(read)) / to_f64(read))
}
