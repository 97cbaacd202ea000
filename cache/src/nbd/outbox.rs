//! Replies on their way out, and those that workers have ready.

use super::serve::{Answer, Work};
use super::transport::Transport;
use crate::backing::AlignedBuf;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// A payload below this size is copied behind its header; a larger one is sent from where it is.
const COPY: usize = 2 << 10;
/// Pieces that are sent at a time.
const PIECES: usize = 64;
/// Headers and small payloads between two large ones.
const SMALL: usize = 4 << 10;
/// Buffers of this size at most are kept for the next reads, and as many of them at most.
const SPARE: (usize, usize) = (32 << 10, 64);

/// Bytes to be sent, in order.
#[derive(Default)]
pub struct Outgoing {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that are gone.
    sent: usize,
    bytes: usize,
    /// Emptied buffers, for the next replies.
    spare: Vec<Vec<u8>>,
    /// Emptied buffers of payloads, for the next reads of this client.
    buffers: Vec<AlignedBuf>,
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

impl Outgoing {
    /// Bytes that are not sent.
    pub const fn len(&self) -> usize {
        self.bytes
    }

    pub const fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Lets `write` append to the end; if it returns `false`, what it appended is taken back.
    pub fn append(&mut self, write: impl FnOnce(&mut Vec<u8>) -> bool) -> bool {
        if !matches!(self.pieces.back(), Some(Piece::Copied(_))) {
            self.pieces
                .push_back(Piece::Copied(self.spare.pop().unwrap_or_default()));
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
    pub fn push(&mut self, reply: Reply) {
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

    /// A buffer for a read. What is in it was this client's to see.
    pub fn buffer(&mut self, size: usize) -> AlignedBuf {
        match self.buffers.pop() {
            Some(buf) if buf.len() == size => buf,
            _ => AlignedBuf::new(size),
        }
    }

    /// Sends until nothing is left or no more fits.
    pub fn send(&mut self, transport: &mut Transport) -> io::Result<()> {
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
                    if self.spare.is_empty()
                        || (empty.capacity() <= SMALL && self.spare.len() < PIECES)
                    {
                        self.spare.push(empty);
                    }
                }
                Some(Piece::InPlace(buf))
                    if buf.len() <= SPARE.0 && self.buffers.len() < SPARE.1 =>
                {
                    self.buffers.push(buf);
                }
                _ => {}
            }
        }
    }
}

/// A finished reply.
pub struct Reply {
    pub header: Vec<u8>,
    pub data: Option<AlignedBuf>,
    /// What the request held of the connection's budget.
    pub held: usize,
}

/// What a worker has done.
pub enum Finished {
    /// All of it.
    Reply(Reply),
    /// Its part; the rest is the disk's.
    Rest(Box<(Answer, Work)>),
}

/// Where workers leave what they have done for the connection's thread.
pub struct Inbox {
    ready: Mutex<Vec<Finished>>,
    /// The thread sleeps, or is about to: wake it.
    sleeping: AtomicBool,
    event: OwnedFd,
}

impl Inbox {
    pub fn new() -> io::Result<Self> {
        Ok(Self {
            ready: Mutex::default(),
            sleeping: AtomicBool::new(false),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// From a worker.
    pub fn leave(&self, finished: Finished) {
        self.ready.lock().push(finished);
        if self.sleeping.swap(false, Ordering::SeqCst)
            && let Err(e) = rustix::io::write(&self.event, &1u64.to_ne_bytes())
        {
            tracing::error!("cannot wake a connection: {e}");
        }
    }

    /// From the connection's thread: what is ready.
    pub fn collect(&self) -> Vec<Finished> {
        std::mem::take(&mut *self.ready.lock())
    }

    /// The thread is about to sleep: `false` when there is something to collect first.
    pub fn may_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        let nothing = self.ready.lock().is_empty();
        if !nothing {
            self.sleeping.store(false, Ordering::SeqCst);
        }
        nothing
    }

    /// The thread has woken up.
    pub fn awake(&self) {
        // Still set: nobody wrote to the event.
        if !self.sleeping.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
        }
    }

    pub fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
