//! The device under the SSD store: a file or a block device, past the page cache.

use super::mark::{self, Content, MARK_BYTES};
use super::page::BlocksRead;
use super::transfer::{self, Overdue};
use crate::warm::Preamble;
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// For how long a device that is given up may take to answer: a queue of writes may be before it.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

/// What the SSD store needs of its device. Offsets are multiples of the block size, buffers lie on pages.
pub(crate) trait Device: Send + Sync {
    /// Reads the blocks at these offsets, together, and waits for so long at most. What is read later goes into memory
    /// that nobody else uses.
    fn read(&self, offsets: &[u64], patience: Duration) -> Result<BlocksRead, Overdue>;
    /// Writes, together; one result for each.
    fn write(&self, requests: &[(u64, &[u8])]) -> Vec<io::Result<()>>;
    /// The content is no longer needed. A hint.
    fn discard(&self, off: u64, len: u64) -> io::Result<()>;
    /// Makes the device large enough for this many bytes; how many of them it has room for.
    fn grow(&self, len: u64) -> io::Result<u64>;
    /// The file or device itself, if it can be left to the next daemon.
    fn file(&self) -> Option<&FileDevice> {
        None
    }
}

/// A file or a block device, opened for this process alone. When it is dropped, a file is unlinked, and the blocks on a block
/// device discarded, so that they cannot be read any more: if it carries the mark of an SSD store.
pub(crate) struct FileDevice {
    pub(super) file: Arc<File>,
    pub(super) path: PathBuf,
    pub(super) regular: bool,
    /// There was no file at the path.
    pub(super) made: bool,
    /// The mark was written.
    pub(super) marked: bool,
    /// Bytes of blocks that may have been used.
    pub(super) len: AtomicU64,
    /// What an earlier daemon has left on it, once.
    pub(super) left: Mutex<Option<Preamble>>,
    /// It is left to the next daemon.
    pub(super) kept: AtomicBool,
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        if let Err(e) = self.clear() {
            tracing::warn!(
                path = %self.path.display(),
                "blocks of VMs stay readable on the SSD store's device: {e}"
            );
        }
    }
}

impl FileDevice {
    /// Whether it answers a read within this time. Other calls have no limit: while the device hangs they do not return, and
    /// the process cannot end.
    pub(crate) fn answers(&self, patience: Duration) -> bool {
        transfer::read(&self.file, vec![0], patience).is_ok()
    }

    /// Bytes of blocks that may be used, of `len`: all, unless a device has no room for the mark besides.
    pub(super) fn provide(&self, len: u64) -> io::Result<u64> {
        if self.regular {
            let end = len.saturating_add(MARK_BYTES);
            if self.file.metadata()?.len() < end {
                self.file.set_len(end)?;
            }
            return Ok(len);
        }
        let found = rustix::fs::seek(&self.file, SeekFrom::End(0))?;
        if found < len {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("expected a device of at least {len} bytes, found {found}"),
            ));
        }
        let usable = len.min(found.saturating_sub(MARK_BYTES));
        self.len.fetch_max(usable, Ordering::Relaxed);
        Ok(usable)
    }

    /// Removes a file, and the blocks on a device; nothing that is not ours.
    fn clear(&self) -> io::Result<()> {
        if self.kept.load(Ordering::SeqCst) {
            return Ok(());
        }
        if self.made {
            return self.unlink();
        }
        if !self.marked {
            return Ok(());
        }
        // A late read has the file, too: whoever asked the device for anything now would hang with it.
        if Arc::strong_count(&self.file) > 1 || !self.answers(ANSWER_PATIENCE) {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "it does not answer: nothing was removed",
            ));
        }
        if mark::content(&self.file, self.regular)? != Content::Marked {
            return Err(io::Error::other(
                "somebody has written over the store's mark: nothing was removed",
            ));
        }
        if self.regular {
            return self.unlink();
        }
        match self.discard(0, self.len.load(Ordering::Relaxed)) {
            // A device that cannot.
            Err(e) if e.kind() == io::ErrorKind::Unsupported => Ok(()),
            done => done,
        }
    }

    /// Removes the file, if it still has that name.
    fn unlink(&self) -> io::Result<()> {
        let ours = self.file.metadata()?;
        let there = std::fs::symlink_metadata(&self.path)?;
        if (ours.dev(), ours.ino()) == (there.dev(), there.ino()) {
            std::fs::remove_file(&self.path)
        } else {
            self.file.set_len(0)
        }
    }
}

impl Device for FileDevice {
    fn read(&self, offsets: &[u64], patience: Duration) -> Result<BlocksRead, Overdue> {
        let offsets = offsets.iter().map(|off| off + MARK_BYTES).collect();
        transfer::read(&self.file, offsets, patience)
    }

    fn write(&self, requests: &[(u64, &[u8])]) -> Vec<io::Result<()>> {
        let requests = requests
            .iter()
            .map(|(off, bytes)| (off + MARK_BYTES, *bytes));
        transfer::write(&self.file, &requests.collect::<Vec<_>>())
    }

    fn discard(&self, off: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.file, flags, off + MARK_BYTES, len)?)
    }

    fn grow(&self, len: u64) -> io::Result<u64> {
        self.provide(len)
    }

    fn file(&self) -> Option<&FileDevice> {
        Some(self)
    }
}
