//! An image's file, as io_uring reads and writes it.

use super::sync_errors::SyncErrors;
use crate::block::len;
use io_uring::{opcode, squeue, types};
use parking_lot::lock_api::ArcRwLockReadGuard;
use parking_lot::{RawRwLock, RwLock};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// A file in which any range of whole sectors may be read and written.
pub struct DiskFile {
    file: Arc<File>,
    /// Offsets and lengths are multiples of this. 1 through the page cache.
    align: u64,
    /// Taken for writing by writes that are not aligned: the kernel turns them into read-modify-write of
    /// whole sectors, which must not meet another write to the same sector on the direct path.
    unaligned: Arc<RwLock<()>>,
    /// A write with `RWF_DSYNC` is durable when it has ended.
    dsync: bool,
    sync_errors: SyncErrors,
}

/// Held by aligned writes, which may overlap each other; writes that are not aligned wait for it.
pub(crate) type SharedWriteGuard = ArcRwLockReadGuard<RawRwLock, ()>;

impl DiskFile {
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

    /// Whether a sync has failed. Every one that ends, wherever it was made, must be told.
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

    /// May this memory be read into and written from at `off`?
    pub(crate) fn accepts(&self, off: u64, buf: &[u8]) -> bool {
        let memory = self.align == 1 || buf.as_ptr().addr().is_multiple_of(512);
        self.is_aligned(off, len(buf)) && memory
    }

    /// Reads into `buf`; `None` when that takes more than one transfer.
    pub(crate) fn read(&self, buf: &mut [u8], off: u64) -> Option<squeue::Entry> {
        let count = u32::try_from(buf.len()).ok()?;
        let file = types::Fd(self.file.as_raw_fd());
        self.accepts(off, buf).then(|| {
            opcode::Read::new(file, buf.as_mut_ptr(), count)
                .offset(off)
                .build()
        })
    }

    /// Writes `buf`, durably with `fua`; `None` when that takes more than one transfer, or a write that is
    /// not aligned is under way. What it ends with goes to [`sync_errors`](Self::sync_errors) if it was durable. The guard must be kept until it has come back.
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

    /// Puts what was written before on stable storage. What it ends with goes to [`sync_errors`](Self::sync_errors).
    pub(crate) fn sync(&self) -> squeue::Entry {
        opcode::Fsync::new(types::Fd(self.file.as_raw_fd()))
            .flags(types::FsyncFlags::DATASYNC)
            .build()
    }
}
