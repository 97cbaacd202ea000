//! Locks of the state directory, which only its owner may write, and of the cgroups: one agent uses each at a time.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use justitia_common::regular_file;
use justitia_kernel::cgroup::CgroupFs;
use rustix::fs::{FlockOperation, OFlags, flock};

use super::holder;
use super::journal::JournalError;

/// Creates the directory if it is missing, and takes its lock.
///
/// # Errors
/// [`KnobStoreError::Busy`] if another agent holds the lock, [`KnobStoreError::Killed`] if that one was killed; otherwise the
/// file's fault or the system's error.
pub(super) fn lock(fs: &CgroupFs, state: &Path) -> Result<File, KnobStoreError> {
    use std::os::unix::fs::DirBuilderExt;
    let error = |source| KnobStoreError::State {
        path: state.to_owned(),
        source,
    };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(state)
        .map_err(error)?;
    check_owner(state).map_err(error)?;
    let path = state.join("lock");
    take(&path)?
        .ok_or_else(|| killed(fs, &path).unwrap_or_else(|| KnobStoreError::Busy(state.to_owned())))
}

/// Takes the second lock of a state directory. A reset holds it while a killed agent still holds the first, which becomes free
/// when that agent ends. A starting agent takes the second for a moment after the first. So either the reset finds the first
/// lock taken by the new agent, or the new agent finds the reset.
///
/// # Errors
/// [`KnobStoreError::Resetting`] if a reset holds it; otherwise the file's fault or the system's error.
pub(super) fn lock_reset(state: &Path) -> Result<File, KnobStoreError> {
    take(&state.join("lock.reset"))?.ok_or_else(|| KnobStoreError::Resetting(state.to_owned()))
}

/// The file `path`, created if missing, and locked. `None` if another process holds its lock.
fn take(path: &Path) -> Result<Option<File>, KnobStoreError> {
    let error = |source| KnobStoreError::Lock {
        path: path.to_owned(),
        source,
    };
    // An existing file is not truncated.
    let file = regular_file::open(path, OFlags::RDWR | OFlags::CREATE).map_err(error)?;
    match flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(e) => Err(error(e.into())),
    }
}

/// The error if a killed agent holds this lock.
fn killed(fs: &CgroupFs, path: &Path) -> Option<KnobStoreError> {
    let process = holder::killed(&fs.system_root().join("proc"), path)?;
    let path = path.to_owned();
    Some(KnobStoreError::Killed { process, path })
}

/// Takes the lock of the cgroups. Agents with other state directories and in other mount namespaces take it, too. `None` if
/// there is nothing to lock.
///
/// # Errors
/// [`KnobStoreError::RootBusy`] if another agent holds the lock, [`KnobStoreError::Killed`] if that one was killed; otherwise
/// the system's error.
pub(super) fn lock_cgroups(fs: &CgroupFs) -> Result<Option<OwnedFd>, KnobStoreError> {
    fs.lock().map_err(|error| match error.errno() {
        Some(rustix::io::Errno::AGAIN) => {
            let path = fs.root().full_path();
            let file = path.join("memory.reclaim");
            if let Some(killed) = killed(fs, &file) {
                return killed;
            }
            let inode = std::fs::metadata(file);
            KnobStoreError::RootBusy {
                path,
                inode: inode.map_or(0, |found| std::os::unix::fs::MetadataExt::ino(&found)),
            }
        }
        _ => error.into(),
    })
}

/// A user with write access to the directory could have other files overwritten, or choose which knobs are restored.
fn check_owner(state: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let found = std::fs::metadata(state)?;
    let ours = rustix::process::geteuid().as_raw();
    if [0, ours].contains(&found.uid()) && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(std::io::Error::other(format!(
        "expected a directory that only its owner, root, may write, found one of the user {} with mode {:03o}: \
         change that, or name another as `state_dir` in the configuration",
        found.uid(),
        found.mode() & 0o777
    )))
}

/// Why the knob store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KnobStoreError {
    /// The state directory cannot be used.
    #[error("the state directory {path}: {source}")]
    State {
        /// The directory.
        path: PathBuf,
        /// The directory's fault or the system's error.
        source: std::io::Error,
    },
    /// The lock file in it, which excludes a second agent, cannot be used.
    #[error("the lock {path}: {source}")]
    Lock {
        /// The file.
        path: PathBuf,
        /// The file's fault or the system's error.
        source: std::io::Error,
    },
    /// Another agent holds the lock.
    #[error("another agent is running with the state directory {0}; stop it first")]
    Busy(PathBuf),
    /// A reset is restoring a killed agent's knobs there.
    #[error("`justitia reset` is working on the state directory {0}; wait until it is done")]
    Resetting(PathBuf),
    /// Another agent works on the same cgroups.
    #[error(
        "another agent is running on the cgroups at {path}, with another state directory or in a container; stop it \
         first: each would take what the other writes for an operator's. Its process holds a lock on inode {inode} \
         in /proc/locks"
    )]
    RootBusy {
        /// The mount of the cgroups.
        path: PathBuf,
        /// The inode of the locked file.
        inode: u64,
    },
    /// A killed agent holds a lock and has not ended yet.
    #[error(
        "the agent of process {process} was killed and has not ended: a thread of it waits in the kernel, for memory or a disk, and \
         keeps {path} locked until then. No agent can start before that; `justitia reset` restores what it has left"
    )]
    Killed {
        /// Its process.
        process: u32,
        /// The locked file.
        path: PathBuf,
    },
    /// The journal cannot be read or written, or is corrupt.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A cgroup file cannot be read or written.
    #[error(transparent)]
    Kernel(#[from] justitia_kernel::Error),
}

impl KnobStoreError {
    /// Whether another agent or a reset is running, or an agent was killed and has not ended.
    #[must_use]
    pub const fn is_busy(&self) -> bool {
        matches!(
            self,
            Self::Busy(_) | Self::Resetting(_) | Self::RootBusy { .. } | Self::Killed { .. }
        )
    }

    /// Whether the journal is readable but corrupt. Trying again does not help then.
    #[must_use]
    pub const fn is_corruption(&self) -> bool {
        matches!(self, Self::Journal(JournalError::Corrupt { .. }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As [`super::lock`], of cgroups that are not there.
    fn lock(state: &Path) -> Result<File, KnobStoreError> {
        let fs = CgroupFs::open_fixture(state.parent().unwrap()).unwrap();
        super::lock(&fs, state)
    }

    /// The error of `lock` where something other than a lock file stands; it must not block.
    fn refused(state: &Path) -> String {
        let state = state.to_owned();
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || sender.send(lock(&state).map_err(|e| e.to_string())));
        let locked = receiver.recv_timeout(std::time::Duration::from_secs(20));
        locked.expect("lock() returns").unwrap_err()
    }

    #[test]
    fn a_pipe_or_a_symbolic_link_in_the_locks_place_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (state, precious) = (dir.path().join("state"), dir.path().join("precious"));
        drop(lock(&state).unwrap());
        let path = state.join("lock");

        std::fs::remove_file(&path).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
        let error = refused(&state);
        assert_eq!(
            error,
            format!(
                "the lock {}: expected a regular file, found a pipe: see who has put it there, and remove it",
                path.display()
            )
        );

        std::fs::remove_file(&path).unwrap();
        std::fs::write(&precious, "1").unwrap();
        std::os::unix::fs::symlink(&precious, &path).unwrap();
        let error = refused(&state);
        assert!(error.contains("found a symbolic link"), "{error}");
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "1");
    }

    #[test]
    fn taking_the_lock_keeps_the_files_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        std::fs::write(&path, "1").unwrap();
        let held = lock(dir.path()).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "1");
        assert!(matches!(lock(dir.path()), Err(KnobStoreError::Busy(_))));
        drop(held);
    }
}
