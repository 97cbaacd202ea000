//! What this kernel and this mount can do: facts first, each with its reason, so that every
//! fallback can name the fact that caused it.

mod detect;
mod function;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use detect::{SAFE_LIMITS, has_reclaim_swappiness, version};
pub use function::{Because, Function, Outcome, Verdict};

/// What a [`Fact`] is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FactName {
    /// The process may write what only root may.
    RootPrivileges,
    /// The kernel's release could be read; it is in the reason.
    KernelRelease,
    /// cgroup v2 is mounted.
    Cgroup2,
    /// That mount takes writes.
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
    /// Who is limited by `io.max` does not hold up others' metadata on the same file system.
    SafeLimits,
    /// The system call `cachestat` exists.
    Cachestat,
    /// A file system is mounted whose files can be handed over.
    OwnableFiles,
}

impl FactName {
    /// Every fact, in the order of [`KernelSupport::facts`].
    pub const ALL: [Self; 24] = [
        Self::RootPrivileges,
        Self::KernelRelease,
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
        Self::SafeLimits,
        Self::Cachestat,
        Self::OwnableFiles,
    ];

    /// For people.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::RootPrivileges => "root privileges",
            Self::KernelRelease => "kernel release",
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
            Self::SafeLimits => "io.max holds up nobody else",
            Self::Cachestat => "cachestat(2)",
            Self::OwnableFiles => "ext4 or XFS mounted",
        }
    }
}

/// Whether something is so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It is.
    Yes,
    /// It is not.
    No,
    /// It could not be found out.
    Unknown,
    /// What it depends on is missing; the reason says what.
    NotApplicable,
}

/// One thing about this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    /// What it is about.
    pub name: FactName,
    /// Whether it is so.
    pub state: State,
    /// How that is known, and where it matters, what to do about it. One line.
    pub reason: String,
}

/// Where to look.
#[derive(Clone, Debug)]
pub struct Paths {
    /// The procfs.
    pub proc: PathBuf,
    /// The sysfs.
    pub sys: PathBuf,
    /// Whether the cgroup v2 mount must really be one; `false` for fixtures.
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

/// The facts about this machine, one for each [`FactName`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelSupport {
    facts: Vec<Fact>,
}

impl KernelSupport {
    /// Finds out. Only reads: what cannot be read becomes [`State::Unknown`] with its reason, so
    /// there is no error to return.
    #[must_use]
    pub fn detect(paths: &Paths) -> Self {
        Self {
            facts: detect::facts(paths),
        }
    }

    /// All facts, in the order of [`FactName::ALL`].
    #[must_use]
    pub fn facts(&self) -> &[Fact] {
        &self.facts
    }

    /// The fact about `name`; `None` only in a value that was deserialised from elsewhere.
    #[must_use]
    pub fn fact(&self, name: FactName) -> Option<&Fact> {
        self.facts.iter().find(|fact| fact.name == name)
    }

    /// Whether `name` is so, [`State::Unknown`] if nothing is known.
    #[must_use]
    pub fn state(&self, name: FactName) -> State {
        self.fact(name).map_or(State::Unknown, |fact| fact.state)
    }

    /// Whether `name` is known to be so.
    #[must_use]
    pub fn has(&self, name: FactName) -> bool {
        self.state(name) == State::Yes
    }

    /// Replaces a fact by what was found out otherwise, as by [`has_reclaim_swappiness`].
    pub fn set(&mut self, fact: Fact) {
        match self.facts.iter_mut().find(|known| known.name == fact.name) {
            Some(known) => *known = fact,
            None => self.facts.push(fact),
        }
    }
}
