//! A disk as front ends serve it.

use super::backend::{Allocation, Backend};
use super::gate::Gates;
use super::log_limit::LogLimit;
use super::vm::{ContainerTag, Vm};
use super::write_order::WriteOrder;
use crate::cache::PoolHandle;
use justitia_link::Serial;
use serde::Serialize;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A disk under a name, with its VM and its counters.
pub struct Volume {
    name: String,
    serial: Option<Serial>,
    read_only: bool,
    backend: Backend,
    allocation: Option<Arc<dyn Allocation>>,
    vm: Arc<Vm>,
    counters: Counters,
    /// Of its writes, whatever connection they came by.
    pub(super) write_order: Arc<WriteOrder>,
    pub(crate) gates: Gates,
    /// Of lines that its guest or clients can cause.
    pub(crate) log: LogLimit,
}

#[derive(Default)]
struct Counters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    inline_hits: AtomicU64,
    offloaded_requests: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    errors: AtomicU64,
    unknown_tags: AtomicU64,
}

/// What a volume has done since it was added.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct VolumeStats {
    /// Its name.
    pub name: String,
    /// Reads answered.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Of the reads, those that were answered from the cache by the connection's own thread, without waiting.
    pub inline_hits: u64,
    /// Requests that a worker thread answered: those that take more than one transfer, reads that the SSD answers as a
    /// whole, and where io_uring is not supported all but hits in memory.
    pub offloaded_requests: u64,
    /// Writes, discards and write-zeroes answered.
    pub writes: u64,
    /// Bytes they covered.
    pub write_bytes: u64,
    /// Requests answered with an error.
    pub errors: u64,
    /// Reads with the tag of a container that no pool has: the VM's default pool took their blocks.
    pub unknown_tags: u64,
    /// Why a flush or a durable write has failed: what was written until then may be lost, and every later one fails.
    pub sync_failed: Option<String>,
}

impl Volume {
    /// Serves `backend` as `name`, writable, as the disk of a VM of its own that clients with certificates do not see.
    #[must_use]
    pub fn new(name: &str, backend: Backend) -> Self {
        Self {
            name: name.to_owned(),
            serial: None,
            read_only: false,
            backend,
            allocation: None,
            vm: Arc::default(),
            counters: Counters::default(),
            write_order: Arc::default(),
            gates: Gates::default(),
            log: LogLimit::default(),
        }
    }

    /// Its guest sees this serial, where the front end has serials. Without one it sees the first 20 bytes of the name.
    #[must_use]
    pub const fn serial(mut self, serial: Option<Serial>) -> Self {
        self.serial = serial;
        self
    }

    /// Refuses writes.
    #[must_use]
    pub const fn read_only(mut self, yes: bool) -> Self {
        self.read_only = yes;
        self
    }

    /// Answers requests for allocated extents from this.
    #[must_use]
    pub fn allocation(mut self, from: Arc<dyn Allocation>) -> Self {
        self.allocation = Some(from);
        self
    }

    /// Makes it a disk of this VM.
    #[must_use]
    pub fn of_vm(mut self, vm: &Arc<Vm>) -> Self {
        self.vm = Arc::clone(vm);
        self
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The serial that its guest sees, padded with zeroes.
    pub(crate) fn shown_serial(&self) -> [u8; Serial::MAX] {
        let of_name = || {
            let mut bytes = [0; Serial::MAX];
            bytes
                .iter_mut()
                .zip(self.name.bytes())
                .for_each(|(to, from)| *to = from);
            bytes
        };
        self.serial.map_or_else(of_name, |serial| serial.bytes())
    }

    /// The disk behind it.
    #[must_use]
    pub const fn backend(&self) -> &Backend {
        &self.backend
    }

    /// Bytes of the disk.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.backend.disk().size()
    }

    /// Whether writes are refused.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// Is no write of it under way, by whatever connection it came?
    pub(crate) fn is_idle(&self) -> bool {
        self.write_order.is_idle()
    }

    /// The VM that it belongs to.
    #[must_use]
    pub const fn vm(&self) -> &Arc<Vm> {
        &self.vm
    }

    /// What it has done.
    #[must_use]
    pub fn stats(&self) -> VolumeStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        VolumeStats {
            name: self.name.clone(),
            reads: read(&counters.reads),
            read_bytes: read(&counters.read_bytes),
            inline_hits: read(&counters.inline_hits),
            offloaded_requests: read(&counters.offloaded_requests),
            writes: read(&counters.writes),
            write_bytes: read(&counters.write_bytes),
            errors: read(&counters.errors),
            unknown_tags: read(&counters.unknown_tags),
            sync_failed: self.backend.disk().sync_failure(),
        }
    }

    /// The extents of a range; without an [`Allocation`] all of it is data.
    pub(super) fn extents(
        &self,
        off: u64,
        count: u64,
        limit: usize,
    ) -> io::Result<Vec<(u64, bool)>> {
        match &self.allocation {
            Some(allocation) => allocation.extents(off, count, limit),
            None => Ok(vec![(count, false)]),
        }
    }

    /// The pool of a container; `None` for the VM's default pool. A tag that no pool has is counted.
    pub(crate) fn pool_of(&self, tag: ContainerTag) -> Option<PoolHandle> {
        let found = self.vm.tags.get(tag).and_then(|id| self.backend.pool(id));
        if found.is_none() && matches!(self.backend, Backend::Cached(_)) {
            self.counters.unknown_tags.fetch_add(1, Ordering::Relaxed);
        }
        found
    }

    /// A read of so many bytes was answered from the cache without waiting.
    pub(crate) fn count_inline_hit(&self, bytes: u64) {
        self.counters.inline_hits.fetch_add(1, Ordering::Relaxed);
        self.count_read(bytes);
    }

    pub(super) fn count_read(&self, bytes: u64) {
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        self.counters.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn count_write(&self, bytes: u64) {
        self.counters.writes.fetch_add(1, Ordering::Relaxed);
        self.counters
            .write_bytes
            .fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn count_offloaded(&self) {
        self.counters
            .offloaded_requests
            .fetch_add(1, Ordering::Relaxed);
    }

    /// A request was answered with an error.
    pub(crate) fn count_error(&self) {
        self.counters.errors.fetch_add(1, Ordering::Relaxed);
    }
}
