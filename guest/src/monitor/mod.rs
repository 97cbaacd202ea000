//! What the machine has: disks and cgroups.

pub(crate) mod cgroups;
pub(crate) mod disks;
pub(crate) mod reclaim;
