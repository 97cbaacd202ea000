//! Memory that direct I/O accepts.

use std::ops::{Deref, DerefMut};

/// The largest alignment that `O_DIRECT` requires on any device with 4 KiB pages.
pub(super) const ALIGNMENT: usize = 4096;

/// A buffer that begins at a multiple of 4096 bytes; zero until written.
pub struct AlignedBuf {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuf {
    /// A buffer of `len` bytes, all zero. Large ones cost memory only as they are touched.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let memory = vec![0; len + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        Self { memory, start, len }
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}
