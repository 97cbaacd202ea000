//! Which probes there are, and which of them this kernel takes.

use serde::{Deserialize, Serialize};

use crate::capabilities::State;

/// Something that is watched in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Probe {
    /// `read` and `pread`.
    Read,
    /// `write` and `pwrite`.
    Write,
    /// `readv`, `preadv` and `preadv2`.
    ReadVectored,
    /// `writev`, `pwritev` and `pwritev2`.
    WriteVectored,
    /// The reading side of `splice`, `sendfile` and `copy_file_range`.
    SpliceRead,
    /// The writing side of `splice`, `sendfile` and `copy_file_range`.
    SpliceWrite,
    /// io_uring's reads and writes.
    IoUring,
    /// Linux-native asynchronous I/O (`io_submit`).
    Aio,
    /// Page faults on mapped files.
    Faults,
    /// What the disk fills into the page cache.
    CacheMisses,
    /// Reads that readahead did not foresee.
    DemandMisses,
    /// Requests held back by `io.max`.
    IoThrottle,
    /// Writers held back until dirty pages are written.
    DirtyThrottle,
    /// Which blocks are accessed again, and when.
    Reuse,
    /// Cgroups that are removed.
    CgroupRemoval,
    /// How long reads, writes and syncs take; on demand.
    Latency,
    /// Files that several tenants use; on demand.
    SharedInodes,
    /// Contended locks on the way to a page; on demand.
    LockContention,
}

impl Probe {
    /// Every probe, in the order in which they are told.
    pub const ALL: [Self; 18] = [
        Self::Read,
        Self::Write,
        Self::ReadVectored,
        Self::WriteVectored,
        Self::SpliceRead,
        Self::SpliceWrite,
        Self::IoUring,
        Self::Aio,
        Self::Faults,
        Self::CacheMisses,
        Self::DemandMisses,
        Self::IoThrottle,
        Self::DirtyThrottle,
        Self::Reuse,
        Self::CgroupRemoval,
        Self::Latency,
        Self::SharedInodes,
        Self::LockContention,
    ];

    /// For people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Read => "read, pread",
            Self::Write => "write, pwrite",
            Self::ReadVectored => "readv, preadv",
            Self::WriteVectored => "writev, pwritev",
            Self::SpliceRead => "splice, sendfile, copy_file_range: reading",
            Self::SpliceWrite => "splice, sendfile, copy_file_range: writing",
            Self::IoUring => "io_uring",
            Self::Aio => "Linux-native asynchronous I/O",
            Self::Faults => "faults on mapped files",
            Self::CacheMisses => "page-cache fills from disk",
            Self::DemandMisses => "demand misses",
            Self::IoThrottle => "waits for io.max",
            Self::DirtyThrottle => "waits for dirty pages",
            Self::Reuse => "reuse of cached blocks",
            Self::CgroupRemoval => "removed cgroups",
            Self::Latency => "latencies (on demand)",
            Self::SharedInodes => "files used by several tenants (on demand)",
            Self::LockContention => "contended locks (on demand)",
        }
    }
}

/// Whether one probe works here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeStatus {
    /// Which.
    pub probe: Probe,
    /// `Yes`: attached, or for one on demand, can be.
    pub state: State,
    /// Where it is attached, or why it is not, in a few words. One line.
    pub reason: String,
    /// The kernel's and the loader's own words, if there are more of them; one entry for each program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<String>,
}
