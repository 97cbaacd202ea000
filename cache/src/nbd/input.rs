//! Bytes of a client.

#![expect(
    clippy::indexing_slicing,
    reason = "0 <= start <= end <= length of the buffer"
)]

/// Bytes received at a time.
pub(super) const INPUT: usize = 64 << 10;

/// Received bytes that are not understood yet.
pub(super) struct Input {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Input {
    pub(super) fn new() -> Self {
        Self {
            bytes: vec![0; INPUT].into_boxed_slice(),
            start: 0,
            end: 0,
        }
    }

    /// With what was received already, however much that is.
    pub(super) fn with(received: &[u8]) -> Self {
        let mut bytes = received.to_vec();
        bytes.resize(received.len().max(INPUT), 0);
        Self {
            bytes: bytes.into_boxed_slice(),
            start: 0,
            end: received.len(),
        }
    }

    pub(super) fn pending(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(super) fn consume(&mut self, count: usize) {
        self.start += count;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
            if self.bytes.len() > INPUT {
                *self = Self::new();
            }
        }
    }

    /// So many bytes were put into the [`free_space`](Self::free_space).
    pub(super) fn arrived(&mut self, count: usize) {
        self.end += count;
    }

    /// Space behind what is pending, which is moved to the front when the end of the buffer is reached.
    pub(super) fn free_space(&mut self) -> &mut [u8] {
        if self.end == self.bytes.len() {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        &mut self.bytes[self.end..]
    }
}
