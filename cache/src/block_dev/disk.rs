//! The disk that front ends read and write, cached or not.

use super::file::ImageFile;
use crate::block::len;
use parking_lot::RwLock;
use std::io;

/// A disk. All operations may be called from several threads at once. The order of concurrent overlapping operations is
/// undefined, as on real disks.
///
/// Offsets and lengths are bytes and need no alignment. A range beyond [`size`](Self::size) is
/// [`io::ErrorKind::InvalidInput`]. After an error of a write, discard or write-zeroes the content of the
/// range is undefined until it is written again.
pub trait BlockDevice: Send + Sync {
    /// Bytes. Only [`refresh_size`](Self::refresh_size) and [`grow`](Self::grow) change it.
    fn size(&self) -> u64;

    /// Takes over the backing store's current size, and returns it. By default the size cannot change.
    ///
    /// # Errors
    /// Errors of the backing store.
    fn refresh_size(&self) -> io::Result<u64> {
        Ok(self.size())
    }

    /// Makes the backing store at least `size` bytes long, on stable storage when this returns. The new part reads as zeroes.
    /// Returns its size. By default it cannot grow.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] where it cannot grow, else what the backing store reports.
    fn grow(&self, size: u64) -> io::Result<u64> {
        if size <= self.size() {
            return Ok(self.size());
        }
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Fills `buf` from `off` completely, or fails.
    ///
    /// # Errors
    /// Errors of the backing store.
    fn read_at(&self, buf: &mut [u8], off: u64) -> io::Result<()>;

    /// Writes `buf` at `off`. With `fua` (force unit access) the data is on stable storage before this returns; without it,
    /// after a later [`flush`](Self::flush).
    ///
    /// # Errors
    /// Errors of the backing store.
    fn write_at(&self, buf: &[u8], off: u64, fua: bool) -> io::Result<()>;

    /// Makes all earlier writes durable (`fdatasync`). After a failure all later calls fail.
    ///
    /// # Errors
    /// Errors of the backing store.
    fn flush(&self) -> io::Result<()>;

    /// Discards the content. Reads return anything until it is written again. By default it does nothing.
    ///
    /// # Errors
    /// Errors of the backing store.
    fn discard(&self, off: u64, len: u64) -> io::Result<()> {
        check_range(self.size(), off, len)
    }

    /// Writes zeroes. `may_unmap` lets the space be returned to the file system. By default zeroes are written like any other
    /// content.
    ///
    /// # Errors
    /// Errors of the backing store.
    fn write_zeroes(&self, off: u64, len: u64, fua: bool, _may_unmap: bool) -> io::Result<()> {
        check_range(self.size(), off, len)?;
        let count = usize::try_from(len).map_err(io::Error::other)?;
        self.write_at(&vec![0; count], off, fua)
    }

    /// As [`write_zeroes`](Self::write_zeroes), but only if that is faster than writing zeroes.
    ///
    /// # Errors
    /// [`io::ErrorKind::Unsupported`] at once where it is not faster, which is the default; else what the backing store
    /// reports.
    fn write_zeroes_fast(
        &self,
        _off: u64,
        _len: u64,
        _fua: bool,
        _may_unmap: bool,
    ) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Why a flush or a durable write has failed, so that all later ones fail. By default failures are not remembered.
    fn sync_failure(&self) -> Option<String> {
        None
    }

    /// The file with its content, byte for byte, for front ends that transfer without waiting. By default there is none.
    fn file(&self) -> Option<&ImageFile> {
        None
    }
}

/// Is `off..off + len` inside a disk of `size` bytes?
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] when it is not.
pub fn check_range(size: u64, off: u64, len: u64) -> io::Result<()> {
    match off.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("expected a range inside the disk's {size} bytes, found {len} bytes at {off}"),
        )),
    }
}

// A disk in memory: for tests, benchmarks and trials.

/// A disk whose content lives in this process and ends with it.
pub struct RamDisk(RwLock<Box<[u8]>>);

impl RamDisk {
    /// A disk of `size` bytes, all zero.
    #[must_use]
    pub fn new(size: usize) -> Self {
        Self(RwLock::new(vec![0; size].into_boxed_slice()))
    }

    fn place(&self, off: u64, len: u64) -> io::Result<std::ops::Range<usize>> {
        check_range(self.size(), off, len)?;
        // A range inside the disk is inside a slice, so both fit.
        let start = usize::try_from(off).map_err(io::Error::other)?;
        let count = usize::try_from(len).map_err(io::Error::other)?;
        Ok(start..start + count)
    }
}

impl BlockDevice for RamDisk {
    fn size(&self) -> u64 {
        len(&self.0.read())
    }

    fn read_at(&self, buf: &mut [u8], off: u64) -> io::Result<()> {
        let place = self.place(off, len(buf))?;
        buf.copy_from_slice(&self.0.read()[place]);
        Ok(())
    }

    fn write_at(&self, buf: &[u8], off: u64, _fua: bool) -> io::Result<()> {
        let place = self.place(off, len(buf))?;
        self.0.write()[place].copy_from_slice(buf);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, off: u64, len: u64) -> io::Result<()> {
        self.write_zeroes(off, len, false, true)
    }

    fn write_zeroes(&self, off: u64, len: u64, _fua: bool, _may_unmap: bool) -> io::Result<()> {
        let place = self.place(off, len)?;
        self.0.write()[place].fill(0);
        Ok(())
    }
}
