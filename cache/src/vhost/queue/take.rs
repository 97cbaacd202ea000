//! Taking requests from the ring, a bounded number at a time.

use super::QueueWorker;
use crate::vhost::chain::{ChainError, DescriptorTable};
use crate::vhost::memory::GuestMemory;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::GuestAddress;

/// Requests that are taken before answers are looked at again.
const BATCH: usize = 64;

impl QueueWorker {
    /// Takes requests. `true` when there may be more, and room for them.
    pub(super) fn take(&mut self, memory: &Arc<GuestMemory>) -> bool {
        if let Err(e) = self.setup.ring.disable_notification(&**memory) {
            self.break_off(&e);
        }
        for _ in 0..BATCH {
            if !self.has_capacity() {
                return false;
            }
            match next_head(&mut self.setup.ring, memory) {
                Ok(Some(head)) => self.take_one(memory, head),
                Ok(None) => return self.may_be_more(memory),
                Err(e) => self.break_off(&e),
            }
        }
        true
    }

    /// Takes what the last server has not answered, in its order. `true` when all of it is taken.
    pub(super) fn take_left(&mut self, memory: &Arc<GuestMemory>) -> bool {
        while self.has_capacity()
            && let Some(head) = self.left.pop_front()
        {
            self.take_one(memory, head);
        }
        self.left.is_empty() || self.broken
    }

    pub(super) fn has_capacity(&self) -> bool {
        !self.broken && self.io.has_capacity()
    }

    /// Asks the guest for a signal when there is more, unless there is already.
    fn may_be_more(&mut self, memory: &GuestMemory) -> bool {
        match self.setup.ring.enable_notification(memory) {
            Ok(more) => more,
            Err(e) => {
                self.break_off(&e);
                false
            }
        }
    }

    fn take_one(&mut self, memory: &Arc<GuestMemory>, head: u16) {
        let table = DescriptorTable {
            address: GuestAddress(self.setup.ring.desc_table()),
            entries: self.setup.ring.size(),
        };
        let read = match self.taken.get_mut(usize::from(head)) {
            // The guest has not got its answer, and asks with the same descriptors again.
            Some(true) | None => Err(ChainError::Broken),
            Some(taken) => {
                *taken = true;
                self.chain.read(memory, table, head)
            }
        };
        if let Err(e) = read.and_then(|()| self.execute(memory)) {
            self.break_off(&e);
        }
    }
}

/// The next head that the guest has made available. An index that is more than the ring's size ahead is an error.
fn next_head(ring: &mut Queue, memory: &GuestMemory) -> Result<Option<u16>, virtio_queue::Error> {
    if ring.avail_idx(memory, Ordering::Acquire)?.0 == ring.next_avail() {
        return Ok(None);
    }
    let next = ring.iter(memory)?.next();
    // None: the index went back, or the memory has no such entry. No later look finds more.
    let next = next.ok_or(virtio_queue::Error::InvalidAvailRingIndex)?;
    Ok(Some(next.head_index()))
}
