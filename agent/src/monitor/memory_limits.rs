//! The limits and minimums of a cgroup's memory.

use justitia_kernel::cgroup::Cgroup;
use justitia_kernel::memory::Limit;
use justitia_kernel::{Error, Result};

/// What was set for a cgroup, bytes; `u64::MAX` is no limit. Without a file, as without the memory controller, nothing is
/// set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimits {
    /// `memory.min`.
    pub min: u64,
    /// `memory.high`.
    pub high: u64,
    /// `memory.max`.
    pub max: u64,
    /// `memory.swap.max`.
    pub swap_max: u64,
}

impl Default for MemoryLimits {
    fn default() -> Self {
        Self {
            min: 0,
            high: u64::MAX,
            max: u64::MAX,
            swap_max: u64::MAX,
        }
    }
}

impl MemoryLimits {
    /// Reads the cgroup's files.
    ///
    /// # Errors
    /// If the cgroup is gone, or a file is not understood.
    pub fn read(cgroup: &Cgroup) -> Result<Self> {
        let none = Self::default();
        Ok(Self {
            min: bytes(cgroup.memory_min(), none.min)?,
            high: bytes(cgroup.memory_high(), none.high)?,
            max: bytes(cgroup.memory_max(), none.max)?,
            swap_max: bytes(cgroup.swap_max(), none.swap_max)?,
        })
    }
}

fn bytes(limit: Result<Limit>, missing: u64) -> Result<u64> {
    match limit {
        Ok(Limit::Bytes(bytes)) => Ok(bytes),
        Ok(Limit::Max) => Ok(u64::MAX),
        Err(error) if Error::is_missing(&error) => Ok(missing),
        Err(error) => Err(error),
    }
}
