//! A front end of two queues with the driver, one memfd for the buffers of all its requests.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;
use virtio_driver::{
    VhostUser, VirtioBlkFeatureFlags, VirtioBlkQueue, VirtioBlkTransport, VirtioFeatureFlags,
};

/// The most bytes of a request, and requests in flight on each of the queues.
pub(crate) const REQUEST: usize = 16 << 10;
pub(crate) const DEPTH: usize = 16;
pub(crate) const QUEUES: usize = 2;
const BUFFERS: usize = QUEUES * DEPTH * REQUEST;

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Read,
    Write,
    Flush,
}

/// A front end.
pub(crate) struct Client {
    transport: Box<VirtioBlkTransport>,
    queues: Vec<VirtioBlkQueue<'static, usize>>,
    pub(crate) buffers: OwnedFd,
    memory: *mut u8,
}

impl Client {
    pub(crate) fn connect(socket: &Path) -> Self {
        let features = VirtioFeatureFlags::VERSION_1
            | VirtioFeatureFlags::RING_EVENT_IDX
            | VirtioFeatureFlags::RING_INDIRECT_DESC;
        let of_disks = VirtioBlkFeatureFlags::FLUSH
            | VirtioBlkFeatureFlags::MQ
            | VirtioBlkFeatureFlags::WRITE_ZEROES;
        let socket = socket.to_str().unwrap();
        let connected = VhostUser::new(socket, features.bits() | of_disks.bits()).unwrap();
        let mut transport: Box<VirtioBlkTransport> = Box::new(connected);
        let queues = VirtioBlkQueue::setup_queues(&mut *transport, QUEUES, 128).unwrap();
        let buffers = memfd_create("buffers", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&buffers, BUFFERS.try_into().unwrap()).unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let none = std::ptr::null_mut();
        // SAFETY: a new mapping, which stays until the process ends.
        let memory = unsafe { mmap(none, BUFFERS, access, MapFlags::SHARED, &buffers, 0) }.unwrap();
        transport
            .map_mem_region(memory.addr(), BUFFERS, buffers.as_raw_fd(), 0)
            .unwrap();
        Self {
            transport,
            queues,
            buffers,
            memory: memory.cast(),
        }
    }

    /// The buffer of a slot; a slot is a queue's and one request's at a time.
    pub(crate) fn buffer(&self, slot: usize) -> *mut u8 {
        self.memory.wrapping_add(slot * REQUEST)
    }

    /// Reads into the slot's buffer, or writes what is there, so many bytes.
    pub(crate) fn submit(&mut self, slot: usize, op: Op, offset: usize, bytes: usize) {
        assert!(bytes <= REQUEST);
        let (buffer, at) = (self.buffer(slot), offset.try_into().unwrap());
        let queue = &mut self.queues[slot / DEPTH];
        let queued = match op {
            // SAFETY: the buffer is mapped, and used by this request alone while that is under way.
            Op::Read => unsafe { queue.read_raw(at, buffer, bytes, slot) },
            // SAFETY: as before.
            Op::Write => unsafe { queue.write_raw(at, buffer, bytes, slot) },
            Op::Flush => queue.flush(slot),
        };
        queued.unwrap();
        self.notify(slot / DEPTH);
    }

    fn notify(&mut self, queue: usize) {
        if self.queues[queue].avail_notif_needed() {
            let notifier = self.transport.get_submission_notifier(queue);
            notifier.notify().unwrap();
        }
    }

    /// Waits for answers of a queue: slots.
    pub(crate) fn completed(&mut self, queue: usize) -> Vec<usize> {
        loop {
            // Asks for a signal with the next answer, and then looks.
            self.queues[queue].set_used_notif_enabled(true);
            let found: Vec<_> = self.queues[queue].completions().collect();
            if !found.is_empty() {
                assert!(found.iter().all(|done| done.ret == 0));
                return found.into_iter().map(|done| done.context).collect();
            }
            let event = self.transport.get_completion_fd(queue);
            // SAFETY: the eventfd owns the descriptor and outlives this.
            let borrowed = unsafe { BorrowedFd::borrow_raw(event.as_raw_fd()) };
            let mut waiting = [PollFd::from_borrowed_fd(borrowed, PollFlags::IN)];
            let seconds = Duration::from_secs(20).try_into().unwrap();
            assert!(poll(&mut waiting, Some(&seconds)).unwrap() > 0, "no answer");
            // A server makes eventfds nonblocking.
            let _ = event.read();
        }
    }
}
