//! One ring as the front end has described it, and the thread that serves it.

use super::memory::GuestMemory;
use super::queue::RunningQueue;
use super::vring_events::VringEvents;
use crate::frontend::{Amount, BudgetShare};
use std::fs::File;
use std::io;
use std::sync::Arc;
use virtio_queue::{Queue, QueueT};
use vm_memory::GuestAddress;

/// Where the parts of a ring are in the guest's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingAddresses {
    pub(super) descriptors: GuestAddress,
    pub(super) available: GuestAddress,
    pub(super) used: GuestAddress,
}

/// What a ring takes: three eventfds of the front end, two of its thread, and an io_uring; a thread and an io_uring are up to
/// eight mappings.
pub(super) const RING: Amount = Amount {
    bytes: 0,
    mappings: 8,
    files: 6,
};

/// One ring.
#[derive(Default)]
pub(super) struct Vring {
    /// Entries; 0 until it is known.
    pub(super) size: u16,
    pub(super) addresses: Option<RingAddresses>,
    /// The next index of the available ring.
    pub(super) base: u16,
    /// The guest's, to say that there are requests.
    pub(super) kick: Option<Arc<File>>,
    pub(super) events: Arc<VringEvents>,
    pub(super) enabled: bool,
    pub(super) running: Option<RunningQueue>,
    /// Of the front end's budget, from its first eventfd on.
    pub(super) share: Option<BudgetShare>,
}

impl Vring {
    /// The ring, ready to be served.
    ///
    /// # Errors
    /// When a part of it is missing, misaligned, or outside the memory.
    pub(super) fn ring(&self, memory: &GuestMemory, event_index: bool) -> io::Result<Queue> {
        let invalid = |e: virtio_queue::Error| io::Error::new(io::ErrorKind::InvalidInput, e);
        let addresses = self.addresses.ok_or(io::ErrorKind::InvalidInput)?;
        let mut ring = Queue::new(self.size).map_err(invalid)?;
        ring.try_set_size(self.size).map_err(invalid)?;
        ring.try_set_desc_table_address(addresses.descriptors)
            .map_err(invalid)?;
        ring.try_set_avail_ring_address(addresses.available)
            .map_err(invalid)?;
        ring.try_set_used_ring_address(addresses.used)
            .map_err(invalid)?;
        ring.set_event_idx(event_index);
        ring.set_ready(true);
        if !ring.is_valid(memory) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "expected a ring in the guest's memory, found one outside",
            ));
        }
        ring.set_next_avail(self.base);
        let used = ring
            .used_idx(memory, std::sync::atomic::Ordering::Acquire)
            .map_err(invalid)?;
        ring.set_next_used(used.0);
        Ok(ring)
    }

    /// Ends its thread, once what is in flight is answered. `false` when the guest has broken it.
    pub(super) fn stop(&mut self) -> bool {
        let Some(running) = self.running.take() else {
            return true;
        };
        let stopped = running.stop();
        self.base = stopped.base;
        stopped.is_whole
    }
}
