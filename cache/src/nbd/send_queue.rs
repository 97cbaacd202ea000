//! Replies that wait to be sent.

#![expect(
    clippy::indexing_slicing,
    reason = "what was sent of the first piece is less than its length"
)]

use super::reply::Reply;
use super::transport::Transport;
use crate::backing::AlignedBuf;
use std::collections::VecDeque;
use std::io::{self, IoSlice};

/// A payload below this size is copied behind its header; a larger one is sent from where it is.
const COPY: usize = 2 << 10;
/// Pieces that are sent at a time.
const PIECES: usize = 64;
/// Headers and small payloads between two large ones.
const SMALL: usize = 4 << 10;
/// The largest buffer, in bytes, that is kept for the next reads.
const MAX_KEPT_BYTES: usize = 32 << 10;
/// Buffers that are kept at most.
const MAX_KEPT: usize = 64;

/// Bytes to be sent, in order.
#[derive(Default)]
pub(super) struct SendQueue {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that have been sent.
    sent: usize,
    bytes: usize,
    /// Buffers that were sent, for the headers of the next replies.
    header_buffers: Vec<Vec<u8>>,
    /// Buffers of payloads that were sent, for the next reads of this client.
    read_buffers: Vec<AlignedBuf>,
}

enum Piece {
    Copied(Vec<u8>),
    InPlace(AlignedBuf),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Copied(bytes) => bytes,
            Self::InPlace(bytes) => bytes,
        }
    }
}

impl SendQueue {
    /// With what is to be sent already.
    pub(super) fn with(unsent: &[u8]) -> Self {
        let mut queue = Self::default();
        queue.append(|out| {
            out.extend(unsent);
            true
        });
        queue
    }

    /// Bytes that are not sent.
    pub(super) const fn len(&self) -> usize {
        self.bytes
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Lets `write` append to the end; if it returns `false`, what it appended is removed.
    pub(super) fn append(&mut self, write: impl FnOnce(&mut Vec<u8>) -> bool) -> bool {
        if !matches!(self.pieces.back(), Some(Piece::Copied(_))) {
            self.pieces
                .push_back(Piece::Copied(self.header_buffers.pop().unwrap_or_default()));
        }
        let Some(Piece::Copied(tail)) = self.pieces.back_mut() else {
            return false;
        };
        let before = tail.len();
        let keep = write(tail);
        if !keep {
            tail.truncate(before);
        }
        self.bytes += tail.len() - before;
        keep
    }

    /// Appends a finished reply.
    pub(super) fn push(&mut self, reply: Reply) {
        let data = reply.data;
        let copied = data.as_deref().filter(|d| d.len() < COPY);
        self.append(|out| {
            out.extend(&reply.header);
            out.extend(copied.unwrap_or_default());
            true
        });
        if let Some(data) = data.filter(|d| d.len() >= COPY) {
            self.bytes += data.len();
            self.pieces.push_back(Piece::InPlace(data));
        }
    }

    /// What is not sent.
    pub(super) fn unsent(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.pieces.iter().flat_map(Piece::bytes).copied().collect();
        bytes.drain(..self.sent);
        bytes
    }

    /// A buffer for a read. It may hold what was sent to this client before.
    pub(super) fn buffer(&mut self, size: usize) -> AlignedBuf {
        match self.read_buffers.pop() {
            Some(buf) if buf.len() == size => buf,
            _ => AlignedBuf::new(size),
        }
    }

    /// Sends until nothing is left or no more fits.
    pub(super) fn send(&mut self, transport: &mut Transport) -> io::Result<()> {
        while self.bytes > 0 {
            let mut parts = [IoSlice::new(&[]); PIECES];
            let mut skip = self.sent;
            for (part, piece) in parts.iter_mut().zip(&self.pieces) {
                *part = IoSlice::new(&piece.bytes()[skip..]);
                skip = 0;
            }
            match transport.send(&parts[..self.pieces.len().min(PIECES)]) {
                Ok(count) => self.advance(count),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        transport.flush()
    }

    fn advance(&mut self, count: usize) {
        self.bytes -= count;
        self.sent += count;
        while let Some(first) = self.pieces.front() {
            let size = first.bytes().len();
            if self.sent < size {
                break;
            }
            self.sent -= size;
            match self.pieces.pop_front() {
                Some(Piece::Copied(mut empty)) if empty.capacity() <= 1 << 20 => {
                    empty.clear();
                    if self.header_buffers.is_empty()
                        || (empty.capacity() <= SMALL && self.header_buffers.len() < PIECES)
                    {
                        self.header_buffers.push(empty);
                    }
                }
                Some(Piece::InPlace(buf))
                    if buf.len() <= MAX_KEPT_BYTES && self.read_buffers.len() < MAX_KEPT =>
                {
                    self.read_buffers.push(buf);
                }
                _ => {}
            }
        }
    }
}
