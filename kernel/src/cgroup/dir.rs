//! One cgroup: an open directory.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::hierarchy::{CgroupId, Hierarchy, directory_id};
use crate::error::{Error, Operation, Result};

/// A handle to a cgroup, dead or alive. It holds one file descriptor; clones share it.
#[derive(Clone, Debug)]
pub struct Cgroup(Arc<Node>);

#[derive(Debug)]
struct Node {
    hierarchy: Arc<Hierarchy>,
    directory: OwnedFd,
    id: CgroupId,
    parent: Option<CgroupId>,
    path: PathBuf,
}

/// Flags for every open: nothing in cgroupfs is a symbolic link.
pub(super) const OPEN: OFlags = OFlags::CLOEXEC.union(OFlags::NOFOLLOW);

impl Cgroup {
    pub(super) fn new(
        hierarchy: Arc<Hierarchy>,
        directory: OwnedFd,
        id: CgroupId,
        parent: Option<CgroupId>,
        path: PathBuf,
    ) -> Self {
        Self(Arc::new(Node {
            hierarchy,
            directory,
            id,
            parent,
            path,
        }))
    }

    pub(super) fn hierarchy(&self) -> &Hierarchy {
        &self.0.hierarchy
    }

    /// The directory of the sysctls `vm.*`.
    pub(crate) fn vm_sysctls(&self) -> &str {
        &self.0.hierarchy.vm_sysctls
    }

    /// Its identity.
    #[must_use]
    pub fn id(&self) -> CgroupId {
        self.0.id
    }

    /// The identity of the cgroup it was opened from; `None` for the root.
    #[must_use]
    pub fn parent_id(&self) -> Option<CgroupId> {
        self.0.parent
    }

    /// Its path relative to the mount when it was opened; empty for the root. May not be UTF-8.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Its last name; `None` for the root.
    #[must_use]
    pub fn name(&self) -> Option<&OsStr> {
        self.0.path.file_name()
    }

    /// Whether it is the root of the hierarchy (or of the cgroup namespace).
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.parent.is_none()
    }

    /// Its path with the mount's: for messages.
    #[must_use]
    pub fn full_path(&self) -> PathBuf {
        self.0.hierarchy.mount_point.join(&self.0.path)
    }

    /// Its child `name`.
    ///
    /// # Errors
    /// [`Error::Gone`] when there is none; [`Error::InvalidName`] if `name` is not a single name;
    /// [`Error::NotCgroup2`] when something else is mounted over it; [`Error::Io`] when `name` is
    /// a file (`ENOTDIR`).
    pub fn child(&self, name: &OsStr) -> Result<Self> {
        let bytes = name.as_bytes();
        if bytes.is_empty()
            || bytes == b"."
            || bytes == b".."
            || bytes.contains(&b'/')
            || bytes.contains(&0)
        {
            return Err(Error::InvalidName { path: name.into() });
        }
        let path = self.0.path.join(name);
        let full = || self.0.hierarchy.mount_point.join(&path);
        let directory = rustix::fs::openat(
            &self.0.directory,
            name,
            OPEN | OFlags::PATH | OFlags::DIRECTORY,
            Mode::empty(),
        )
        .map_err(|errno| match errno {
            Errno::NOENT | Errno::NODEV => Error::Gone {
                operation: Operation::Open,
                path: full(),
            },
            errno => Error::Io {
                operation: Operation::Open,
                path: full(),
                errno,
            },
        })?;
        let (id, device) = directory_id(&directory, &path)?;
        if device != self.0.hierarchy.device {
            return Err(Error::NotCgroup2 {
                path: full(),
                found: "another filesystem mounted over it".to_owned(),
            });
        }
        let hierarchy = Arc::clone(&self.0.hierarchy);
        Ok(Self::new(hierarchy, directory, id, Some(self.0.id), path))
    }
}

/// The directory's descriptor (`O_PATH`).
impl AsFd for Cgroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.directory.as_fd()
    }
}
