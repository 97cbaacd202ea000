//! Answers, and the buffers that they come in.

use crate::backing::AlignedBuf;
use crate::frontend::{Outcome, RequestContext};
use crate::vhost::chain::AnswerBuffers;
use crate::vhost::memory::GuestMemory;
use crate::vhost::request::Status;
use std::io;
use std::sync::Arc;

/// The largest buffer, in bytes, that is kept for the next requests.
const MAX_KEPT_BYTES: usize = 32 << 10;
/// Buffers that are kept.
const MAX_KEPT: usize = 64;

/// What the answer to a request needs of it.
pub(super) struct AnswerContext {
    /// As it was when the request was taken.
    pub(super) memory: Arc<GuestMemory>,
    pub(super) buffers: AnswerBuffers,
}

/// An answer that is in the guest's memory, and not yet in the ring.
pub(super) struct Answer {
    pub(super) head: u16,
    /// Bytes of the guest's memory that were written. `None` when that was taken away.
    pub(super) written: Option<u32>,
    pub(super) buffer: Option<AlignedBuf>,
}

impl RequestContext for AnswerContext {
    type Reply = Answer;

    fn reply(self, result: io::Result<Outcome>) -> Answer {
        let (buffer, status) = match result {
            Ok(Outcome::Data(data)) => (Some(data), Status::Ok),
            Ok(_) => (None, Status::Ok),
            Err(_) => (None, Status::IoError),
        };
        let data = buffer.as_deref().unwrap_or_default();
        Answer {
            head: self.buffers.head,
            written: self.buffers.write(&self.memory, data, status).ok(),
            buffer,
        }
    }
}

/// Buffers for the next requests. They may hold what this guest has read before.
#[derive(Default)]
pub(super) struct Buffers(Vec<AlignedBuf>);

impl Buffers {
    pub(super) fn take(&mut self, size: usize) -> AlignedBuf {
        match self.0.pop() {
            Some(buf) if buf.len() == size => buf,
            _ => AlignedBuf::new(size),
        }
    }

    pub(super) fn keep(&mut self, buf: AlignedBuf) {
        if buf.len() <= MAX_KEPT_BYTES && self.0.len() < MAX_KEPT {
            self.0.push(buf);
        }
    }
}
