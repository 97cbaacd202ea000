//! The device under the SSD store: a file or a block device, past the page cache.

use crate::backing::lock;
use crate::block::{BLOCK_BYTES, BLOCK_SIZE, Block};
use crate::ring::{self, Ring};
use io_uring::{opcode, squeue, types};
use rustix::fs::{FallocateFlags, OFlags, fallocate};
use std::cell::RefCell;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
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
    /// Makes the device at least this large.
    fn grow(&self, len: u64) -> io::Result<()>;
}

/// A file or a block device, opened for this process alone. When it is dropped, a file is unlinked, and a block
/// device discarded, so that the content cannot be read any more.
pub(crate) struct FileDevice {
    file: File,
    path: PathBuf,
    regular: bool,
    /// Bytes that may have been used.
    len: AtomicU64,
}

impl FileDevice {
    pub(crate) fn open(path: &Path, len: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).mode(0o600);
        let block = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
        let open = |more: OFlags| {
            // A mounted device, or an image of another process, must not be overwritten.
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
        let found = file.metadata()?;
        let kind = found.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "expected a regular file or a block device, found {}",
                    justitia_regular_file::kind(kind)
                ),
            ));
        }
        if kind.is_file() {
            check_owner(&found)?;
        }
        let device = Self {
            file,
            path: path.to_owned(),
            regular: kind.is_file(),
            len: AtomicU64::new(0),
        };
        device.grow(len)?;
        Ok(device)
    }
}

/// Blocks of all VMs go into the file: other users must not read it.
fn check_owner(found: &Metadata) -> io::Result<()> {
    let ours = rustix::process::geteuid().as_raw();
    if found.uid() == ours && found.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "expected a file of the user {ours} with mode 600, found one of the user {} with mode {:03o}: blocks of all VMs would be written into it; remove it, and it is made anew",
            found.uid(),
            found.mode() & 0o7777
        ),
    ))
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        let done = if self.regular {
            self.unlink()
        } else {
            match self.discard(0, self.len.load(Ordering::Relaxed)) {
                // A device that cannot.
                Err(e) if e.kind() == io::ErrorKind::Unsupported => Ok(()),
                done => done,
            }
        };
        if let Err(e) = done {
            tracing::warn!(
                path = %self.path.display(),
                "blocks of VMs stay readable on the SSD store's device: {e}"
            );
        }
    }
}

impl FileDevice {
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
        self.len.fetch_max(len, Ordering::Relaxed);
        Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_file_is_private_and_removed_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ssd");
        let device = FileDevice::open(&path, 1 << 20).unwrap();
        let mode = std::fs::metadata(&path).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(device);
        assert!(!path.exists());
        // A file that a killed server left is reused.
        let left = File::create(&path).unwrap();
        for (mode, fits) in [(0o644, false), (0o620, false), (0o600, true)] {
            left.set_permissions(std::fs::Permissions::from_mode(mode))
                .unwrap();
            let opened = FileDevice::open(&path, 1 << 20).map(drop);
            let error = opened.err().map(|e| e.to_string());
            assert_eq!(error.is_none(), fits, "{error:?}");
            assert!(error.is_none_or(|why| why.contains("mode 600")));
        }
    }

    #[test]
    fn another_file_of_the_same_name_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ssd");
        let device = FileDevice::open(&path, 1 << 20).unwrap();
        std::fs::rename(&path, dir.path().join("moved")).unwrap();
        std::fs::write(&path, "another's").unwrap();
        drop(device);
        assert_eq!(std::fs::read(&path).unwrap(), b"another's");
        assert_eq!(std::fs::read(dir.path().join("moved")).unwrap(), b"");
    }
}
