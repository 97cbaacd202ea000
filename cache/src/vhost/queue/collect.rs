//! Putting answers into the ring, and telling the guest of them.

use super::QueueWorker;
use crate::vhost::memory::GuestMemory;
use std::sync::atomic::Ordering;
use virtio_bindings::virtio_ring::VRING_AVAIL_F_NO_INTERRUPT;
use virtio_queue::QueueT;
use vm_memory::{Bytes, GuestAddress};

impl QueueWorker {
    /// Puts the answers that are ready into the ring.
    pub(super) fn collect(&mut self, memory: &GuestMemory) {
        let mut answers = std::mem::take(&mut self.answers);
        self.io.collect(&mut answers);
        for answer in answers.drain(..) {
            if let Some(buf) = answer.buffer {
                self.buffers.keep(buf);
            }
            match answer.written {
                Some(written) => self.answer(memory, answer.head, written),
                // The buffers lay in the memory of then.
                None => self.lost(),
            }
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
