//! A capability: an id, whether the machine has it, and why.

use std::path::{Path, PathBuf};

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::Error;

/// Something that a kernel, its configuration or a mount may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CapabilityId {
    /// The process may write files that only root may write.
    RootPrivileges,
    /// The kernel's release could be read; the reason has it.
    KernelRelease,
    /// Pages of memory have the size that is counted with ([`PAGE_SIZE`](justitia_share::PAGE_SIZE)).
    PageSize,
    /// cgroup v2 is mounted.
    Cgroup2,
    /// The cgroup v2 mount takes writes.
    Cgroup2Writable,
    /// The memory controller belongs to cgroup v2.
    MemoryController,
    /// The memory controller is enabled for the root's children.
    MemoryEnabled,
    /// The io controller belongs to cgroup v2.
    IoController,
    /// The io controller is enabled for the root's children.
    IoEnabled,
    /// The cpu controller belongs to cgroup v2.
    CpuController,
    /// The cpu controller is enabled for the root's children.
    CpuEnabled,
    /// `memory.reclaim` exists.
    MemoryReclaim,
    /// `memory.reclaim` takes `swappiness=`.
    ReclaimSwappiness,
    /// The multi-generational LRU is in use.
    Mglru,
    /// Its debug interface can be read.
    MglruDebug,
    /// The mount option `memory_recursiveprot` is set.
    RecursiveProtection,
    /// Swap is on.
    Swap,
    /// Pressure stall information is on.
    Psi,
    /// BFQ schedules a disk.
    Bfq,
    /// io.cost is enabled on a disk.
    IoCost,
    /// The kernel is built with `CONFIG_NUMA`.
    Numa,
    /// The kernel describes its types (BTF), which eBPF programs need.
    Btf,
    /// The system call `cachestat` exists.
    Cachestat,
    /// A file system is mounted whose files' pages can be recharged to another cgroup.
    RechargeableFiles,
}

impl CapabilityId {
    /// Every capability, in the order of [`Capabilities::all`](super::Capabilities::all).
    pub const ALL: [Self; 24] = [
        Self::RootPrivileges,
        Self::KernelRelease,
        Self::PageSize,
        Self::Cgroup2,
        Self::Cgroup2Writable,
        Self::MemoryController,
        Self::MemoryEnabled,
        Self::IoController,
        Self::IoEnabled,
        Self::CpuController,
        Self::CpuEnabled,
        Self::MemoryReclaim,
        Self::ReclaimSwappiness,
        Self::Mglru,
        Self::MglruDebug,
        Self::RecursiveProtection,
        Self::Swap,
        Self::Psi,
        Self::Bfq,
        Self::IoCost,
        Self::Numa,
        Self::Btf,
        Self::Cachestat,
        Self::RechargeableFiles,
    ];

    /// Its name in messages.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::RootPrivileges => "root privileges",
            Self::KernelRelease => "kernel release",
            Self::PageSize => "pages of 4 KiB",
            Self::Cgroup2 => "cgroup v2 mounted",
            Self::Cgroup2Writable => "cgroup v2 writable",
            Self::MemoryController => "memory controller in cgroup v2",
            Self::MemoryEnabled => "memory controller enabled",
            Self::IoController => "io controller in cgroup v2",
            Self::IoEnabled => "io controller enabled",
            Self::CpuController => "cpu controller in cgroup v2",
            Self::CpuEnabled => "cpu controller enabled",
            Self::MemoryReclaim => "memory.reclaim",
            Self::ReclaimSwappiness => "memory.reclaim swappiness=",
            Self::Mglru => "multi-generational LRU",
            Self::MglruDebug => "multi-generational LRU, debug interface",
            Self::RecursiveProtection => "memory_recursiveprot",
            Self::Swap => "swap",
            Self::Psi => "pressure stall information",
            Self::Bfq => "BFQ scheduling a disk",
            Self::IoCost => "io.cost enabled on a disk",
            Self::Numa => "CONFIG_NUMA",
            Self::Btf => "kernel type information (BTF)",
            Self::Cachestat => "cachestat(2)",
            Self::RechargeableFiles => "ext4 or XFS mounted",
        }
    }
}

/// Whether the machine has something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It has it.
    Yes,
    /// It does not have it.
    No,
    /// It could not be found out.
    Unknown,
    /// Something that it depends on is missing; the reason says what.
    NotApplicable,
}

/// One capability of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capability {
    /// Which one.
    pub id: CapabilityId,
    /// Whether the machine has it.
    pub state: State,
    /// How that is known, and where it matters, what to do about it. One line.
    pub reason: String,
}

// The result of a detector.

/// The state of a capability, and the reason.
pub(super) type Finding = (State, String);

pub(super) fn yes(reason: impl Into<String>) -> Finding {
    (State::Yes, reason.into())
}

pub(super) fn no(reason: impl Into<String>) -> Finding {
    (State::No, reason.into())
}

pub(super) fn not_applicable(reason: impl Into<String>) -> Finding {
    (State::NotApplicable, reason.into())
}

pub(super) fn unknown(error: &Error) -> Finding {
    (State::Unknown, error.to_string())
}

/// Whether `path` can be read; `hint` says why it may be absent.
pub(super) fn readable(path: &Path, hint: &str) -> Finding {
    match rustix::fs::access(path, rustix::fs::Access::READ_OK) {
        Ok(()) => yes(format!("{path:?} can be read")),
        Err(Errno::NOENT) => no(format!("{path:?} does not exist: {hint}")),
        Err(errno @ (Errno::ACCESS | Errno::PERM)) => no(format!("{path:?}: {errno}: {hint}")),
        Err(errno) => (State::Unknown, format!("{path:?}: {errno}")),
    }
}

/// How many names a reason lists.
const MAX_NAMES: usize = 8;

/// `Yes` with the names, or `No` with the reason `none` if there are none.
pub(super) fn any_of(names: &[String], none: &str) -> Finding {
    if names.is_empty() {
        return no(none);
    }
    let shown = names.get(..MAX_NAMES).unwrap_or(names).join(", ");
    match names.len().saturating_sub(MAX_NAMES) {
        0 => yes(shown),
        more => yes(format!("{shown} and {more} more")),
    }
}

/// Where to look.
#[derive(Clone, Debug)]
pub struct Paths {
    /// The procfs.
    pub proc: PathBuf,
    /// The sysfs.
    pub sys: PathBuf,
    /// Whether the mount must really be of cgroup v2; `false` for fixtures.
    pub verify_cgroup2: bool,
}

impl Default for Paths {
    fn default() -> Self {
        Self {
            proc: "/proc".into(),
            sys: "/sys".into(),
            verify_cgroup2: true,
        }
    }
}
