//! Buffers of received and unsent bytes.

#![expect(
    clippy::indexing_slicing,
    reason = "positions of our own buffers, which stay inside them"
)]

use super::reply::Reply;
use super::transport::Transport;
use crate::backing::AlignedBuf;
use std::collections::VecDeque;
use std::io::{self, IoSlice};

// Bytes of a client.

/// Bytes received at a time.
pub(super) const INPUT: usize = 64 << 10;

/// Received bytes that are not parsed yet.
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

    /// A buffer that contains `received`, of any length.
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

    /// Notes that `count` bytes were put into the [`free_space`](Self::free_space).
    pub(super) fn arrived(&mut self, count: usize) {
        self.end += count;
    }

    /// Free space behind the pending bytes, which move to the front at the end of the buffer.
    pub(super) fn free_space(&mut self) -> &mut [u8] {
        if self.end == self.bytes.len() {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        &mut self.bytes[self.end..]
    }
}

// Replies that wait to be sent.

/// A payload below this size is copied behind its header; a larger one is sent from where it is.
const COPY: usize = 2 << 10;
/// The most pieces in one send.
const PIECES: usize = 64;
/// Headers and small payloads between two large ones.
const SMALL: usize = 4 << 10;
/// The largest buffer that is kept for later reads, bytes.
const MAX_KEPT_BYTES: usize = 32 << 10;
/// The most buffers that are kept.
const MAX_KEPT: usize = 64;

/// Bytes to be sent, in order.
#[derive(Default)]
pub(super) struct SendQueue {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that have been sent.
    sent: usize,
    bytes: usize,
    /// Sent buffers, reused for headers of later replies.
    header_buffers: Vec<Vec<u8>>,
    /// Sent payload buffers, reused for later reads of this client.
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
    /// A queue that contains `unsent`.
    pub(super) fn with(unsent: &[u8]) -> Self {
        let mut queue = Self::default();
        queue.append(|out| {
            out.extend(unsent);
            true
        });
        queue
    }

    /// The number of unsent bytes.
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

    /// A copy of the unsent bytes.
    pub(super) fn unsent(&self) -> Vec<u8> {
        let mut bytes: Vec<u8> = self.pieces.iter().flat_map(Piece::bytes).copied().collect();
        bytes.drain(..self.sent);
        bytes
    }

    /// A buffer for a read. It may contain earlier replies to this client.
    pub(super) fn buffer(&mut self, size: usize) -> AlignedBuf {
        match self.read_buffers.pop() {
            Some(buf) if buf.len() == size => buf,
            _ => AlignedBuf::new(size),
        }
    }

    /// Sends until the queue is empty or the socket is full.
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
