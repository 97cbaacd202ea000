//! A disk that takes no time.

use justitia_cache::lab::len;
use justitia_cache::{BlockDevice, check_range};
use std::io;

/// A disk of zeroes that takes no time, so that what is measured is the cache.
pub(super) struct NullDisk(pub(super) u64);

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
    fn discard(&self, off: u64, len: u64) -> io::Result<()> {
        check_range(self.0, off, len)
    }
    fn write_zeroes(&self, off: u64, len: u64, _fua: bool, _may_unmap: bool) -> io::Result<()> {
        check_range(self.0, off, len)
    }
}
