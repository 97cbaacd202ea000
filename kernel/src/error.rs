//! Errors of operations on kernel interfaces.

use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::parse::ParseError;

/// The result of an operation on a kernel interface.
pub type Result<T> = std::result::Result<T, Error>;

/// What was being done when an [`Error`] arose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Opening a file or a directory.
    Open,
    /// Reading a file.
    Read,
    /// Writing a file.
    Write,
    /// Reading a directory.
    List,
    /// Asking for a file's or a filesystem's attributes.
    Stat,
    /// Placing or draining an inotify watch.
    Watch,
    /// Locking a file.
    Lock,
}

impl std::fmt::Display for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Open => "open",
            Self::Read => "read",
            Self::Write => "write",
            Self::List => "list",
            Self::Stat => "stat",
            Self::Watch => "watch",
            Self::Lock => "lock",
        })
    }
}

/// An operation on a kernel interface that failed. Paths are shown escaped, because a cgroup's
/// name may hold anything but `/` and NUL.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The cgroup was removed before or during the operation. A normal event.
    #[error("{operation} {path:?}: the cgroup is gone")]
    Gone {
        /// What was being done.
        operation: Operation,
        /// On which file.
        path: PathBuf,
    },
    /// The kernel refused the operation.
    #[error("{operation} {path:?}: {errno}")]
    Io {
        /// What was being done.
        operation: Operation,
        /// On which file.
        path: PathBuf,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The kernel took only part of a write that has to be whole.
    #[error("write {path:?}: {written} of {length} bytes were taken")]
    ShortWrite {
        /// Which file.
        path: PathBuf,
        /// How many bytes the kernel took.
        written: usize,
        /// How many it was given.
        length: usize,
    },
    /// The file does not have the format of its kind.
    #[error("parse {path:?}: {source}")]
    Parse {
        /// Which file.
        path: PathBuf,
        /// Where in it, what was expected, what was found.
        source: ParseError,
    },
    /// The file is larger than any of its kind can be; nothing of it was used.
    #[error("read {path:?}: expected at most {limit} bytes, found more")]
    TooLarge {
        /// Which file.
        path: PathBuf,
        /// The bound in bytes.
        limit: usize,
    },
    /// The directory is not (or no longer) on the cgroup v2 filesystem.
    #[error("open {path:?}: expected a cgroup v2 directory, found {found}")]
    NotCgroup2 {
        /// Which directory.
        path: PathBuf,
        /// What it is instead.
        found: String,
    },
    /// No cgroup v2 filesystem is mounted.
    #[error(
        "read {path:?}: expected a cgroup2 mount, found none; \
         mount one: mount -t cgroup2 none /sys/fs/cgroup"
    )]
    NotMounted {
        /// The mount table that was searched.
        path: PathBuf,
    },
    /// A name that no child of a cgroup can have, or a path that leaves the tree.
    #[error("open {path:?}: expected a path below the mount, of plain names")]
    InvalidName {
        /// The name or path.
        path: PathBuf,
    },
}

impl Error {
    /// Whether the cgroup was removed. Callers forget the cgroup and go on.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        matches!(self, Self::Gone { .. })
    }

    /// Whether the file does not exist while its cgroup does: the controller is not enabled there,
    /// or this kernel does not have the interface.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.errno() == Some(Errno::NOENT)
    }

    /// Whether this process or the system lacks a resource at this moment: see [`is_exhaustion`].
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.errno().is_some_and(is_exhaustion)
    }

    /// The kernel's error number, where it gave one.
    #[must_use]
    pub const fn errno(&self) -> Option<Errno> {
        match self {
            Self::Io { errno, .. } => Some(*errno),
            _ => None,
        }
    }

    /// The file or directory concerned.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Gone { path, .. }
            | Self::Io { path, .. }
            | Self::ShortWrite { path, .. }
            | Self::Parse { path, .. }
            | Self::TooLarge { path, .. }
            | Self::NotCgroup2 { path, .. }
            | Self::NotMounted { path }
            | Self::InvalidName { path } => path,
        }
    }
}

/// Whether an error number says that this process or the system lacks file descriptors or memory at this moment. It says
/// nothing of the file then.
#[must_use]
pub const fn is_exhaustion(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE | Errno::NOMEM)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn io(errno: Errno) -> Error {
        Error::Io {
            operation: Operation::Open,
            path: PathBuf::from("/sys/fs/cgroup/a\nb/memory.low"),
            errno,
        }
    }

    #[test]
    fn message_names_operation_and_escaped_path() {
        let text = io(Errno::ACCESS).to_string();
        assert!(
            text.starts_with(r#"open "/sys/fs/cgroup/a\nb/memory.low": "#),
            "{text}"
        );
    }

    #[test]
    fn lack_of_descriptors_or_memory_says_nothing_of_the_file() {
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOMEM] {
            assert!(io(errno).is_exhausted(), "{errno}");
        }
        for errno in [Errno::NOENT, Errno::ACCESS, Errno::ROFS, Errno::NOSPC] {
            assert!(!io(errno).is_exhausted(), "{errno}");
        }
    }

    #[test]
    fn missing_is_not_gone() {
        assert!(io(Errno::NOENT).is_missing());
        assert!(!io(Errno::NOENT).is_gone());
        assert!(!io(Errno::ACCESS).is_missing());
        let gone = Error::Gone {
            operation: Operation::Read,
            path: PathBuf::from("x"),
        };
        assert!(gone.is_gone() && !gone.is_missing());
        assert_eq!(gone.path(), Path::new("x"));
    }
}
