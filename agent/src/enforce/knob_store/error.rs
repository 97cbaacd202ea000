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
    /// The journal cannot be read or written, or is corrupt.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A cgroup file cannot be read or written.
    #[error(transparent)]
    Kernel(#[from] justitia_kernel::Error),
}

impl KnobStoreError {
    /// Whether the journal is readable but corrupt. Trying again does not help then.
    #[must_use]
    pub const fn is_corruption(&self) -> bool {
        matches!(self, Self::Journal(JournalError::Corrupt { .. }))
    }
}
