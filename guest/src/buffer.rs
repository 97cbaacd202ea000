//! Memory that direct I/O accepts.

use justitia_link::PAGE;

/// A buffer that begins at a multiple of 4096 bytes.
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    /// A buffer of `len` bytes, all zero.
    pub(crate) fn new(len: usize) -> Self {
        let memory = vec![0; len.saturating_add(PAGE)];
        let start = memory.as_ptr().align_offset(PAGE);
        Self { memory, start, len }
    }

    fn range(&self) -> std::ops::Range<usize> {
        self.start..self.start.saturating_add(self.len)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.memory.get(self.range()).unwrap_or_default()
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let range = self.range();
        self.memory.get_mut(range).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_at_a_page() {
        for len in [1, PAGE, 3 * PAGE] {
            let mut buffer = Buffer::new(len);
            assert_eq!(buffer.bytes().len(), len);
            assert!(buffer.bytes().as_ptr().align_offset(PAGE) == 0);
            buffer.bytes_mut().fill(1);
        }
    }
}
