//! Splits bytes into lines, in bounded memory.

use crate::memory::MAX_LINE;

/// A line that is too long. Its content is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a line of at most {MAX_LINE} bytes, found a longer one")]
pub struct LineTooLong;

/// Collects lines from pieces of input. It keeps less than [`MAX_LINE`] bytes.
#[derive(Clone, Debug, Default)]
pub struct Lines {
    begun: Vec<u8>,
    /// Whether the line is too long: it is dropped up to its newline.
    is_dropping: bool,
}

impl Lines {
    /// Begins without a line.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The lines that end in these bytes, without their newlines. A line that is too long is one error, as soon as it is too
    /// long. Blank lines are skipped.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Result<Vec<u8>, LineTooLong>> {
        let pieces = bytes.split_inclusive(|byte| *byte == b'\n');
        pieces.filter_map(|piece| self.add(piece)).collect()
    }

    /// Bytes of the unfinished line.
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
