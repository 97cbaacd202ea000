//! The device under the SSD store: a file or a block device, past the page cache.

use crate::backing::lock;
use crate::block::{BLOCK_BYTES, BLOCK_SIZE, Block};
use crate::ring::{self, Ring};
use io_uring::{opcode, squeue, types};
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

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
    /// Makes the device at least this large.
    fn grow(&self, len: u64) -> io::Result<()>;
}

/// A file or a block device, opened for this process alone.
pub(crate) struct FileDevice {
    file: File,
    regular: bool,
}

impl FileDevice {
    pub(crate) fn open(path: &Path, len: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).mode(0o600);
        let block = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
        let open = |more: OFlags| {
            // What is mounted, or somebody else's image, must not be written over.
            let exclusive = if block { OFlags::EXCL } else { OFlags::empty() };
            let flags = i32::try_from((more | exclusive).bits()).map_err(io::Error::other)?;
            options
                .clone()
                .create(!block)
                .custom_flags(flags)
                .open(path)
        };
        let file = open(OFlags::DIRECT).or_else(|e| match e.kind() {
            io::ErrorKind::InvalidInput => {
                tracing::warn!(path = %path.display(), "no direct I/O here: blocks on this SSD store pass the page cache, too");
                open(OFlags::empty())
            }
            _ => Err(e),
        })?;
        lock::take(&file, false).map_err(io::Error::other)?;
        let kind = file.metadata()?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "expected a regular file or a block device",
            ));
        }
        let device = Self {
            file,
            regular: kind.is_file(),
        };
        device.grow(len)?;
        Ok(device)
    }
}

impl Device for FileDevice {
    fn read(&self, requests: &mut [(u64, &mut Page)]) -> Vec<io::Result<()>> {
        let file = types::Fd(self.file.as_raw_fd());
        let length = u32::try_from(BLOCK_BYTES).unwrap_or(0);
        let entries = requests.iter_mut().map(|(off, page)| {
            opcode::Read::new(file, page.0.as_mut_ptr(), length)
                .offset(*off)
                .build()
        });
        // SAFETY: the pages are exclusively ours until this function returns, and the file outlives it.
        let counts = unsafe { together(entries.collect()) };
        let done = counts.into_iter().zip(requests);
        done.map(|(count, (off, page))| match count {
            Some(Ok(BLOCK_SIZE)) => Ok(()),
            Some(Err(e)) => Err(e),
            // Cut short, or no ring.
            _ => self.file.read_exact_at(&mut page.0, *off),
        })
        .collect()
    }

    fn write(&self, requests: &[(u64, &[u8])]) -> Vec<io::Result<()>> {
        let file = types::Fd(self.file.as_raw_fd());
        let entries = requests.iter().map(|(off, bytes)| {
            let length = u32::try_from(bytes.len()).unwrap_or(0);
            opcode::Write::new(file, bytes.as_ptr(), length)
                .offset(*off)
                .build()
        });
        // SAFETY: the bytes stay borrowed until this function returns, and the file outlives it.
        let counts = unsafe { together(entries.collect()) };
        let done = counts.into_iter().zip(requests);
        done.map(|(count, (off, bytes))| match count {
            Some(Ok(count)) if count == bytes.len() => Ok(()),
            Some(Err(e)) => Err(e),
            _ => self.file.write_all_at(bytes, *off),
        })
        .collect()
    }

    fn discard(&self, off: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.file, flags, off, len)?)
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        let found = if self.regular {
            let old = self.file.metadata()?.len();
            if old < len {
                self.file.set_len(len)?;
            }
            return Ok(());
        } else {
            rustix::fs::seek(&self.file, rustix::fs::SeekFrom::End(0))?
        };
        if found < len {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("expected a device of at least {len} bytes, found {found}"),
            ));
        }
        Ok(())
    }
}

thread_local! {
    /// A ring for each thread that reads or writes; none where io_uring is refused.
    static RING: RefCell<Option<Ring<usize>>> = RefCell::new(
        ring::refusal().is_none().then(|| Ring::new().ok()).flatten(),
    );
}

/// Lets the kernel do all of `entries` at once. Comes back only when it has let go of all their memory: with
/// the bytes of each, or nothing where no ring did it.
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
