//! The thread of a queue: takes requests from the ring, and puts answers into it.

use super::chain::{AnswerBuffers, Chain, ChainError, DescriptorTable};
use super::hangup::Hangup;
use super::inflight::InflightQueue;
use super::limits::QUEUE_BYTES;
use super::memory::{GuestMemory, is_lost};
use super::request::{BlkHeader, Command, DeviceView, Status};
use super::vring_events::VringEvents;
use crate::backing::AlignedBuf;
use crate::frontend::{
    Executor, IoLimits, IoQueue, IoRequest, Operation, Outcome, RequestContext, Volume,
};
use arc_swap::ArcSwap;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use virtio_bindings::virtio_ring::VRING_AVAIL_F_NO_INTERRUPT;
use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress};

/// The parts of a queue's thread.
pub(super) struct QueueSetup {
    /// Its number, for messages.
    pub(super) index: usize,
    pub(super) ring: Queue,
    /// The guest's memory, which may change while the thread runs.
    pub(super) memory: Arc<ArcSwap<GuestMemory>>,
    pub(super) inflight: Option<InflightQueue>,
    pub(super) kick: Arc<File>,
    pub(super) events: Arc<VringEvents>,
    /// Writes are durable before they are answered.
    pub(super) write_through: Arc<AtomicBool>,
    pub(super) volume: Arc<Volume>,
    pub(super) executor: Executor,
    pub(super) limits: IoLimits,
    pub(super) hangup: Arc<Hangup>,
}

/// A queue with a running thread.
pub(super) struct RunningQueue {
    stop: Arc<StopSignal>,
    thread: std::thread::JoinHandle<Stopped>,
}

/// The state of a stopped queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stopped {
    /// The next index of the available ring.
    pub(super) base: u16,
    /// All taken requests are answered, and the guest has not violated the protocol.
    pub(super) is_whole: bool,
}

struct StopSignal {
    requested: AtomicBool,
    event: OwnedFd,
}

impl RunningQueue {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system refuses a thread or a ring.
    pub(super) fn start(setup: QueueSetup) -> io::Result<Self> {
        let stop = Arc::new(StopSignal {
            requested: AtomicBool::new(false),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let (ready, started) = mpsc::channel();
        let signal = Arc::clone(&stop);
        let base = setup.ring.next_avail();
        let thread = std::thread::Builder::new()
            .name("justitia-vhost".into())
            // The io_uring belongs to the thread that makes it.
            .spawn(move || match QueueWorker::new(setup, signal) {
                Ok(worker) => {
                    let _ = ready.send(Ok(()));
                    worker.run()
                }
                Err(e) => {
                    let _ = ready.send(Err(e));
                    Stopped {
                        base,
                        is_whole: false,
                    }
                }
            })?;
        started.recv().map_err(io::Error::other)??;
        Ok(Self { stop, thread })
    }

    /// Stops taking requests, and waits until those in flight are answered.
    pub(super) fn stop(self) -> Stopped {
        self.stop.requested.store(true, Ordering::SeqCst);
        if let Err(e) = rustix::io::write(&self.stop.event, &1u64.to_ne_bytes()) {
            tracing::error!("cannot wake a queue: {e}");
        }
        self.thread.join().unwrap_or_else(|_| {
            tracing::error!("a queue's thread panicked");
            Stopped::default()
        })
    }
}

/// A queue, owned by its thread.
struct QueueWorker {
    setup: QueueSetup,
    stop: Arc<StopSignal>,
    io: IoQueue<AnswerContext>,
    /// Taken heads that are not yet answered.
    taken: Vec<bool>,
    /// Heads that the last server has not answered.
    left: VecDeque<u16>,
    /// Empty between two requests.
    chain: Chain,
    buffers: Buffers,
    /// Empty between two turns of the loop.
    answers: Vec<Answer>,
    /// The guest has not yet been signalled of some answers.
    unsignalled: bool,
    /// The guest has violated the protocol: no further request is taken.
    broken: bool,
}

impl QueueWorker {
    fn new(mut setup: QueueSetup, stop: Arc<StopSignal>) -> io::Result<Self> {
        let limits = IoLimits {
            in_flight_bytes: setup.limits.in_flight_bytes.min(QUEUE_BYTES),
            ..setup.limits
        };
        let mut left = VecDeque::new();
        let used = setup.ring.next_used();
        if let Some(unanswered) = setup.inflight.as_mut().and_then(|i| i.recover(used)) {
            setup.ring.set_next_avail(unanswered.next_available);
            left.extend(unanswered.heads);
        }
        Ok(Self {
            io: IoQueue::new(&setup.volume, &setup.executor, limits)?,
            taken: vec![false; usize::from(setup.ring.size())],
            setup,
            stop,
            left,
            chain: Chain::default(),
            buffers: Buffers::default(),
            answers: Vec::new(),
            unsignalled: false,
            broken: false,
        })
    }

    fn run(mut self) -> Stopped {
        // The last server may have answered without a signal.
        self.setup.events.call();
        loop {
            let memory = self.setup.memory.load_full();
            self.collect(&memory);
            let stopping = self.stop.requested.load(Ordering::SeqCst);
            let taken = self.take_left(&memory);
            let more = taken && !stopping && self.take(&memory);
            self.io.submit();
            self.signal(&memory);
            self.check_lost(&memory);
            if stopping && taken && self.io.len() == 0 {
                return Stopped {
                    base: self.setup.ring.next_avail(),
                    is_whole: !self.broken && self.left.is_empty(),
                };
            }
            if !more {
                self.sleep(stopping);
            }
        }
    }

    /// Ends the connection of a front end that has truncated its memory.
    fn check_lost(&mut self, memory: &GuestMemory) {
        let inflight = self.setup.inflight.as_ref();
        if is_lost(memory) || inflight.is_some_and(InflightQueue::is_lost) {
            self.lost();
        }
    }

    fn lost(&mut self) {
        let why = "expected memory that stays, found some of it taken away: its file was truncated, or there are no huge pages left";
        self.break_off(&why);
        self.setup.hangup.end(why);
    }

    /// Stops taking requests until the front end restarts the queue.
    fn break_off(&mut self, why: &dyn std::fmt::Display) {
        if !self.broken {
            if let Some(left_out) = self.setup.volume.log.permit() {
                tracing::warn!(
                    disk = self.setup.volume.name(),
                    queue = self.setup.index,
                    "stopped a queue until its driver resets it: {why}{left_out}"
                );
            }
            self.broken = true;
            self.setup.events.fail();
        }
    }
}

// Taking requests from the ring, a bounded number at a time.

/// The most requests taken between two looks at answers.
const BATCH: usize = 64;

impl QueueWorker {
    /// Takes requests. Returns `true` when there may be more, and capacity for them.
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

    /// Takes the requests that the last server has not answered, in its order. Returns `true` when all are taken.
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

    /// Asks the guest for a signal on new requests. Returns `true` if there are some already.
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
            // The guest reuses a head whose request is not answered.
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

/// The next available head. An index more than the ring's size ahead is an error.
fn next_head(ring: &mut Queue, memory: &GuestMemory) -> Result<Option<u16>, virtio_queue::Error> {
    if ring.avail_idx(memory, Ordering::Acquire)?.0 == ring.next_avail() {
        return Ok(None);
    }
    let next = ring.iter(memory)?.next();
    // None: the index went back, or the memory lacks the entry. A retry cannot succeed.
    let next = next.ok_or(virtio_queue::Error::InvalidAvailRingIndex)?;
    Ok(Some(next.head_index()))
}

// Answering a request at once, or starting it.

impl QueueWorker {
    /// Executes the request of the chain that was read last.
    pub(super) fn execute(&mut self, memory: &Arc<GuestMemory>) -> Result<(), ChainError> {
        let header = self.chain.header(memory)?;
        let segment = if header.has_segment() {
            self.chain.segment(memory)?
        } else {
            None
        };
        let volume = &self.setup.volume;
        let device = DeviceView {
            size: volume.size(),
            read_only: volume.is_read_only(),
            write_through: self.setup.write_through.load(Ordering::Relaxed),
        };
        let (readable, writable) = (self.chain.readable(), self.chain.writable());
        let command = header.command(device, readable, writable, segment);
        if let Some(inflight) = &mut self.setup.inflight {
            inflight.taken(self.chain.head());
        }
        match command {
            Command::Do(Operation::Read, offset, length) => {
                return self.read(memory, &header, offset, length);
            }
            Command::Do(Operation::Write { fua }, offset, length) => {
                return self.write(memory, offset, length, fua);
            }
            Command::Do(Operation::Flush, ..) if device.read_only => {
                self.answer_now(memory, &[], Status::Ok)?;
            }
            Command::Do(operation, offset, length) => {
                let context = self.context(memory, false);
                let request = IoRequest::new(operation, offset, length, context);
                self.io.start(request);
            }
            Command::GetId => {
                let serial = volume.shown_serial();
                self.answer_now(memory, &serial, Status::Ok)?;
            }
            Command::Refused(status) => {
                volume.count_error();
                self.answer_now(memory, &[], status)?;
            }
        }
        Ok(())
    }

    /// Answers from the cache, or starts reading the missing blocks.
    fn read(
        &mut self,
        memory: &Arc<GuestMemory>,
        header: &BlkHeader,
        offset: u64,
        length: u64,
    ) -> Result<(), ChainError> {
        // A request has at most `MAX_REQUEST` bytes, which fit.
        let size = usize::try_from(length).map_err(|_| ChainError::Broken)?;
        let volume = &self.setup.volume;
        let pool = header.tag().and_then(|tag| volume.pool_of(tag));
        let mut buffer = self.buffers.take(size);
        let missing = volume.backend().look_up(pool.as_ref(), &mut buffer, offset);
        let Some(remainder) = missing else {
            volume.count_inline_hit(length);
            let answered = self.answer_now(memory, &buffer, Status::Ok);
            self.buffers.keep(buffer);
            return answered;
        };
        let context = self.context(memory, true);
        let mut request = IoRequest::new(Operation::Read, offset, length, context);
        (request.data, request.remainder) = (buffer, remainder);
        self.io.start(request);
        Ok(())
    }

    fn write(
        &mut self,
        memory: &Arc<GuestMemory>,
        offset: u64,
        length: u64,
        fua: bool,
    ) -> Result<(), ChainError> {
        let size = usize::try_from(length).map_err(|_| ChainError::Broken)?;
        let mut payload = self.buffers.take(size);
        self.chain.payload(memory, &mut payload)?;
        let context = self.context(memory, false);
        let mut request = IoRequest::new(Operation::Write { fua }, offset, length, context);
        request.data = payload;
        self.io.start(request);
        Ok(())
    }

    fn context(&mut self, memory: &Arc<GuestMemory>, with_data: bool) -> AnswerContext {
        AnswerContext {
            memory: Arc::clone(memory),
            buffers: self.chain.answer(with_data),
        }
    }

    fn answer_now(
        &mut self,
        memory: &GuestMemory,
        data: &[u8],
        status: Status,
    ) -> Result<(), ChainError> {
        let written = self.chain.answer_now(memory, data, status);
        let written = written.map_err(|_| ChainError::Outside)?;
        self.answer(memory, self.chain.head(), written);
        Ok(())
    }
}

// Putting answers into the ring, and signalling the guest.

impl QueueWorker {
    /// Puts finished answers into the ring.
    pub(super) fn collect(&mut self, memory: &GuestMemory) {
        let mut answers = std::mem::take(&mut self.answers);
        self.io.collect(&mut answers);
        for answer in answers.drain(..) {
            if let Some(buf) = answer.buffer {
                self.buffers.keep(buf);
            }
            match answer.written {
                Some(written) => self.answer(memory, answer.head, written),
                // The request's memory was truncated.
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

    /// Signals new answers to the guest, if it wants signals.
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

    /// Has the driver left signals on? Without event indices it has a flag for that.
    fn wants_signals(&self, memory: &GuestMemory) -> bool {
        let ring = &self.setup.ring;
        let flags = || memory.load::<u16>(GuestAddress(ring.avail_ring()), Ordering::Relaxed);
        ring.event_idx_enabled()
            || !flags()
                .is_ok_and(|flags| u32::from(u16::from_le(flags)) & VRING_AVAIL_F_NO_INTERRUPT != 0)
    }
}

// Waiting for the guest and for requests in flight.

impl QueueWorker {
    /// Sleeps until the queue can take a new request, one in flight has ended, or the queue must stop.
    pub(super) fn sleep(&self, stopping: bool) {
        if !self.io.may_sleep() {
            return;
        }
        let wanted = !stopping && self.has_capacity();
        let kick = wanted.then(|| self.setup.kick.as_fd());
        let stop = (!stopping).then(|| self.stop.event.as_fd());
        let [completions, ring] = self.io.events();
        let events = [kick, stop, completions, ring];
        let mut waiting: Vec<PollFd<'_>> = events
            .iter()
            .flatten()
            .map(|event| PollFd::from_borrowed_fd(*event, PollFlags::IN))
            .collect();
        // EINTR needs no retry: the loop checks everything.
        if let Err(e) = poll(&mut waiting, None)
            && e != Errno::INTR
        {
            tracing::error!("a queue cannot wait: {e}");
        }
        self.io.awake();
        if wanted {
            // Resets the eventfd; it may be 0 already. The loop checks the ring next.
            let _ = rustix::io::read(&*self.setup.kick, &mut [0; 8]);
        }
    }
}

// Answers and their buffers.

/// The largest buffer that is kept for later requests, bytes.
const MAX_KEPT_BYTES: usize = 32 << 10;
/// The most buffers that are kept.
const MAX_KEPT: usize = 64;

/// The state of a request for its answer.
pub(super) struct AnswerContext {
    /// The memory when the request was taken.
    pub(super) memory: Arc<GuestMemory>,
    pub(super) buffers: AnswerBuffers,
}

/// An answer in the guest's memory that is not yet in the ring.
pub(super) struct Answer {
    pub(super) head: u16,
    /// Bytes written to the guest's memory. `None` when the memory was truncated.
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

/// Buffers for later requests. They may contain earlier reads of this guest.
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
