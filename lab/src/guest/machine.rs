//! What the processors and the disk did, of a whole machine.

use anyhow::{Context, Result};
use justitia_share::num::to_f64;

const DISK: &str = "/sys/block/vda/stat";
const PROCESSORS: &str = "/proc/stat";
/// Of `/sys/block/*/stat`.
const SECTOR: u64 = 512;

/// The counters at one moment, or what they counted between two.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct MachineCounters {
    disk: DiskCounters,
    processors: ProcessorCounters,
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
    /// The counters now.
    pub(super) fn now() -> Result<Self> {
        Ok(Self {
            disk: disk(&read(DISK)?),
            processors: processors(&read(PROCESSORS)?),
        })
    }

    /// What was counted since an earlier moment.
    pub(super) fn since(self, before: Self) -> Self {
        Self {
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

    /// What was counted in so many seconds, by metric.
    pub(super) fn values(self, seconds: f64) -> Vec<(String, f64)> {
        let idle = to_f64(self.processors.idle) / to_f64(self.processors.all.max(1));
        [
            ("disk_reads", to_f64(self.disk.read)),
            ("processor", 1.0 - idle),
            ("disk", to_f64(self.disk.busy) / 1e3 / seconds.max(1e-3)),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .to_vec()
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
