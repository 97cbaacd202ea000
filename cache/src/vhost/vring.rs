//! One ring as described by the front end, and the thread that serves it.

use super::memory::GuestMemory;
use super::queue::RunningQueue;
use super::vring_events::VringEvents;
use crate::frontend::{Amount, BudgetShare};
use std::fs::File;
use std::io;
use std::sync::Arc;
use virtio_queue::{Queue, QueueT};
use vm_memory::GuestAddress;

/// Guest addresses of a ring's parts.
#[derive(Clone, Copy, Debug)]
pub(super) struct RingAddresses {
    pub(super) descriptors: GuestAddress,
    pub(super) available: GuestAddress,
    pub(super) used: GuestAddress,
}

/// The resources of a ring: three eventfds of the front end, two of its thread, and an io_uring. A thread and an io_uring use
/// up to eight mappings.
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
    /// The guest's eventfd that signals requests.
    pub(super) kick: Option<Arc<File>>,
    pub(super) events: Arc<VringEvents>,
    pub(super) enabled: bool,
    pub(super) running: Option<RunningQueue>,
    /// Its share of the front end's budget, from its first eventfd on.
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

    /// Ends its thread, once requests in flight are answered. Returns `false` when the guest has broken it.
    pub(super) fn stop(&mut self) -> bool {
        let Some(running) = self.running.take() else {
            return true;
        };
        let stopped = running.stop();
        self.base = stopped.base;
        stopped.is_whole
    }
}
