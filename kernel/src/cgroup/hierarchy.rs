//! Leaf types: what identifies a cgroup, and what all cgroups of a mount share.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Operation, Result};

/// A cgroup's identity: its directory's inode number, which on 64-bit kernels is the kernfs id that
/// `bpf_get_current_cgroup_id` returns. It is not reused before the next boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CgroupId(pub u64);

impl std::fmt::Display for CgroupId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A cgroup's child as its directory lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Child {
    /// Its name: any bytes but `/` and NUL.
    pub name: OsString,
    /// Its identity.
    pub id: CgroupId,
}

/// What all cgroups of a mount share.
#[derive(Debug)]
pub(super) struct Hierarchy {
    /// Where it is mounted.
    pub(super) mount_point: PathBuf,
    /// The device number of the mount.
    pub(super) device: u64,
    pub(super) recursiveprot: bool,
    pub(super) nsdelegate: bool,
    /// The directory of the sysctls `vm.*`.
    pub(super) vm_sysctls: String,
}

/// A directory's inode number and device.
pub(super) fn directory_id(directory: &OwnedFd, path: &Path) -> Result<(CgroupId, u64)> {
    let stat = rustix::fs::fstat(directory).map_err(|errno| Error::Io {
        operation: Operation::Stat,
        path: path.to_owned(),
        errno,
    })?;
    Ok((CgroupId(stat.st_ino), stat.st_dev))
}
