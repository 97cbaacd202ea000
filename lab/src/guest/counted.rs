//! What the kernel's own counters say of a stretch of time: no agent and no probes are needed.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use justitia_kernel::psi::Psi;
use justitia_share::num::to_f64;

use super::background::Background;
use super::machine::{MachineCounters, read};
use super::setup::Tenant;

const STALLS: &str = "/proc/pressure/memory";

/// The counters at one moment, or what they counted between two.
#[derive(Clone, Debug, Default)]
pub(super) struct Counted {
    tenants: BTreeMap<String, OfTenant>,
    machine: MachineCounters,
    /// Microseconds in which everything waited for memory.
    stalled: u64,
    elapsed: Duration,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct OfTenant {
    /// Bytes that its applications have read, cached or not.
    read: u64,
    /// Bytes that disks have delivered to it.
    fetched: u64,
    operations: u64,
}

impl Counted {
    /// The counters now.
    pub(super) fn now(tenants: &[Tenant], background: &Background) -> Result<Self> {
        let of_tenant = |tenant: &Tenant| -> Result<_> {
            let counters = OfTenant {
                read: tenant.cgroup.application()?.read,
                fetched: tenant.cgroup.device()?.read,
                operations: background.operations(&tenant.name)?,
            };
            Ok((tenant.name.clone(), counters))
        };
        Ok(Self {
            tenants: tenants.iter().map(of_tenant).collect::<Result<_>>()?,
            machine: MachineCounters::now(None)?,
            stalled: Psi::parse(read(STALLS)?.as_bytes())?.full.total,
            elapsed: Duration::ZERO,
        })
    }

    /// What was counted since an earlier moment, so long ago.
    pub(super) fn since(&self, before: &Self, elapsed: Duration) -> Self {
        let of = |(name, now): (&String, &OfTenant)| {
            let then = before.tenants.get(name).copied().unwrap_or_default();
            let since = OfTenant {
                read: now.read.saturating_sub(then.read),
                fetched: now.fetched.saturating_sub(then.fetched),
                operations: now.operations.saturating_sub(then.operations),
            };
            (name.clone(), since)
        };
        Self {
            tenants: self.tenants.iter().map(of).collect(),
            machine: self.machine.since(before.machine),
            stalled: self.stalled.saturating_sub(before.stalled),
            elapsed,
        }
    }

    /// A tenant's values by metric.
    pub(super) fn tenant(&self, name: &str) -> Vec<(String, f64)> {
        let counted = self.tenants.get(name).copied().unwrap_or_default();
        let (read, seconds) = (to_f64(counted.read), self.elapsed.as_secs_f64());
        let mut values = vec![("reads".to_owned(), read)];
        if counted.read > 0 {
            // Readahead may fetch what is never asked for.
            let fetched = to_f64(counted.fetched.min(counted.read));
            values.push(("hits".to_owned(), 1.0 - fetched / read));
        }
        if counted.operations > 0 {
            let operations = to_f64(counted.operations) / seconds;
            values.push(("operations".to_owned(), operations));
        }
        values
    }

    /// The values of the run as a whole, by metric.
    pub(super) fn whole(&self) -> Vec<(String, f64)> {
        let mut values = self.machine.values(self.elapsed.as_secs_f64());
        let stalled = to_f64(self.stalled) / 1e6;
        values.push(("memory_stall".to_owned(), stalled));
        values
    }
}

/// The tenants' file pages, on average.
#[derive(Default)]
pub(super) struct MeanPages {
    sums: BTreeMap<String, u64>,
    samples: u64,
}

impl MeanPages {
    /// Adds what they hold now.
    pub(super) fn sample(&mut self, tenants: &[Tenant]) -> Result<()> {
        for tenant in tenants {
            let pages = tenant.cgroup.file_pages()?;
            *self.sums.entry(tenant.name.clone()).or_default() += pages;
        }
        self.samples += 1;
        Ok(())
    }

    /// A tenant's, under its metric.
    pub(super) fn mean(&self, tenant: &str) -> Option<(String, f64)> {
        let sum = self.sums.get(tenant)?;
        Some(("pages".to_owned(), to_f64(*sum) / to_f64(self.samples)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_are_what_no_disk_delivered() {
        let at = |read, fetched, operations| Counted {
            tenants: [(
                "a".to_owned(),
                OfTenant {
                    read,
                    fetched,
                    operations,
                },
            )]
            .into(),
            ..Counted::default()
        };
        let window = at(1100, 350, 30).since(&at(100, 100, 10), Duration::from_secs(10));
        let values: BTreeMap<_, _> = window.tenant("a").into_iter().collect();
        assert_eq!(values["reads"].to_bits(), 1000_f64.to_bits());
        assert_eq!(values["hits"].to_bits(), 0.75_f64.to_bits());
        assert_eq!(values["operations"].to_bits(), 2_f64.to_bits());
        // A tenant that reads nothing hits nothing and misses nothing.
        assert!(!at(0, 0, 0).tenant("a").iter().any(|(key, _)| key == "hits"));
    }
}
