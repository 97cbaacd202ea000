//! A disk over vhost-user-blk with `virtio-driver`, the driver of libblkio. Its memory is memfds that cannot be sealed.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use justitia_cache::serve::{Config, Service};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};
use virtio_driver::{
    VhostUser, VirtioBlkFeatureFlags, VirtioBlkQueue, VirtioBlkTransport, VirtioFeatureFlags,
};

/// Bytes of the disk, of a request, and requests in flight on each of the queues.
const SIZE: usize = 16 << 20;
const REQUEST: usize = 16 << 10;
const DEPTH: usize = 16;
const QUEUES: usize = 2;
const BUFFERS: usize = QUEUES * DEPTH * REQUEST;

struct Client {
    transport: Box<VirtioBlkTransport>,
    queues: Vec<VirtioBlkQueue<'static, usize>>,
    buffers: OwnedFd,
    memory: *mut u8,
}

impl Client {
    fn connect(socket: &Path) -> Self {
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
    fn buffer(&self, slot: usize) -> *mut u8 {
        self.memory.wrapping_add(slot * REQUEST)
    }

    fn submit(&mut self, slot: usize, write: bool, offset: usize) {
        let (queue, buffer) = (slot / DEPTH, self.buffer(slot));
        let at = offset.try_into().unwrap();
        // SAFETY: the buffer is mapped, and nobody else's while the request is under way.
        let queued = unsafe {
            if write {
                self.queues[queue].write_raw(at, buffer, REQUEST, slot)
            } else {
                self.queues[queue].read_raw(at, buffer, REQUEST, slot)
            }
        };
        queued.unwrap();
        self.notify(queue);
    }

    fn notify(&mut self, queue: usize) {
        if self.queues[queue].avail_notif_needed() {
            let notifier = self.transport.get_submission_notifier(queue);
            notifier.notify().unwrap();
        }
    }

    /// Waits for answers of a queue: slots.
    fn completed(&mut self, queue: usize) -> Vec<usize> {
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

fn serve(directory: &Path) -> Service {
    let image = directory.join("image");
    let file = std::fs::File::create(&image).unwrap();
    file.set_len(SIZE.try_into().unwrap()).unwrap();
    let text = format!(
        "[memory]\nsize = \"4MiB\"\n[[vm]]\nname = \"vm\"\n[[vm.disk]]\nname = \"disk\"\nimage = {image:?}\nvhost = {:?}\n",
        directory.join("vhost"),
    );
    Service::start(&Config::parse(Path::new("cache.toml"), &text).unwrap()).unwrap()
}

/// Random numbers, the same in every run.
fn random(state: &mut u64, below: usize) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    usize::try_from(*state % u64::try_from(below).unwrap()).unwrap()
}

/// Writes and reads all over the disk, with verification. Returns what the disk must hold.
fn verify(client: &mut Client, requests: usize) -> Vec<u8> {
    let mut content = vec![0_u8; SIZE];
    let mut under_way: Vec<Option<(bool, usize)>> = vec![None; QUEUES * DEPTH];
    let mut state = 0x9e37_79b9_7f4a_7c15;
    for n in 0..requests {
        for slot in 0..under_way.len() {
            let offset = random(&mut state, SIZE / REQUEST) * REQUEST;
            let busy = under_way
                .iter()
                .flatten()
                .any(|(_, other)| *other == offset);
            if under_way[slot].is_some() || busy {
                continue;
            }
            let write = random(&mut state, 2) == 0;
            if write {
                let byte = u8::try_from(1 + random(&mut state, 255)).unwrap();
                content[offset..offset + REQUEST].fill(byte);
                // SAFETY: as in `submit`.
                unsafe { client.buffer(slot).write_bytes(byte, REQUEST) };
            }
            client.submit(slot, write, offset);
            under_way[slot] = Some((write, offset));
        }
        let queue = n % QUEUES;
        for slot in client.completed(queue) {
            let Some((false, offset)) = under_way[slot].take() else {
                continue;
            };
            // SAFETY: as in `submit`; the request has ended.
            let found = unsafe { std::slice::from_raw_parts(client.buffer(slot), REQUEST) };
            assert!(found == &content[offset..offset + REQUEST], "at {offset}");
        }
    }
    for queue in 0..QUEUES {
        let mut left = under_way[queue * DEPTH..][..DEPTH].iter().flatten().count();
        while left > 0 {
            left -= client.completed(queue).len();
        }
    }
    client.queues[0].flush(0).unwrap();
    client.notify(0);
    client.completed(0);
    content
}

#[test]
fn what_libblkios_driver_reads_is_what_it_has_written() {
    let directory = tempfile::tempdir().unwrap();
    let service = serve(directory.path());
    let socket = directory.path().join("vhost");
    let mut client = Client::connect(&socket);
    let content = verify(&mut client, 5000);
    assert!(std::fs::read(directory.path().join("image")).unwrap() == content);
    // Its buffers are gone while it reads: it is cut off, and the next one is served.
    for slot in 0..QUEUES * DEPTH {
        client.submit(slot, false, slot * REQUEST);
    }
    ftruncate(&client.buffers, 0).unwrap();
    for slot in 0..16 {
        // The rings have room for more.
        client.submit(slot, false, slot * REQUEST);
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while service.stats().vhost_front_ends > 0 {
        assert!(Instant::now() < deadline, "it is not cut off");
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut next = Client::connect(&socket);
    next.submit(0, false, 0);
    next.completed(0);
}
