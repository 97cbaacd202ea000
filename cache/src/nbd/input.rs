//! Bytes of a client.

/// Bytes received at a time.
pub const INPUT: usize = 64 << 10;

/// Received bytes that are not understood yet.
pub struct Input {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Input {
    pub fn new() -> Self {
        Self {
            bytes: vec![0; INPUT].into_boxed_slice(),
            start: 0,
            end: 0,
        }
    }

    pub fn pending(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub fn consume(&mut self, count: usize) {
        self.start += count;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// So many bytes were put into the [`free_space`](Self::free_space).
    pub fn arrived(&mut self, count: usize) {
        self.end += count;
    }

    /// Space behind what is pending, which is moved to the front when the end of the buffer is reached.
    pub fn free_space(&mut self) -> &mut [u8] {
        if self.end == self.bytes.len() {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        &mut self.bytes[self.end..]
    }
}
