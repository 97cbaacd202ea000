//! Where something is saved: in a memfd, or on the SSD store's device.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// What is saved lies in whole pages, as direct I/O needs them.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// Bytes that are saved and read again. Offsets and lengths are multiples of [`PAGE_BYTES`].
pub(crate) trait Place {
    /// Writes all of `bytes`.
    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()>;
    /// Fills `bytes`.
    fn read(&self, bytes: &mut [u8], at: u64) -> io::Result<()>;
}

/// A memfd, read and written by calls: one that is cut off is an error, not a signal.
pub(crate) struct Memfd<'a>(pub(crate) &'a File);

impl Place for Memfd<'_> {
    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, at)
    }

    fn read(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.0.read_exact_at(bytes, at)
    }
}
