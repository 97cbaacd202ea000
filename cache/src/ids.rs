//! What names a VM, a pool and a disk.

use serde::{Deserialize, Serialize};

/// A virtual machine that the cache knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct VmId(pub(crate) u32);

/// A pool: the part of the cache that one container of one VM fills.
///
/// The generation tells a pool from a later one with the same index, so that an operation that arrives after the pool was
/// destroyed does not reach the later one.
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
    /// The part of the key: unique among the disks that the cache knows or somebody still serves, used again afterwards.
    pub(crate) number: u32,
    /// Tells a disk from a later one with the same number.
    pub(crate) generation: u32,
}

impl std::fmt::Display for DiskId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "disk{}.{}", self.number, self.generation)
    }
}
