//! A disk that takes no time.

use crate::block::len;
use crate::block_dev::{BlockDevice, check_range};
use std::io;

/// A disk of this many bytes that takes no time, so that only the cache is measured. It reads and writes nothing.
pub struct NullDisk(pub u64);

impl BlockDevice for NullDisk {
    fn size(&self) -> u64 {
        self.0
    }
    fn read_at(&self, buf: &mut [u8], off: u64) -> io::Result<()> {
        check_range(self.0, off, len(buf))
    }
    fn write_at(&self, buf: &[u8], off: u64, _fua: bool) -> io::Result<()> {
        check_range(self.0, off, len(buf))
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
    fn write_zeroes(&self, off: u64, len: u64, _fua: bool, _may_unmap: bool) -> io::Result<()> {
        check_range(self.0, off, len)
    }
}
