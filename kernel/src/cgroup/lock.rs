//! A lock on a whole hierarchy, for programs that write its knobs.

use std::os::fd::OwnedFd;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::CgroupFs;
use crate::error::{Operation, Result};

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
        let open = || CgroupFs::open_fixture(dir.path(), true).unwrap();
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
