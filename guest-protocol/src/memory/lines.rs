//! Bytes become lines, in bounded memory.

use crate::memory::MAX_LINE;

/// A line that is too long. What it said is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a line of at most {MAX_LINE} bytes, found a longer one")]
pub struct LineTooLong;

/// The lines in what arrives piece by piece. It keeps less than [`MAX_LINE`] bytes.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    begun: Vec<u8>,
    /// The line is too long: it is dropped up to its newline.
    is_dropping: bool,
}

impl Lines {
    /// No line is begun.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The lines that these bytes end, without their newlines. A line that is too long is one error, as soon as it is too
    /// long; lines without anything but blanks are none.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Result<Vec<u8>, LineTooLong>> {
        let pieces = bytes.split_inclusive(|byte| *byte == b'\n');
        pieces.filter_map(|piece| self.add(piece)).collect()
    }

    /// Bytes of the line that is not ended yet.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.begun.len()
    }

    /// A piece has at most one newline, at its end.
    fn add(&mut self, piece: &[u8]) -> Option<Result<Vec<u8>, LineTooLong>> {
        let content = piece.strip_suffix(b"\n");
        if self.is_dropping {
            self.is_dropping = content.is_none();
            return None;
        }
        let added = content.unwrap_or(piece);
        if self.begun.len().saturating_add(added.len()) >= MAX_LINE {
            self.begun.clear();
            self.is_dropping = content.is_none();
            return Some(Err(LineTooLong));
        }
        self.begun.extend_from_slice(added);
        content?;
        let line = std::mem::take(&mut self.begun);
        let is_blank = line.iter().all(u8::is_ascii_whitespace);
        (!is_blank).then_some(Ok(line))
    }
}
