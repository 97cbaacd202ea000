//! An image's file for io_uring.

use crate::block::len;
use io_uring::{opcode, squeue, types};
use parking_lot::lock_api::ArcRwLockReadGuard;
use parking_lot::{Mutex, RawRwLock, RwLock};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;

/// A file in which any range of whole sectors may be read and written.
pub struct ImageFile {
    file: Arc<File>,
    /// Offsets and lengths are multiples of this. 1 through the page cache.
    align: u64,
    /// Unaligned writes take it for writing: the kernel turns them into read-modify-write of whole sectors, which must not race
    /// with another direct write to the same sector.
    unaligned: Arc<RwLock<()>>,
    /// A write with `RWF_DSYNC` is durable when it has ended.
    dsync: bool,
    sync_errors: SyncErrors,
}

/// Aligned writes hold it and may overlap each other; unaligned writes wait for it.
pub(crate) type SharedWriteGuard = ArcRwLockReadGuard<RawRwLock, ()>;

impl ImageFile {
    pub(crate) fn new(file: Arc<File>, align: u64, dsync: bool, sync_errors: SyncErrors) -> Self {
        Self {
            file,
            align,
            unaligned: Arc::default(),
            dsync,
            sync_errors,
        }
    }

    /// Is a write with `RWF_DSYNC` durable when it has ended? If not, `fdatasync` must follow.
    pub(crate) const fn has_dsync(&self) -> bool {
        self.dsync
    }

    #[cfg(test)]
    pub(crate) const fn forget_dsync(&mut self) {
        self.dsync = false;
    }

    /// The record of failed syncs. Report the result of every sync to it.
    pub(crate) const fn sync_errors(&self) -> &SyncErrors {
        &self.sync_errors
    }

    pub(crate) const fn shared(&self) -> &Arc<File> {
        &self.file
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) const fn align(&self) -> u64 {
        self.align
    }

    pub(crate) fn unaligned(&self) -> &RwLock<()> {
        &self.unaligned
    }

    /// Is it a range of whole sectors?
    pub(crate) fn is_aligned(&self, off: u64, len: u64) -> bool {
        (off | len).is_multiple_of(self.align)
    }

    /// May this memory be used for a direct transfer at `off`?
    pub(crate) fn accepts(&self, off: u64, buf: &[u8]) -> bool {
        let memory = self.align == 1 || buf.as_ptr().addr().is_multiple_of(512);
        self.is_aligned(off, len(buf)) && memory
    }

    /// Reads into `buf`; `None` when that needs more than one transfer.
    pub(crate) fn read(&self, buf: &mut [u8], off: u64) -> Option<squeue::Entry> {
        let count = u32::try_from(buf.len()).ok()?;
        let file = types::Fd(self.file.as_raw_fd());
        self.accepts(off, buf).then(|| {
            opcode::Read::new(file, buf.as_mut_ptr(), count)
                .offset(off)
                .build()
        })
    }

    /// Writes `buf`, durably with `fua`. `None` when that needs more than one transfer, or an unaligned write is in flight.
    /// Report the result of a durable write to [`sync_errors`](Self::sync_errors). Keep the guard until the write has
    /// completed.
    pub(crate) fn write(
        &self,
        buf: &[u8],
        off: u64,
        fua: bool,
    ) -> Option<(squeue::Entry, SharedWriteGuard)> {
        if fua && !self.dsync {
            return None;
        }
        let count = u32::try_from(buf.len()).ok()?;
        let file = types::Fd(self.file.as_raw_fd());
        let beside = self.unaligned.try_read_arc()?;
        self.accepts(off, buf).then(|| {
            let flags = if fua {
                rustix::io::ReadWriteFlags::DSYNC.bits()
            } else {
                0
            };
            let entry = opcode::Write::new(file, buf.as_ptr(), count)
                .offset(off)
                .rw_flags(flags.cast_signed())
                .build();
            (entry, beside)
        })
    }

    /// Makes earlier writes durable. Report the result to [`sync_errors`](Self::sync_errors).
    pub(crate) fn sync(&self) -> squeue::Entry {
        opcode::Fsync::new(types::Fd(self.file.as_raw_fd()))
            .flags(types::FsyncFlags::DATASYNC)
            .build()
    }
}

// Acknowledged writes that never reached stable storage. The kernel reports an error once to each open file, and then drops the
// failed pages: a later `fdatasync` does not report them. So the error is remembered here.
//
// PostgreSQL learnt that in 2018 (<https://wiki.postgresql.org/wiki/Fsync_Errors>): after a failed sync the state of all writes
// since the last good one is unknown.

/// The kind of a sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sync {
    /// A flush.
    Flush,
    /// A write, discard or write-zeroes with FUA: durable before its answer.
    Write,
}

/// Remembers whether a sync of an image has failed since it was opened.
pub(crate) struct SyncErrors {
    image: PathBuf,
    /// A separate open file of the image that is never synced. The kernel reports an error to it even when it has already
    /// reported it to another connection's unfinished flush.
    witness: Option<File>,
    failed: Mutex<Option<String>>,
}

impl SyncErrors {
    pub(crate) const fn new(image: PathBuf, witness: Option<File>) -> Self {
        Self {
            image,
            witness,
            failed: Mutex::new(None),
        }
    }

    /// The first sync that has failed, and why.
    pub(crate) fn failure(&self) -> Option<String> {
        self.failed.lock().clone()
    }

    /// The result of a sync that has ended with `result`: an error also when an earlier sync has failed.
    pub(crate) fn settle(&self, sync: Sync, result: io::Result<()>) -> io::Result<()> {
        // Held while the witness is asked: an error is remembered before any other sync is answered.
        let mut failed = self.failed.lock();
        if failed.is_none() {
            let told = self.witnessed();
            let why = match (&result, told) {
                (Err(own), None) if sync == Sync::Write && was_not_begun(own) => None,
                (Err(own), _) => Some(own.to_string()),
                (Ok(()), told) => told.map(|told| told.to_string()),
            };
            if let Some(why) = why {
                tracing::error!(
                    image = %self.image.display(),
                    "{sync:?} failed: writes that were acknowledged may be lost; every flush and FUA write of the image fails until it is opened anew, by a restart: {why}"
                );
                *failed = Some(why);
            }
        }
        match &*failed {
            Some(why) if result.is_ok() => Err(io::Error::other(format!(
                "a flush of this image has failed before, and what was written until then may be lost: {why}"
            ))),
            _ => result,
        }
    }

    /// A writeback error that the witness has not reported yet.
    fn witnessed(&self) -> Option<io::Error> {
        let witness = self.witness.as_ref()?;
        // A range beyond any image: there is nothing to wait for, but the error is still reported.
        let (beyond, length) = (i64::MAX - 4095, 4095);
        let wait = nix::libc::SYNC_FILE_RANGE_WAIT_BEFORE;
        // SAFETY: no memory is passed, and the descriptor is open for as long as `witness` is borrowed.
        let done = unsafe { nix::libc::sync_file_range(witness.as_raw_fd(), beyond, length, wait) };
        let error = (done != 0).then(io::Error::last_os_error)?;
        // Ignore answers of a file system or sandbox that does not support the call.
        let unknown = [
            nix::libc::ENOSYS,
            nix::libc::ESPIPE,
            nix::libc::EINVAL,
            nix::libc::EPERM,
        ];
        let known = error
            .raw_os_error()
            .is_some_and(|code| !unknown.contains(&code));
        known.then_some(error)
    }
}

/// Does an error only mean that this write failed to start, and nothing about earlier writes?
fn was_not_begun(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge
            | io::ErrorKind::InvalidInput
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors() -> SyncErrors {
        let witness = tempfile::tempfile().unwrap();
        SyncErrors::new("image".into(), Some(witness))
    }

    #[test]
    fn after_a_failed_sync_every_later_one_fails() {
        for first in [Sync::Flush, Sync::Write] {
            let errors = errors();
            for sync in [Sync::Flush, Sync::Write] {
                errors.settle(sync, Ok(())).unwrap();
            }
            assert_eq!(errors.failure(), None);
            let eio = || io::Error::from_raw_os_error(nix::libc::EIO);
            assert!(errors.settle(first, Err(eio())).is_err());
            for sync in [Sync::Flush, Sync::Write, Sync::Flush] {
                let why = errors.settle(sync, Ok(())).unwrap_err().to_string();
                assert!(why.contains("has failed before"), "{why}");
            }
            assert!(errors.failure().is_some());
        }
    }

    #[test]
    fn a_write_for_which_there_is_no_space_says_nothing_of_others() {
        let errors = errors();
        let full = || Err(io::ErrorKind::StorageFull.into());
        assert!(errors.settle(Sync::Write, full()).is_err());
        errors.settle(Sync::Flush, Ok(())).unwrap();
        // A flush concerns acknowledged writes.
        assert!(errors.settle(Sync::Flush, full()).is_err());
        assert!(errors.settle(Sync::Write, Ok(())).is_err());
    }
}
