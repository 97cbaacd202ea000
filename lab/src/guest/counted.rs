//! What the kernel's own counters say of a stretch of time: no agent and no probes are needed.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use justitia_share::num::to_f64;

use super::background::Background;
use super::setup::Tenant;

const DISK: &str = "/sys/block/vda/stat";
const PROCESSORS: &str = "/proc/stat";
const STALLS: &str = "/proc/pressure/memory";
/// Of `/sys/block/*/stat`.
const SECTOR: u64 = 512;

/// The counters at one moment, or what they counted between two.
#[derive(Clone, Debug, Default)]
pub(super) struct Counted {
    tenants: BTreeMap<String, OfTenant>,
    disk: DiskCounters,
    processors: ProcessorCounters,
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

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct DiskCounters {
    /// Bytes.
    read: u64,
    /// Milliseconds.
    busy: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct ProcessorCounters {
    /// Ticks.
    idle: u64,
    /// Ticks.
    all: u64,
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
            disk: disk(&read(DISK)?),
            processors: processors(&read(PROCESSORS)?),
            stalled: stalled(&read(STALLS)?),
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
            disk: DiskCounters {
                read: self.disk.read.saturating_sub(before.disk.read),
                busy: self.disk.busy.saturating_sub(before.disk.busy),
            },
            processors: ProcessorCounters {
                idle: self.processors.idle.saturating_sub(before.processors.idle),
                all: self.processors.all.saturating_sub(before.processors.all),
            },
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
    pub(super) fn whole(&self) -> [(String, f64); 4] {
        let seconds = self.elapsed.as_secs_f64();
        let idle = to_f64(self.processors.idle) / to_f64(self.processors.all.max(1));
        [
            ("disk_reads", to_f64(self.disk.read)),
            ("processor", 1.0 - idle),
            ("disk", to_f64(self.disk.busy) / 1e3 / seconds),
            ("memory_stall", to_f64(self.stalled) / 1e6),
        ]
        .map(|(key, value)| (key.to_owned(), value))
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

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("reading {path}"))
}

fn numbers(line: &str) -> Vec<u64> {
    let number = |field: &str| field.parse().ok();
    line.split_whitespace().filter_map(number).collect()
}

/// Fields 3 and 10 of `/sys/block/*/stat` (the kernel's Documentation/block/stat.rst).
fn disk(stat: &str) -> DiskCounters {
    let fields = numbers(stat);
    let field = |index: usize| fields.get(index).copied().unwrap_or(0);
    DiskCounters {
        read: field(2) * SECTOR,
        busy: field(9),
    }
}

/// The line of all processors in `/proc/stat`; waiting for I/O is idle.
fn processors(stat: &str) -> ProcessorCounters {
    let fields = numbers(stat.lines().next().unwrap_or_default());
    let idle = fields.iter().skip(3).take(2).sum();
    // What guests of the guest take is part of user time.
    let all = fields.iter().take(8).sum();
    ProcessorCounters { idle, all }
}

/// Microseconds of the line `full` of a pressure file.
fn stalled(pressure: &str) -> u64 {
    pressure
        .lines()
        .find_map(|line| {
            line.strip_prefix("full ")?
                .rsplit_once("total=")?
                .1
                .parse()
                .ok()
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_files_are_read() {
        let stat = " 100 2 800 5 6 7 8 9 0 1500 11 0 0 0 0 0 0\n";
        let expected = DiskCounters {
            read: 409_600,
            busy: 1500,
        };
        assert_eq!(disk(stat), expected);
        let stat = "cpu  10 0 20 60 5 1 2 2 7 0\ncpu0 1 1 1 1\n";
        let expected = ProcessorCounters { idle: 65, all: 100 };
        assert_eq!(processors(stat), expected);
        let pressure = "some avg10=0.00 avg60=0.00 avg300=0.00 total=9\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\n";
        assert_eq!(stalled(pressure), 2_500_000);
    }

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
        // Who reads nothing hits nothing and misses nothing.
        assert!(!at(0, 0, 0).tenant("a").iter().any(|(key, _)| key == "hits"));
    }
}
