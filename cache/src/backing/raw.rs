//! A raw image: a regular file or a block device.
//!
//! Data bypasses the host's page cache (`O_DIRECT`) where the file system supports it: otherwise it would be cached twice.

use crate::block::len;
use crate::block_dev::{BlockDevice, ImageFile, Sync, check_range};
#[cfg(test)]
use crate::block_dev::{Call, began};
use justitia_guest_protocol::puts::AlignedBuf;
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags, Result, pread, pwritev2};
use std::fs::File;
use std::io;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A raw image that this process alone may write.
pub struct RawImage {
    /// The file for rings, with direct I/O if that works here. It holds the locks: the kernel releases them with the last
    /// reference to this open file, and each request in a ring has one. So a killed server's image stays locked until the disk
    /// has answered its last write.
    pub(super) file: ImageFile,
    /// The file through the page cache, for operations that `O_DIRECT` cannot do. Only threads use it, and a process does not
    /// end before its threads have returned from the disk.
    pub(super) buffered: Arc<File>,
    pub(super) direct: bool,
    /// A block device.
    pub(super) is_device: bool,
    /// The last daemon has handed it over, still locked, so no other process could lock it meanwhile.
    pub(super) was_held: bool,
    /// Bytes.
    pub(super) size: AtomicU64,
}

impl RawImage {
    /// Do reads and writes bypass the host's page cache?
    #[must_use]
    pub const fn is_direct(&self) -> bool {
        self.direct
    }

    /// Was it locked continuously since the last daemon locked it?
    pub(crate) const fn was_held(&self) -> bool {
        self.was_held
    }

    /// The locked open file.
    pub(crate) fn locked_file(&self) -> &Arc<File> {
        self.file.shared()
    }

    /// The allocated and unallocated parts of a range, in order, at most `limit`. The last one may end beyond the range.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn extents(&self, off: u64, count: u64, limit: usize) -> io::Result<Vec<(u64, bool)>> {
        check_range(self.size(), off, count)?;
        let end = off + count;
        let mut found = Vec::new();
        let mut at = off;
        while at < end && found.len() < limit {
            let (next, hole) = self.boundary(at)?;
            let next = next.min(self.size()).max(at + 1);
            found.push((next - at, hole));
            at = next;
        }
        Ok(found)
    }

    /// The end of the extent at `at`, and whether it is a hole.
    fn boundary(&self, at: u64) -> io::Result<(u64, bool)> {
        match rustix::fs::seek(&self.buffered, SeekFrom::Data(at)) {
            Ok(data) if data > at => Ok((data, true)),
            Ok(_) => match rustix::fs::seek(&self.buffered, SeekFrom::Hole(at)) {
                Ok(hole) => Ok((hole, false)),
                Err(e) => Err(e.into()),
            },
            // A hole up to the end.
            Err(Errno::NXIO) => Ok((self.size(), true)),
            // Block devices do not report holes: all of it is data.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok((self.size(), false)),
            Err(e) => Err(e.into()),
        }
    }

    /// Behaves as on a file system where `RWF_DSYNC` is not known to be durable.
    #[cfg(test)]
    pub(crate) const fn forget_dsync(&mut self) {
        self.file.forget_dsync();
    }

    /// Writes all of `buf`. Remembers the failure of a durable write.
    fn write_full(&self, file: &File, buf: &[u8], off: u64, fua: bool) -> io::Result<()> {
        if !fua {
            return write_all(file, buf, off, false);
        }
        let errors = self.file.sync_errors();
        if self.file.has_dsync() {
            return errors.settle(Sync::Write, write_all(file, buf, off, true));
        }
        errors.settle(Sync::Write, write_all(file, buf, off, false))?;
        // Its failure concerns earlier writes, too.
        errors.settle(Sync::Flush, sync(file).map_err(io::Error::from))
    }

    /// Makes zeroes by the file system or device; [`io::ErrorKind::Unsupported`] when it cannot.
    fn zero_range(&self, off: u64, count: u64, may_unmap: bool) -> io::Result<()> {
        if count == 0 {
            return Ok(());
        }
        let how = if may_unmap {
            FallocateFlags::PUNCH_HOLE
        } else {
            FallocateFlags::ZERO_RANGE
        };
        let _alone = self.file.unaligned().write();
        match zero(&self.buffered, how | FallocateFlags::KEEP_SIZE, off, count) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                Err(io::ErrorKind::Unsupported.into())
            }
            done => Ok(done?),
        }
    }

    /// Writes zeroes like other content.
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

impl BlockDevice for RawImage {
    fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    fn refresh_size(&self) -> io::Result<u64> {
        let found = rustix::fs::seek(&self.buffered, SeekFrom::End(0))?;
        self.size.store(found, Ordering::Relaxed);
        Ok(found)
    }

    /// A device cannot grow here: one that is too small is an error.
    fn grow(&self, size: u64) -> io::Result<u64> {
        let found = rustix::fs::seek(&self.buffered, SeekFrom::End(0))?;
        if found < size && self.is_device {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!(
                    "expected a device of at least {size} bytes, found one of {found} bytes: make the device larger first"
                ),
            ));
        }
        if found < size {
            rustix::fs::ftruncate(&self.buffered, size)?;
            // Flush before the size is announced: else a power loss could shrink the disk.
            self.flush()?;
        }
        let size = found.max(size);
        self.size.store(size, Ordering::Relaxed);
        Ok(size)
    }

    fn file(&self) -> Option<&ImageFile> {
        Some(&self.file)
    }

    fn read_at(&self, buf: &mut [u8], off: u64) -> io::Result<()> {
        check_range(self.size(), off, len(buf))?;
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
        check_range(self.size(), off, len(buf))?;
        if !self.file.is_aligned(off, len(buf)) {
            let _alone = self.file.unaligned().write();
            return self.write_full(&self.buffered, buf, off, fua);
        }
        let _beside = self.file.unaligned().read();
        if self.file.accepts(off, buf) {
            return self.write_full(self.file.file(), buf, off, fua);
        }
        let mut copy = AlignedBuf::new(buf.len());
        copy.copy_from_slice(buf);
        self.write_full(self.file.file(), &copy, off, fua)
    }

    fn flush(&self) -> io::Result<()> {
        // Covers both descriptors: it syncs the inode.
        let done = sync(&self.buffered).map_err(io::Error::from);
        self.file.sync_errors().settle(Sync::Flush, done)
    }

    fn sync_failure(&self) -> Option<String> {
        self.file.sync_errors().failure()
    }

    fn discard(&self, off: u64, count: u64) -> io::Result<()> {
        check_range(self.size(), off, count)?;
        if count == 0 {
            return Ok(());
        }
        let _alone = self.file.unaligned().write();
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match zero(&self.buffered, how, off, count) {
            // A hint: where it is not supported, nothing happens. Devices need whole sectors.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn write_zeroes(&self, off: u64, count: u64, fua: bool, may_unmap: bool) -> io::Result<()> {
        check_range(self.size(), off, count)?;
        match self.zero_range(off, count, may_unmap) {
            Err(e) if e.kind() == io::ErrorKind::Unsupported => {
                self.write_zero_blocks(off, count)?;
            }
            done => done?,
        }
        if fua { self.flush() } else { Ok(()) }
    }

    fn write_zeroes_fast(
        &self,
        off: u64,
        count: u64,
        fua: bool,
        may_unmap: bool,
    ) -> io::Result<()> {
        check_range(self.size(), off, count)?;
        // Without unmapping, a device writes zeroes, itself or by the kernel.
        if self.is_device && !may_unmap {
            return Err(io::ErrorKind::Unsupported.into());
        }
        self.zero_range(off, count, may_unmap)?;
        if fua { self.flush() } else { Ok(()) }
    }
}

/// Reads until `buf` is full or the file ends; fills the rest with zeroes.
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

/// Writes all of `buf`, durably with `dsync`.
fn write_all(file: &File, mut buf: &[u8], mut off: u64, dsync: bool) -> io::Result<()> {
    let flags = if dsync {
        ReadWriteFlags::DSYNC
    } else {
        ReadWriteFlags::empty()
    };
    while !buf.is_empty() {
        match write(file, buf, off, flags) {
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

// System calls of threads that change an image. Rings use `ImageFile`.

/// Writes some of `buf`. Returns the number of bytes.
pub(super) fn write(file: &File, buf: &[u8], off: u64, flags: ReadWriteFlags) -> Result<usize> {
    #[cfg(test)]
    let recorded = began(file, || Call::Write {
        at: off,
        content: buf.to_vec(),
        durable: flags.contains(ReadWriteFlags::DSYNC),
    });
    let done = pwritev2(file, &[IoSlice::new(buf)], off, flags);
    #[cfg(test)]
    recorded
        .into_iter()
        .for_each(crate::block_dev::Recorded::ended);
    done
}

/// Makes earlier writes durable.
pub(super) fn sync(file: &File) -> Result<()> {
    #[cfg(test)]
    let recorded = began(file, || Call::Sync);
    let done = rustix::fs::fdatasync(file);
    #[cfg(test)]
    recorded
        .into_iter()
        .for_each(crate::block_dev::Recorded::ended);
    done
}

/// Zeroes a range without writing it, in the way of `how`.
pub(super) fn zero(file: &File, how: FallocateFlags, off: u64, count: u64) -> Result<()> {
    #[cfg(test)]
    let recorded = began(file, || Call::Write {
        at: off,
        content: vec![0; usize::try_from(count).unwrap_or(0)],
        durable: false,
    });
    let done = rustix::fs::fallocate(file, how, off, count);
    #[cfg(test)]
    recorded
        .into_iter()
        .for_each(crate::block_dev::Recorded::ended);
    done
}
