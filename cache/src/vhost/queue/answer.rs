//! Answers, and the buffers that they come in.

use super::QueueWorker;
use crate::backing::AlignedBuf;
use crate::frontend::{Outcome, RequestContext};
use crate::vhost::chain::AnswerBuffers;
use crate::vhost::memory::GuestMemory;
use crate::vhost::request::Status;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use virtio_bindings::virtio_ring::VRING_AVAIL_F_NO_INTERRUPT;
use virtio_queue::QueueT;
use vm_memory::{Bytes, GuestAddress};

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
    head: u16,
    /// Bytes of the guest's memory that were written.
    written: u32,
    buffer: Option<AlignedBuf>,
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
            // The buffers lay in this memory when the request was taken.
            written: self.buffers.write(&self.memory, data, status).unwrap_or(0),
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

impl QueueWorker {
    /// Puts the answers that are ready into the ring.
    pub(super) fn collect(&mut self, memory: &GuestMemory) {
        let mut answers = std::mem::take(&mut self.answers);
        self.io.collect(&mut answers);
        for answer in answers.drain(..) {
            if let Some(buf) = answer.buffer {
                self.buffers.keep(buf);
            }
            self.answer(memory, answer.head, answer.written);
        }
        self.answers = answers;
    }

    /// Puts an answer into the ring.
    pub(super) fn answer(&mut self, memory: &GuestMemory, head: u16, written: u32) {
        if let Some(taken) = self.taken.get_mut(usize::from(head)) {
            *taken = false;
        }
        if let Some(inflight) = &mut self.setup.inflight {
            inflight.answering(head);
        }
        match self.setup.ring.add_used(memory, head, written) {
            Ok(()) => {
                if let Some(inflight) = &mut self.setup.inflight {
                    inflight.answered(head, self.setup.ring.next_used());
                }
                self.unsignalled = true;
            }
            Err(e) => self.break_off(&e),
        }
    }

    /// Tells the guest that there are answers, if it wants to know.
    pub(super) fn signal(&mut self, memory: &GuestMemory) {
        if !std::mem::take(&mut self.unsignalled) {
            return;
        }
        match self.setup.ring.needs_notification(memory) {
            Ok(true) if self.wants_signals(memory) => self.setup.events.call(),
            Ok(_) => {}
            Err(e) => self.break_off(&e),
        }
    }

    /// Has the driver not switched signals off? Without event indices it has a flag for that.
    fn wants_signals(&self, memory: &GuestMemory) -> bool {
        let ring = &self.setup.ring;
        let flags = || memory.load::<u16>(GuestAddress(ring.avail_ring()), Ordering::Relaxed);
        ring.event_idx_enabled()
            || !flags()
                .is_ok_and(|flags| u32::from(u16::from_le(flags)) & VRING_AVAIL_F_NO_INTERRUPT != 0)
    }
}
