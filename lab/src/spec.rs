//! What a guest's disk is to be like: as experiments write it, and as the virtual machine takes it.

use serde::{Deserialize, Serialize};

/// A file system to make on a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Filesystem {
    /// ext4 with its defaults.
    Ext4,
    /// XFS with its defaults.
    Xfs,
    /// btrfs with its defaults.
    Btrfs,
}

impl std::fmt::Display for Filesystem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        })
    }
}

/// The speed of a disk. 0 means without limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Throttle {
    /// Bytes per second, reads and writes together.
    pub bytes_per_second: u64,
    /// Requests per second, reads and writes together.
    pub requests_per_second: u64,
}

/// What disk a guest gets: `/dev/vda`, `/dev/vdb` … in the order in which they are asked for.
#[derive(Clone, Copy, Debug)]
pub struct DiskSpec {
    /// In bytes; the file is sparse.
    pub size: u64,
    /// Made on it before the guest starts; `None` leaves it blank.
    pub filesystem: Option<Filesystem>,
    /// The size of ext4's journal in bytes; 0 is what mkfs.ext4 chooses for a disk of this size.
    pub journal: u64,
    /// Its speed.
    pub throttle: Throttle,
}

impl DiskSpec {
    /// An ext4 disk at 60 MB/s, the lab's usual one.
    #[must_use]
    pub const fn ext4(size: u64) -> Self {
        Self::of(Some(Filesystem::Ext4), size)
    }

    /// The same with another file system, or without one.
    #[must_use]
    pub const fn of(filesystem: Option<Filesystem>, size: u64) -> Self {
        Self {
            size,
            filesystem,
            journal: 0,
            throttle: Throttle {
                bytes_per_second: 60_000_000,
                requests_per_second: 0,
            },
        }
    }

    /// As fast as the machine.
    #[must_use]
    pub fn unthrottled(self) -> Self {
        Self {
            throttle: Throttle::default(),
            ..self
        }
    }
}
