//! The ids of VMs, pools and disks.

use serde::{Deserialize, Serialize};

/// A virtual machine in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct VmId(pub(crate) u32);

/// A pool: the blocks of one container of one VM.
///
/// The generation distinguishes a pool from a later one with the same index, so that a late operation on a destroyed pool does
/// not reach its successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PoolId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl std::fmt::Display for VmId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "vm{}", self.0)
    }
}

impl std::fmt::Display for PoolId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "pool{}.{}", self.index, self.generation)
    }
}

/// A disk of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DiskId {
    /// The disk's part of a key. It is unique among the disks that are cached or still served, and reused afterwards.
    pub(crate) number: u32,
    /// Distinguishes a disk from a later one with the same number.
    pub(crate) generation: u32,
}

impl std::fmt::Display for DiskId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "disk{}.{}", self.number, self.generation)
    }
}
