//! Memory that direct I/O accepts.

use std::ops::{Deref, DerefMut};

use crate::puts::PAGE;

/// A buffer that begins at a multiple of [`PAGE`], the largest alignment that `O_DIRECT` requires on any device with pages
/// of 4 KiB; zero until written.
#[derive(Debug, Default)]
pub struct AlignedBuf {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl AlignedBuf {
    /// A buffer of `len` bytes, all zero. Large ones cost memory only as they are touched.
    #[must_use]
    pub fn new(len: usize) -> Self {
        let memory = vec![0; len.saturating_add(PAGE)];
        let start = memory.as_ptr().align_offset(PAGE);
        Self { memory, start, len }
    }

    const fn range(&self) -> std::ops::Range<usize> {
        self.start..self.start.saturating_add(self.len)
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.get(self.range()).unwrap_or_default()
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        let range = self.range();
        self.memory.get_mut(range).unwrap_or_default()
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_at_a_page() {
        for len in [1, PAGE, 3 * PAGE] {
            let mut buffer = AlignedBuf::new(len);
            assert_eq!(buffer.len(), len);
            assert!(buffer.as_ptr().align_offset(PAGE) == 0);
            buffer.fill(1);
        }
    }
}
