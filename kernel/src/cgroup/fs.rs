//! The cgroup v2 mount, and its lock.

use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;

use super::dir::{Cgroup, Hierarchy, directory_id};
use crate::buffer::read_path;
use crate::error::{Error, Operation, Result};
use crate::mount;

/// The directory of the sysctls `vm.*`.
const VM_SYSCTLS: &str = "/proc/sys/vm";

/// A mounted cgroup v2 hierarchy. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CgroupFs {
    root: Cgroup,
}

impl CgroupFs {
    /// The cgroup v2 mount at `path`.
    ///
    /// # Errors
    /// When there is no such directory, or another filesystem is there (`statfs` magic).
    pub fn open(path: &Path) -> Result<Self> {
        let directory = open_directory(path)?;
        let magic = rustix::fs::fstatfs(&directory)
            .map_err(|errno| Error::Io {
                operation: Operation::Stat,
                path: path.to_owned(),
                errno,
            })?
            .f_type;
        // linux/magic.h: CGROUP2_SUPER_MAGIC
        if u64::try_from(magic) == Ok(0x6367_7270) {
            let nsdelegate = options(path).is_some_and(|mount| mount.nsdelegate);
            let system = (VM_SYSCTLS, Path::new("/"));
            Self::from_directory(directory, path, nsdelegate, system)
        } else {
            Err(Error::NotCgroup2 {
                path: path.to_owned(),
                found: format!("a filesystem of type {magic:#x}"),
            })
        }
    }

    /// The hierarchy that `/proc/self/mountinfo` names: at `/sys/fs/cgroup` if it is mounted
    /// there, otherwise the first that shows the whole tree (`/sys/fs/cgroup/unified` on hybrid
    /// layouts, which has no controllers).
    ///
    /// # Errors
    /// When the table cannot be read, or no cgroup v2 filesystem is mounted.
    pub fn discover() -> Result<Self> {
        let found = discover(Path::new("/proc"))?;
        Self::open(&found.path)
    }

    /// A plain directory tree that looks like a cgroup v2 mount: for fixtures in tests. The sysctls `vm.*` are files in its
    /// root, so that no test touches those of the machine, and it is the [`system_root`](CgroupFs::system_root), too.
    ///
    /// # Errors
    /// When the directory cannot be opened.
    pub fn open_fixture(path: &Path) -> Result<Self> {
        let vm = path.to_string_lossy();
        Self::from_directory(open_directory(path)?, path, true, (&vm, path))
    }

    fn from_directory(
        directory: OwnedFd,
        path: &Path,
        nsdelegate: bool,
        (vm_sysctls, system_root): (&str, &Path),
    ) -> Result<Self> {
        let (id, device) = directory_id(&directory, path)?;
        let hierarchy = Arc::new(Hierarchy {
            mount_point: path.to_owned(),
            device,
            nsdelegate,
            vm_sysctls: vm_sysctls.to_owned(),
            system_root: system_root.to_owned(),
        });
        Ok(Self {
            root: Cgroup::new(hierarchy, directory, id, None, PathBuf::new()),
        })
    }

    /// The root of the hierarchy. Inside a cgroup namespace this is the namespace's root.
    #[must_use]
    pub const fn root(&self) -> &Cgroup {
        &self.root
    }

    /// Whether the root of a cgroup namespace is a delegation (mount option `nsdelegate`): processes in the namespace
    /// cannot write what limits, weighs and protects its root.
    #[must_use]
    pub fn nsdelegate(&self) -> bool {
        self.root.hierarchy().nsdelegate
    }

    /// The root of the file system in which container runtimes and systemd keep their files: `/`.
    #[must_use]
    pub fn system_root(&self) -> &Path {
        &self.root.hierarchy().system_root
    }
}

impl Cgroup {
    /// The cgroup at `path` relative to the mount (a leading `/`, as in `/proc/PID/cgroup`, is
    /// passed over; an empty path is the root).
    ///
    /// # Errors
    /// [`Error::InvalidName`] for `..`; [`Error::Gone`] when there is no such cgroup.
    pub fn open_at(fs: &CgroupFs, path: &Path) -> Result<Self> {
        let mut cgroup = fs.root().clone();
        for component in path.components() {
            match component {
                Component::RootDir | Component::CurDir => {}
                Component::Normal(name) => cgroup = cgroup.child(name)?,
                Component::ParentDir | Component::Prefix(_) => {
                    return Err(Error::InvalidName {
                        path: path.to_owned(),
                    });
                }
            }
        }
        Ok(cgroup)
    }
}

fn open_directory(path: &Path) -> Result<OwnedFd> {
    rustix::fs::openat(
        CWD,
        path,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
    .map_err(|errno| Error::Io {
        operation: Operation::Open,
        path: path.to_owned(),
        errno,
    })
}

/// The mount to use according to the mount table below `proc`.
pub(crate) fn discover(proc: &Path) -> Result<mount::CgroupMount> {
    let path = proc.join("self/mountinfo");
    mount::preferred(mounts(&path)?).ok_or(Error::NotMounted { path })
}

fn mounts(mountinfo: &Path) -> Result<Vec<mount::CgroupMount>> {
    read_path(mountinfo, mount::cgroup_mounts)
}

/// The mount at `path` with its options. If the table cannot be read or does not name the path, none: the careful
/// answer, since callers then protect every level themselves.
fn options(path: &Path) -> Option<mount::CgroupMount> {
    let path = path.canonicalize().ok()?;
    // The last mount at a path is the one that is seen there.
    let mounts = mounts(Path::new("/proc/self/mountinfo")).ok()?;
    mounts.into_iter().rev().find(|mount| mount.path == path)
}

// A lock on a whole hierarchy, for programs that write its knobs.

/// The file that is locked. It is the same inode in every mount namespace that shows this root, and only its owner, root,
/// can open it at all: on any file that others may read, they could hold the lock.
const FILE: &str = "memory.reclaim";

impl CgroupFs {
    /// Locks the hierarchy, until the descriptor is closed or this process ends. `None` where there is nothing to lock: no
    /// `memory.reclaim` (before 5.19), or one that this process may not write.
    ///
    /// # Errors
    /// `EAGAIN` when another process holds the lock; else as every operation on a [`Cgroup`](super::Cgroup).
    pub fn lock(&self) -> Result<Option<OwnedFd>> {
        let fd = match self.root().open(FILE, OFlags::WRONLY) {
            Ok(fd) => fd,
            Err(error) => match error.errno() {
                Some(Errno::NOENT | Errno::ROFS | Errno::ACCESS | Errno::PERM) => return Ok(None),
                _ => return Err(error),
            },
        };
        flock(&fd, FlockOperation::NonBlockingLockExclusive)
            .map_err(|errno| self.root().failed(Operation::Lock, Some(FILE), errno))?;
        Ok(Some(fd))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hierarchy_is_locked_once_and_one_without_the_file_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let open = || CgroupFs::open_fixture(dir.path()).unwrap();
        assert!(open().lock().unwrap().is_none());
        std::fs::write(dir.path().join(FILE), "").unwrap();
        let held = open().lock().unwrap();
        assert!(held.is_some());
        let error = open().lock().unwrap_err();
        assert_eq!(error.errno(), Some(Errno::AGAIN), "{error}");
        assert!(error.to_string().starts_with("lock "), "{error}");
        drop(held);
        assert!(open().lock().unwrap().is_some());
    }
}
