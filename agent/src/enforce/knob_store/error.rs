//! Why the knob store cannot be used.

use std::path::PathBuf;

use crate::enforce::journal::JournalError;

/// Why the knob store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KnobStoreError {
    /// The state directory cannot be used.
    #[error("the state directory {path}: {source}")]
    State {
        /// Which directory.
        path: PathBuf,
        /// What was found there, or the system's error.
        source: std::io::Error,
    },
    /// The lock file in it, which excludes a second agent, cannot be used.
    #[error("the lock {path}: {source}")]
    Lock {
        /// Which file.
        path: PathBuf,
        /// What was found there, or the system's error.
        source: std::io::Error,
    },
    /// Another agent holds the lock.
    #[error("another agent is running with the state directory {0}; stop it first")]
    Busy(PathBuf),
    /// Another agent works on the same cgroups.
    #[error(
        "another agent is running on the cgroups at {path}, with another state directory or in a container; stop it \
         first: each would take what the other writes for an operator's. Its process holds a lock on inode {inode} \
         in /proc/locks"
    )]
    RootBusy {
        /// Where the cgroups are mounted.
        path: PathBuf,
        /// The inode of the file that is locked.
        inode: u64,
    },
    /// The journal cannot be read or written, or is corrupt.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A cgroup file cannot be read or written.
    #[error(transparent)]
    Kernel(#[from] justitia_kernel::Error),
}

impl KnobStoreError {
    /// Whether another agent is running.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        matches!(self, Self::Busy(_) | Self::RootBusy { .. })
    }

    /// Whether the journal is readable but corrupt. Trying again does not help then.
    #[must_use]
    pub const fn is_corruption(&self) -> bool {
        matches!(self, Self::Journal(JournalError::Corrupt { .. }))
    }
}
