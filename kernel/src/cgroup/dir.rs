//! One cgroup: an open directory, its files and its children.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::buffer::{End, ReadError, read_to_end, with_buffer};
use crate::error::{Error, Operation, Result};
use crate::parse::Parsed;

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

// The identity of a cgroup, and the state that all cgroups of a mount share.

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
    pub(super) nsdelegate: bool,
    /// The directory of the sysctls `vm.*`.
    pub(super) vm_sysctls: String,
    /// The root of the files that are not the kernel's.
    pub(super) system_root: PathBuf,
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

// Opening, reading and writing a cgroup's files.

impl Cgroup {
    /// Opens one of its files.
    pub(crate) fn open(&self, file: &str, flags: OFlags) -> Result<OwnedFd> {
        rustix::fs::openat(self, file, OPEN | flags, Mode::empty())
            .map_err(|errno| self.failed(Operation::Open, Some(file), errno))
    }

    /// Reads one of its files and parses it.
    pub(crate) fn read<T>(&self, file: &str, parse: impl FnOnce(&[u8]) -> Parsed<T>) -> Result<T> {
        let fd = self.open(file, OFlags::RDONLY)?;
        with_buffer(|buffer| {
            read_to_end(&fd, buffer, End::ShortRead, false).map_err(|error| match error {
                ReadError::Errno(errno) => self.failed(Operation::Read, Some(file), errno),
                ReadError::TooLarge => error.at(self.file_path(Some(file))),
            })?;
            parse(buffer).map_err(|source| Error::Parse {
                path: self.file_path(Some(file)),
                source,
            })
        })
    }

    /// Writes one of its files in one `write(2)`, as the kernel wants it.
    pub(crate) fn write(&self, file: &str, text: &str) -> Result<()> {
        let fd = self.open(file, OFlags::WRONLY)?;
        let written = rustix::io::write(&fd, text.as_bytes())
            .map_err(|errno| self.failed(Operation::Write, Some(file), errno))?;
        if written == text.len() {
            Ok(())
        } else {
            Err(Error::ShortWrite {
                path: self.file_path(Some(file)),
                written,
                length: text.len(),
            })
        }
    }

    /// The error for a failed operation. ENOENT and ENODEV have other causes than a removed cgroup
    /// (a controller that is not enabled, a device that does not exist), so ask the directory.
    pub(crate) fn failed(&self, operation: Operation, file: Option<&str>, errno: Errno) -> Error {
        let path = self.file_path(file);
        if matches!(errno, Errno::NOENT | Errno::NODEV) && !self.is_alive() {
            Error::Gone { operation, path }
        } else {
            Error::Io {
                operation,
                path,
                errno,
            }
        }
    }

    fn file_path(&self, file: Option<&str>) -> PathBuf {
        let mut path = self.full_path();
        path.extend(file);
        path
    }
}

// The children of a cgroup, as its directory lists them.

impl Cgroup {
    /// Whether the directory still exists.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        // Listing a removed directory is refused by the VFS (S_DEAD), whichever the filesystem.
        !matches!(
            self.read_directory(|_, _| ControlFlow::Stop),
            Err(Errno::NOENT)
        )
    }

    /// The names of its children, in the directory's order.
    ///
    /// # Errors
    /// [`Error::Gone`](crate::error::Error::Gone), and as the kernel refuses to list the directory.
    pub fn children(&self) -> Result<Vec<OsString>> {
        let children = self.child_entries()?;
        Ok(children.into_iter().map(|child| child.name).collect())
    }

    /// Its children with their identities, from one listing. Compared with an earlier one it shows every creation, removal
    /// and reuse of a name, without opening anything.
    ///
    /// # Errors
    /// [`Error::Gone`](crate::error::Error::Gone), and as the kernel refuses to list the directory.
    pub fn child_entries(&self) -> Result<Vec<Child>> {
        let mut children = Vec::new();
        self.read_directory(|name, id| {
            children.push(Child {
                name: OsString::from_vec(name.to_owned()),
                id,
            });
            ControlFlow::Continue
        })
        .map_err(|errno| self.failed(Operation::List, None, errno))?;
        Ok(children)
    }

    /// Calls `visit` for each directory in this one.
    fn read_directory(
        &self,
        mut visit: impl FnMut(&[u8], CgroupId) -> ControlFlow,
    ) -> std::result::Result<(), Errno> {
        let directory = rustix::fs::openat(
            self,
            ".",
            OPEN | OFlags::RDONLY | OFlags::DIRECTORY,
            Mode::empty(),
        )?;
        with_buffer(|buffer| {
            let mut entries = RawDir::new(&directory, buffer.spare_capacity_mut());
            while let Some(entry) = entries.next() {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                let is_directory = match entry.file_type() {
                    FileType::Directory => true,
                    // Not on cgroupfs, but on some filesystems that hold fixtures.
                    FileType::Unknown => is_directory(&directory, entry.file_name()),
                    _ => false,
                };
                if is_directory
                    && name != b"."
                    && name != b".."
                    && matches!(visit(name, CgroupId(entry.ino())), ControlFlow::Stop)
                {
                    break;
                }
            }
            Ok(())
        })
    }
}

/// Whether to go on with a listing.
enum ControlFlow {
    Continue,
    Stop,
}

fn is_directory(directory: &OwnedFd, name: &std::ffi::CStr) -> bool {
    rustix::fs::statat(directory, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}
