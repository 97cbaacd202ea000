//! Which probes there are.

use serde::{Deserialize, Serialize};

use crate::capabilities::State;

/// Something that is counted or traced in the kernel.
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
    /// What the disk reads into the page cache.
    CacheMisses,
    /// Reads whose first page readahead had not read.
    DemandMisses,
    /// Bios throttled by `io.max`.
    IoThrottle,
    /// Writers throttled until dirty pages are written.
    DirtyThrottle,
    /// Reuse times of cached blocks.
    Reuse,
    /// Removed cgroups.
    CgroupRemoval,
    /// Files that several tenants use; on demand.
    SharedInodes,
    /// Pages that reclaim evicts; only for `justitia guest`.
    Evictions,
}

impl Probe {
    /// Every probe, in the order in which they are listed.
    pub const ALL: [Self; 17] = [
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
        Self::SharedInodes,
        Self::Evictions,
    ];

    /// Its name in messages.
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
            Self::CacheMisses => "page-cache misses",
            Self::DemandMisses => "demand misses",
            Self::IoThrottle => "throttling by io.max",
            Self::DirtyThrottle => "dirty throttling",
            Self::Reuse => "reuse of cached blocks",
            Self::CgroupRemoval => "removed cgroups",
            Self::SharedInodes => "files used by several tenants (on demand)",
            Self::Evictions => "pages that reclaim evicts",
        }
    }
}

/// Whether one probe works on this kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeStatus {
    /// Which one.
    pub probe: Probe,
    /// `Yes` if it is attached, or if it is on demand, can be.
    pub state: State,
    /// Where it is attached, or why it is not, in few words. One line.
    pub reason: String,
    /// The full messages of the kernel and of the loader, if they are longer; one entry for each program.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub details: Vec<String>,
}
