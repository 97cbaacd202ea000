//! A raw image: a regular file or a block device.
//!
//! Data goes past the host's page cache (`O_DIRECT`) where the file system lets it: what is worth keeping is
//! in Justitia's cache, by weight, and must not be a second time in the kernel's, by recency.

use super::buffer::{ALIGNMENT, AlignedBuf};
use super::lock::{self, LockError};
use crate::block::len;
use crate::block_dev::{Disk, DiskFile, check_range};
use rustix::fs::{FallocateFlags, OFlags, SeekFrom, fallocate, fdatasync};
use rustix::io::{Errno, ReadWriteFlags, pread, pwrite, pwritev2};
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How an image is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// Refuse to change it.
    pub read_only: bool,
    /// Go past the host's page cache where the file system lets us.
    pub direct: bool,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            direct: true,
        }
    }
}

/// Why an image could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system refused.
    #[error("cannot open image {path}: {source}")]
    Io {
        /// The image.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// It is something else.
    #[error("cannot open image {path}: expected a regular file or a block device")]
    Kind {
        /// The image.
        path: PathBuf,
    },
    /// Another process writes it.
    #[error("cannot open image {path}: {source}")]
    Locked {
        /// The image.
        path: PathBuf,
        /// Who or why.
        source: LockError,
    },
}

/// A raw image that this process alone may write.
pub struct RawDisk {
    /// What rings transfer from and to; past the page cache, if that works here. Holds the locks: the kernel gives
    /// them up with the last reference to this open file, and each request in a ring has one. So a server that is
    /// killed keeps the image locked until the disk has answered its last write.
    file: DiskFile,
    /// Through the page cache: for what `O_DIRECT` cannot do. Threads alone use it, and a process does not end before
    /// its threads have come back from the disk.
    buffered: Arc<File>,
    direct: bool,
    size: u64,
}

/// How long an image may be in use before that is an error: a server that was killed has its last writes answered.
const PATIENCE: Duration = Duration::from_secs(2);

impl RawDisk {
    /// Opens `path`, and locks it against writers. Waits up to 2 s for a server that was killed to let go of it.
    ///
    /// # Errors
    /// When it cannot be opened, is no image, or is in use.
    pub fn open(path: &Path, options: OpenOptions) -> Result<Self, OpenError> {
        let since = Instant::now();
        loop {
            match Self::try_open(path, options) {
                Err(OpenError::Locked {
                    source: LockError::Busy,
                    ..
                }) if since.elapsed() < PATIENCE => std::thread::sleep(PATIENCE / 40),
                done => return done,
            }
        }
    }

    fn try_open(path: &Path, options: OpenOptions) -> Result<Self, OpenError> {
        let io_error = |source| OpenError::Io {
            path: path.into(),
            source,
        };
        let kind = std::fs::metadata(path).map_err(io_error)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(OpenError::Kind { path: path.into() });
        }
        let locked = |source| OpenError::Locked {
            path: path.into(),
            source,
        };
        let exclusive = if kind.is_block_device() {
            OFlags::EXCL
        } else {
            OFlags::empty()
        };
        let open_first = |flags: OFlags| {
            open(path, options.read_only, flags | exclusive).map_err(|source| match source.kind() {
                io::ErrorKind::ResourceBusy => locked(LockError::Busy),
                _ => io_error(source),
            })
        };
        let direct = if options.direct {
            open_direct(open_first)?
        } else {
            None
        };
        let (file, align) = match direct {
            Some(found) => found,
            None => (open_first(OFlags::empty())?, 1),
        };
        lock::take(&file, options.read_only).map_err(locked)?;
        let size = rustix::fs::seek(&file, SeekFrom::End(0)).map_err(|e| io_error(e.into()))?;
        let direct = align > 1;
        let file = Arc::new(file);
        let buffered = if direct {
            // Through /proc, so that it is the file that was locked, whatever the path names by now.
            let again = format!("/proc/self/fd/{}", file.as_raw_fd());
            let again = open(Path::new(&again), options.read_only, OFlags::empty());
            Arc::new(again.map_err(io_error)?)
        } else {
            Arc::clone(&file)
        };
        Ok(Self {
            file: DiskFile::new(file, align),
            buffered,
            direct,
            size,
        })
    }

    /// Whether reads and writes go past the host's page cache.
    #[must_use]
    pub const fn is_direct(&self) -> bool {
        self.direct
    }

    /// The parts of a range that are allocated and those that are not, in order, at most `limit`. The last
    /// one may end beyond the range.
    ///
    /// # Errors
    /// What the file system reports.
    pub fn extents(&self, off: u64, count: u64, limit: usize) -> io::Result<Vec<(u64, bool)>> {
        check_range(self.size, off, count)?;
        let end = off + count;
        let mut found = Vec::new();
        let mut at = off;
        while at < end && found.len() < limit {
            let (next, hole) = self.boundary(at)?;
            let next = next.min(self.size).max(at + 1);
            found.push((next - at, hole));
            at = next;
        }
        Ok(found)
    }

    /// Where the extent at `at` ends, and whether it is a hole.
    fn boundary(&self, at: u64) -> io::Result<(u64, bool)> {
        match rustix::fs::seek(&self.buffered, SeekFrom::Data(at)) {
            Ok(data) if data > at => Ok((data, true)),
            Ok(_) => match rustix::fs::seek(&self.buffered, SeekFrom::Hole(at)) {
                Ok(hole) => Ok((hole, false)),
                Err(e) => Err(e.into()),
            },
            // Nothing but a hole up to the end.
            Err(Errno::NXIO) => Ok((self.size, true)),
            // Block devices do not tell: all of it is data.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok((self.size, false)),
            Err(e) => Err(e.into()),
        }
    }

    /// Writes zeroes the long way.
    fn write_zero_blocks(&self, off: u64, count: u64) -> io::Result<()> {
        let zeroes = AlignedBuf::new(1 << 20);
        let mut at = off;
        while at < off + count {
            let step =
                usize::try_from(off + count - at).map_or(zeroes.len(), |n| n.min(zeroes.len()));
            self.write_at(&zeroes[..step], at, false)?;
            at += len(&zeroes[..step]);
        }
        Ok(())
    }
}

/// The image past the page cache, and what its offsets are multiples of; `None` where that does not work.
fn open_direct(
    open_first: impl Fn(OFlags) -> Result<File, OpenError>,
) -> Result<Option<(File, u64)>, OpenError> {
    match open_first(OFlags::DIRECT) {
        Ok(file) => Ok(alignment(&file).map(|align| (file, align))),
        Err(OpenError::Io { source, .. }) if source.kind() == io::ErrorKind::InvalidInput => {
            Ok(None)
        }
        Err(e) => Err(e),
    }
}

/// The smallest alignment that direct reads accept, if they work at all.
fn alignment(file: &File) -> Option<u64> {
    let mut buf = AlignedBuf::new(ALIGNMENT);
    [512, ALIGNMENT]
        .into_iter()
        .find(|align| pread(file, &mut buf[..*align], 0).is_ok())
        .and_then(|align| u64::try_from(align).ok())
}

fn open(path: &Path, read_only: bool, flags: OFlags) -> io::Result<File> {
    // The flags are those of open(2), which are small positive numbers.
    let flags = i32::try_from((flags | OFlags::CLOEXEC).bits()).map_err(io::Error::other)?;
    File::options()
        .read(true)
        .write(!read_only)
        .custom_flags(flags)
        .open(path)
}

/// Reads until `buf` is full or the file ends; what lies beyond the end reads as zeroes.
fn read_full(file: &File, mut buf: &mut [u8], mut off: u64) -> io::Result<()> {
    while !buf.is_empty() {
        match pread(file, &mut *buf, off) {
            Ok(0) => {
                buf.fill(0);
                return Ok(());
            }
            Ok(n) => {
                off += len(&buf[..n]);
                buf = &mut buf[n..];
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

fn write_full(file: &File, mut buf: &[u8], mut off: u64, fua: bool) -> io::Result<()> {
    while !buf.is_empty() {
        let wrote = if fua {
            pwritev2(file, &[IoSlice::new(buf)], off, ReadWriteFlags::DSYNC)
        } else {
            pwrite(file, buf, off)
        };
        match wrote {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                off += len(&buf[..n]);
                buf = &buf[n..];
            }
            Err(Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

impl Disk for RawDisk {
    fn size(&self) -> u64 {
        self.size
    }

    fn file(&self) -> Option<&DiskFile> {
        Some(&self.file)
    }

    fn read_at(&self, buf: &mut [u8], off: u64) -> io::Result<()> {
        check_range(self.size, off, len(buf))?;
        if buf.is_empty() {
            return Ok(());
        }
        if self.file.accepts(off, buf) {
            return read_full(self.file.file(), buf, off);
        }
        let from = off / self.file.align() * self.file.align();
        let to = (off + len(buf)).next_multiple_of(self.file.align());
        let mut around = AlignedBuf::new(usize::try_from(to - from).map_err(io::Error::other)?);
        read_full(self.file.file(), &mut around, from)?;
        let skip = usize::try_from(off - from).map_err(io::Error::other)?;
        buf.copy_from_slice(&around[skip..skip + buf.len()]);
        Ok(())
    }

    fn write_at(&self, buf: &[u8], off: u64, fua: bool) -> io::Result<()> {
        check_range(self.size, off, len(buf))?;
        if !self.file.is_aligned(off, len(buf)) {
            let _alone = self.file.unaligned().write();
            return write_full(&self.buffered, buf, off, fua);
        }
        let _beside = self.file.unaligned().read();
        if self.file.accepts(off, buf) {
            return write_full(self.file.file(), buf, off, fua);
        }
        let mut copy = AlignedBuf::new(buf.len());
        copy.copy_from_slice(buf);
        write_full(self.file.file(), &copy, off, fua)
    }

    fn flush(&self) -> io::Result<()> {
        // Covers both descriptors: it is the inode that is synchronised.
        Ok(fdatasync(&self.buffered)?)
    }

    fn discard(&self, off: u64, count: u64) -> io::Result<()> {
        check_range(self.size, off, count)?;
        if count == 0 {
            return Ok(());
        }
        let _alone = self.file.unaligned().write();
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(&self.buffered, how, off, count) {
            // A hint: where it cannot be followed, nothing happens. Devices want whole sectors.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn write_zeroes(&self, off: u64, count: u64, fua: bool, may_unmap: bool) -> io::Result<()> {
        check_range(self.size, off, count)?;
        if count == 0 {
            return Ok(());
        }
        let how = if may_unmap {
            FallocateFlags::PUNCH_HOLE
        } else {
            FallocateFlags::ZERO_RANGE
        };
        let done = {
            let _alone = self.file.unaligned().write();
            fallocate(&self.buffered, how | FallocateFlags::KEEP_SIZE, off, count)
        };
        match done {
            Ok(()) => {}
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                self.write_zero_blocks(off, count)?;
            }
            Err(e) => return Err(e.into()),
        }
        if fua { self.flush() } else { Ok(()) }
    }
}
