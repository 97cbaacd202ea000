//! The requests in flight of one connection.

use super::in_flight::{Ended, InFlight};
use super::request::{IoRequest, Outcome};
use super::vm::Vm;
use super::volume::Volume;
use super::workers::{Job, Workers};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A front end's state of a request, which makes the answer.
pub(crate) trait RequestContext: Send + 'static {
    /// The answer, ready to be sent.
    type Reply: Send + 'static;

    /// Makes the answer; called by the thread that has executed the request.
    fn reply(self, result: io::Result<Outcome>) -> Self::Reply;
}

/// The requests of one connection to one volume, in its io_uring and with worker threads.
///
/// Only its connection's thread calls it.
pub(crate) struct IoQueue<C: RequestContext> {
    /// Its transfers; `None` if io_uring is not supported.
    in_flight: Option<InFlight<C>>,
    completions: Arc<CompletionQueue<Completion<C>>>,
    volume: Arc<Volume>,
    executor: Executor,
    limits: IoLimits,
    /// The number of requests with workers.
    offloaded: usize,
    /// Bytes in buffers of requests in flight.
    bytes: usize,
}

/// The result of a worker's job.
enum Completion<C: RequestContext> {
    /// An answered request, and the bytes of its buffer.
    Reply(C::Reply, usize),
    /// A request that continues: a read whose SSD part is done and whose rest comes from the disk, or a write that has waited
    /// for others.
    Resumed(Box<IoRequest<C>>),
}

impl<C: RequestContext> IoQueue<C> {
    pub(crate) fn new(
        volume: &Arc<Volume>,
        executor: &Executor,
        limits: IoLimits,
    ) -> io::Result<Self> {
        Ok(Self {
            in_flight: limits.io_uring.then(|| InFlight::new(volume)).flatten(),
            completions: Arc::new(CompletionQueue::new()?),
            volume: Arc::clone(volume),
            executor: executor.clone(),
            limits,
            offloaded: 0,
            bytes: 0,
        })
    }

    /// Requests that are not answered yet.
    pub(crate) fn len(&self) -> usize {
        self.offloaded + self.in_flight.as_ref().map_or(0, InFlight::len)
    }

    /// May another request be started?
    pub(crate) fn has_capacity(&self) -> bool {
        self.len() < self.limits.in_flight && self.bytes < self.limits.in_flight_bytes
    }

    /// Starts a request. [`submit`](Self::submit) must follow.
    pub(crate) fn start(&mut self, mut request: IoRequest<C>) {
        self.bytes += request.buffer_bytes();
        let Some(ticket) = self.volume.arrived(&request) else {
            return self.execute(request);
        };
        if !ticket.must_wait() {
            request.ticket = Some(ticket);
            return self.execute(request);
        }
        // An earlier write to the same range is in flight, perhaps of a client that is gone.
        self.offloaded += 1;
        let completions = Arc::clone(&self.completions);
        ticket.begin(move |ticket| {
            request.ticket = Some(ticket);
            completions.push(Completion::Resumed(Box::new(request)));
        });
    }

    /// Submits the started transfers to the kernel.
    pub(crate) fn submit(&mut self) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.submit();
        }
    }

    /// Appends finished answers.
    pub(crate) fn collect(&mut self, replies: &mut Vec<C::Reply>) {
        if self.offloaded > 0 {
            for completion in self.completions.collect() {
                self.offloaded -= 1;
                match completion {
                    Completion::Reply(reply, bytes) => {
                        self.volume.count_offloaded();
                        self.bytes -= bytes;
                        replies.push(reply);
                    }
                    Completion::Resumed(request) => self.execute(*request),
                }
            }
        }
        let Some(in_flight) = &mut self.in_flight else {
            return;
        };
        let mut again = Vec::new();
        let (volume, bytes) = (&self.volume, &mut self.bytes);
        in_flight.collect(|ended| match ended {
            Ended::Complete(request, result) => {
                volume.record(&request, &result);
                *bytes -= request.buffer_bytes();
                drop(request.ticket);
                replies.push(request.context.reply(result));
            }
            Ended::Again(request) => again.push(request),
        });
        for request in again {
            self.offload(request);
        }
    }

    /// Executes a request, through the ring if possible.
    fn execute(&mut self, request: IoRequest<C>) {
        let left = match &mut self.in_flight {
            Some(in_flight) => in_flight.start(request),
            None => Some(request),
        };
        if let Some(request) = left {
            self.offload(request);
        }
    }

    /// Lets a worker execute a request. A disk may hang, so the threads that wait for disks do not wait for the SSD store.
    fn offload(&mut self, mut request: IoRequest<C>) {
        self.offloaded += 1;
        let completions = Arc::clone(&self.completions);
        let volume = Arc::clone(&self.volume);
        let vm = self.volume.vm();
        if request.remainder.is_on_ssd() {
            let work = move || {
                completions.push(match volume.read_ssd(&mut request) {
                    Ok(true) => {
                        let data = request.take_data();
                        answer(&volume, request, Ok(data))
                    }
                    Ok(false) => Completion::Resumed(Box::new(request)),
                    Err(e) => answer(&volume, request, Err(e)),
                });
            };
            self.executor.submit_ssd(vm, Box::new(work));
        } else {
            let work = move || {
                let result = volume.execute(&mut request);
                completions.push(answer(&volume, request, result));
            };
            self.executor.submit_disk(vm, Box::new(work));
        }
    }

    /// Waits until an answer may be finished.
    pub(crate) fn wait(&self) {
        if self.may_sleep() {
            let events = self.events();
            let events = events.iter().flatten();
            let mut events: Vec<_> = events.map(|e| PollFd::new(e, PollFlags::IN)).collect();
            // EINTR: there is nothing to collect, and the caller waits again.
            let _ = poll(&mut events, None);
        }
        self.awake();
    }

    /// Call it before the thread sleeps. Returns `false` when workers have finished requests meanwhile.
    pub(crate) fn may_sleep(&self) -> bool {
        self.offloaded == 0 || self.completions.may_sleep()
    }

    /// Call it after the thread has slept.
    pub(crate) fn awake(&self) {
        if self.offloaded > 0 {
            self.completions.awake();
        }
    }

    /// Descriptors that are readable when requests have finished.
    pub(crate) fn events(&self) -> [Option<BorrowedFd<'_>>; 2] {
        [
            (self.offloaded > 0).then(|| self.completions.event()),
            self.in_flight.as_ref().and_then(InFlight::event),
        ]
    }
}

fn answer<C: RequestContext>(
    volume: &Volume,
    request: IoRequest<C>,
    result: io::Result<Outcome>,
) -> Completion<C> {
    volume.record(&request, &result);
    let bytes = request.buffer_bytes();
    drop(request.ticket);
    Completion::Reply(request.context.reply(result), bytes)
}

// The threads that wait for disks and for the SSD store.

/// Two pools of threads, shared by all front ends: one waits for disks, which may hang, the other for the SSD store.
#[derive(Clone)]
pub(crate) struct Executor {
    disk: Workers,
    ssd: Workers,
}

impl Executor {
    pub(crate) fn new(limits: &IoLimits) -> Self {
        Self {
            disk: Workers::new(limits.workers, limits.workers / 4),
            // All these threads wait for the same device, so a limit per VM would keep no thread free for others.
            ssd: Workers::new(limits.ssd_workers, limits.ssd_workers),
        }
    }

    /// Runs `job` on a thread that may wait for a disk.
    fn submit_disk(&self, vm: &Vm, job: Job) {
        self.disk.submit(&vm.disk_queue, job);
    }

    /// Runs `job` on a thread that may wait for the SSD store.
    fn submit_ssd(&self, vm: &Vm, job: Job) {
        self.ssd.submit(&vm.ssd_queue, job);
    }
}

// Limits of a front end's clients.

/// Limits of requests in flight and of the threads that wait for disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IoLimits {
    /// Requests of one connection that wait for a disk.
    pub in_flight: usize,
    /// Bytes of their payload.
    pub in_flight_bytes: usize,
    /// Connections of one VM.
    pub vm_connections: usize,
    /// Threads that wait for disks, for all clients together. One VM has at most a quarter of them.
    pub workers: usize,
    /// Threads that wait for the SSD store, for all clients together.
    pub ssd_workers: usize,
    /// Use io_uring for images if the host supports it; otherwise worker threads do the I/O.
    pub io_uring: bool,
}

impl Default for IoLimits {
    fn default() -> Self {
        Self {
            in_flight: 128,
            in_flight_bytes: 32 << 20,
            vm_connections: 64,
            workers: 64,
            ssd_workers: 16,
            io_uring: true,
        }
    }
}

// Results of worker threads for the connection's thread.

/// A queue with an eventfd, which is written only when the connection's thread sleeps.
pub(super) struct CompletionQueue<T> {
    ready: Mutex<Vec<T>>,
    /// The connection's thread sleeps or is about to, so it must be woken.
    sleeping: AtomicBool,
    event: OwnedFd,
}

impl<T> CompletionQueue<T> {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            ready: Mutex::default(),
            sleeping: AtomicBool::new(false),
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Adds a result; a worker thread calls it.
    pub(super) fn push(&self, completion: T) {
        self.ready.lock().push(completion);
        if self.sleeping.swap(false, Ordering::SeqCst)
            && let Err(e) = rustix::io::write(&self.event, &1u64.to_ne_bytes())
        {
            tracing::error!("cannot wake a connection: {e}");
        }
    }

    /// Takes all results; the connection's thread calls it.
    pub(super) fn collect(&self) -> Vec<T> {
        std::mem::take(&mut *self.ready.lock())
    }

    /// The connection's thread calls it before it sleeps. Returns `false` when there are results to collect first.
    pub(super) fn may_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        let empty = self.ready.lock().is_empty();
        if !empty {
            self.sleeping.store(false, Ordering::SeqCst);
        }
        empty
    }

    /// The connection's thread calls it after it has slept.
    pub(super) fn awake(&self) {
        // Still set: no worker has written to the event.
        if !self.sleeping.swap(false, Ordering::SeqCst) {
            let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
        }
    }

    /// An eventfd that is readable when a worker has pushed a result while the thread slept.
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
