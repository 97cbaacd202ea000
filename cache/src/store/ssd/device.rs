//! The device under the SSD store: a file or a block device, past the page cache.

use super::mark::{self, Content, MARK_BYTES};
use crate::block::{BLOCK_BYTES, BLOCK_SIZE, Block};
use crate::ring::{self, Ring};
use io_uring::{opcode, squeue, types};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate};
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

/// A block at an address that direct I/O accepts.
#[repr(C, align(4096))]
pub(crate) struct Page(pub(crate) Block);

impl Page {
    pub(crate) const fn new() -> Self {
        Self([0; BLOCK_SIZE])
    }
}

/// What the SSD store needs of its device. Offsets are multiples of the block size, buffers lie on pages.
pub(crate) trait Device: Send + Sync {
    /// Reads whole blocks, together; one result for each.
    fn read(&self, requests: &mut [(u64, &mut Page)]) -> Vec<io::Result<()>>;
    /// Writes, together; one result for each.
    fn write(&self, requests: &[(u64, &[u8])]) -> Vec<io::Result<()>>;
    /// The content is no longer needed. A hint.
    fn discard(&self, off: u64, len: u64) -> io::Result<()>;
    /// Makes the device large enough for this many bytes; how many of them it has room for.
    fn grow(&self, len: u64) -> io::Result<u64>;
}

/// A file or a block device, opened for this process alone. When it is dropped, a file is unlinked, and the blocks on a block
/// device discarded, so that they cannot be read any more: if it carries the mark of an SSD store.
pub(crate) struct FileDevice {
    pub(super) file: File,
    pub(super) path: PathBuf,
    pub(super) regular: bool,
    /// There was no file at the path.
    pub(super) made: bool,
    /// The mark was written.
    pub(super) marked: bool,
    /// Bytes of blocks that may have been used.
    pub(super) len: AtomicU64,
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
        if self.made {
            return self.unlink();
        }
        if !self.marked {
            return Ok(());
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
    fn read(&self, requests: &mut [(u64, &mut Page)]) -> Vec<io::Result<()>> {
        let file = types::Fd(self.file.as_raw_fd());
        let length = u32::try_from(BLOCK_BYTES).unwrap_or(0);
        let entries = requests.iter_mut().map(|(off, page)| {
            opcode::Read::new(file, page.0.as_mut_ptr(), length)
                .offset(*off + MARK_BYTES)
                .build()
        });
        // SAFETY: the pages are exclusively ours until this function returns, and the file outlives it.
        let counts = unsafe { together(entries.collect()) };
        let done = counts.into_iter().zip(requests);
        done.map(|(count, (off, page))| match count {
            Some(Ok(BLOCK_SIZE)) => Ok(()),
            Some(Err(e)) => Err(e),
            // Cut short, or no ring.
            _ => self.file.read_exact_at(&mut page.0, *off + MARK_BYTES),
        })
        .collect()
    }

    fn write(&self, requests: &[(u64, &[u8])]) -> Vec<io::Result<()>> {
        let file = types::Fd(self.file.as_raw_fd());
        let entries = requests.iter().map(|(off, bytes)| {
            let length = u32::try_from(bytes.len()).unwrap_or(0);
            opcode::Write::new(file, bytes.as_ptr(), length)
                .offset(*off + MARK_BYTES)
                .build()
        });
        // SAFETY: the bytes stay borrowed until this function returns, and the file outlives it.
        let counts = unsafe { together(entries.collect()) };
        let done = counts.into_iter().zip(requests);
        done.map(|(count, (off, bytes))| match count {
            Some(Ok(count)) if count == bytes.len() => Ok(()),
            Some(Err(e)) => Err(e),
            _ => self.file.write_all_at(bytes, *off + MARK_BYTES),
        })
        .collect()
    }

    fn discard(&self, off: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.file, flags, off + MARK_BYTES, len)?)
    }

    fn grow(&self, len: u64) -> io::Result<u64> {
        self.provide(len)
    }
}

thread_local! {
    /// A ring for each thread that reads or writes; none where io_uring is refused.
    static RING: RefCell<Option<Ring<usize>>> = RefCell::new(
        ring::unsupported_reason().is_none().then(|| Ring::new().ok()).flatten(),
    );
}

/// Lets the kernel do all of `entries` at once. Returns only when all have ended: with the bytes of
/// each, or nothing where there is no ring.
///
/// # Safety
/// The memory and the file that the entries name must stay as they are, untouched by others, until this
/// function returns.
unsafe fn together(entries: Vec<squeue::Entry>) -> Vec<Option<io::Result<usize>>> {
    let mut results: Vec<_> = entries.iter().map(|_| None).collect();
    RING.with_borrow_mut(|ring| {
        let Some(ring) = ring else { return };
        let mut entries = entries.into_iter().enumerate().peekable();
        while entries.peek().is_some() || ring.in_flight() > 0 {
            while ring.in_flight() < ring::ENTRIES
                && let Some((i, entry)) = entries.next()
            {
                // SAFETY: the caller's promise; this function ends when nothing is in flight.
                let _full = unsafe { ring.push(entry, i) };
            }
            ring.submit(1);
            ring.collect(|i, result| results[i] = Some(result));
        }
    });
    results
}
