//! What the processors and the disk did, of a whole machine.

use anyhow::{Context, Result};
use justitia_share::num::to_f64;

use super::process::time_run;

const DISK: &str = "/sys/block/vda/stat";
const PROCESSORS: &str = "/proc/stat";
/// Of `/sys/block/*/stat`.
const SECTOR: u64 = 512;

/// The counters at one moment, or what they counted between two.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MachineCounters {
    disk: DiskCounters,
    processors: ProcessorCounters,
    /// Nanoseconds that the agent has run; none where there is no agent.
    agent: Option<u64>,
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

impl MachineCounters {
    /// The counters now, and those of this agent's process.
    pub(super) fn now(agent: Option<u32>) -> Result<Self> {
        Ok(Self {
            agent: agent.map(time_run).transpose()?,
            disk: disk(&read(DISK)?),
            processors: processors(&read(PROCESSORS)?),
        })
    }

    /// What was counted since an earlier moment.
    pub(super) fn since(self, before: Self) -> Self {
        let agent = self.agent.zip(before.agent);
        Self {
            agent: agent.map(|(now, before)| now.saturating_sub(before)),
            disk: DiskCounters {
                read: self.disk.read.saturating_sub(before.disk.read),
                busy: self.disk.busy.saturating_sub(before.disk.busy),
            },
            processors: ProcessorCounters {
                idle: self.processors.idle.saturating_sub(before.processors.idle),
                all: self.processors.all.saturating_sub(before.processors.all),
            },
        }
    }

    /// What was counted in `seconds`, by metric.
    pub(super) fn values(self, seconds: f64) -> Vec<(String, f64)> {
        let seconds = seconds.max(1e-3);
        let idle = to_f64(self.processors.idle) / to_f64(self.processors.all.max(1));
        let values = [
            ("disk_reads", Some(to_f64(self.disk.read))),
            ("processor", Some(1.0 - idle)),
            ("disk", Some(to_f64(self.disk.busy) / 1e3 / seconds)),
            ("agent", self.agent.map(|ran| to_f64(ran) / 1e9 / seconds)),
        ];
        let known = |(key, value): (&str, Option<f64>)| Some((key.to_owned(), value?));
        values.into_iter().filter_map(known).collect()
    }
}

/// A file of the kernel's.
pub(super) fn read(path: &str) -> Result<String> {
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
    }
}
