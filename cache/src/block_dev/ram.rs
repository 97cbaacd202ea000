//! A disk in memory: for tests, benchmarks and trials.

use super::disk::{Disk, check_range};
use crate::block::len;
use parking_lot::RwLock;
use std::io;

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
        // Inside the disk means inside a slice, so both fit.
        let start = usize::try_from(off).map_err(io::Error::other)?;
        let count = usize::try_from(len).map_err(io::Error::other)?;
        Ok(start..start + count)
    }
}

impl Disk for RamDisk {
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
