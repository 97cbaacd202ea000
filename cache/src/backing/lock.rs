//! No other process may write an image that is served: the cache would not see it.
//!
//! The locks are QEMU's (`block/file-posix.c` documents them): open-file-description locks on single bytes,
//! one for each permission that is used and one for each that is not shared with others. So QEMU refuses an
//! image that Justitia serves, and the other way round. Block devices are also opened with `O_EXCL`, even
//! to be read: that keeps out mounts and device mappers, and any other server.
//!
//! The locked open file is the one that io_uring writes through. Requests of a killed process go on in the kernel, and
//! each has a reference to the open file: the kernel releases the locks with the last of them.

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Byte `PERMISSION + p` is locked by a process that uses permission `p`.
const PERMISSION: libc::off_t = 100;
/// Byte `UNSHARED + p` is locked by a process that does not share permission `p` with others.
const UNSHARED: libc::off_t = 200;

const CONSISTENT_READ: libc::off_t = 0;
const WRITE: libc::off_t = 1;
const RESIZE: libc::off_t = 3;

/// Why an image could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process uses it.
    #[error(
        "expected a file or device that nobody else uses, found it in use (by a QEMU, another `justitia cache serve` or, a block device, by a mount): end that first; writes of a server that was killed count until the disk has answered them"
    )]
    Busy,
    /// The file system has no locks.
    #[error("cannot lock it: {0}")]
    Io(#[from] io::Error),
}

/// Takes the locks for as long as `file` is open, here or in requests in flight.
pub(crate) fn take(file: &File, read_only: bool) -> Result<(), LockError> {
    let used: &[_] = if read_only {
        &[CONSISTENT_READ]
    } else {
        &[CONSISTENT_READ, WRITE, RESIZE]
    };
    // Readers do not share writing either: cached blocks would become stale.
    let unshared = [WRITE, RESIZE];
    for p in used {
        set(file, PERMISSION + p)?;
    }
    for p in unshared {
        set(file, UNSHARED + p)?;
    }
    let foreign = used
        .iter()
        .map(|p| UNSHARED + p)
        .chain(unshared.iter().map(|p| PERMISSION + p));
    for byte in foreign {
        if held_by_another(file, byte)? {
            return Err(LockError::Busy);
        }
    }
    Ok(())
}

/// Does somebody have the lock against writers, by whatever open file? [`take`] then says whether it is this one.
pub(crate) fn is_taken(file: &File) -> bool {
    let again = format!("/proc/self/fd/{}", file.as_raw_fd());
    let again = File::open(again);
    again.is_ok_and(|again| held_by_another(&again, UNSHARED + WRITE).unwrap_or(false))
}

fn record(kind: libc::c_int, byte: libc::off_t) -> libc::flock {
    libc::flock {
        // The kernel's constants are 0 to 2.
        l_type: libc::c_short::try_from(kind).unwrap_or_default(),
        l_whence: 0,
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    }
}

fn set(file: &File, byte: libc::off_t) -> Result<(), LockError> {
    let lock = record(libc::F_RDLCK, byte);
    match fcntl(file, FcntlArg::F_OFD_SETLK(&lock)) {
        Ok(_) => Ok(()),
        Err(nix::errno::Errno::EAGAIN | nix::errno::Errno::EACCES) => Err(LockError::Busy),
        Err(e) => Err(LockError::Io(e.into())),
    }
}

/// Would a write lock conflict? Our own read locks do not count: they are this open file's.
fn held_by_another(file: &File, byte: libc::off_t) -> Result<bool, LockError> {
    let mut lock = record(libc::F_WRLCK, byte);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock)).map_err(|e| LockError::Io(e.into()))?;
    Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK)
}
