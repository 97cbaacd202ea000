//! The requests of one connection that are under way.

use super::completion::CompletionQueue;
use super::executor::Executor;
use super::in_flight::{Ended, InFlight};
use super::limits::IoLimits;
use super::request::{IoRequest, Outcome};
use super::volume::Volume;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

/// What a front end needs to answer a request.
pub(crate) trait RequestContext: Send + 'static {
    /// The answer, ready to be sent.
    type Reply: Send + 'static;

    /// Makes the answer; called by the thread that has executed the request.
    fn reply(self, result: io::Result<Outcome>) -> Self::Reply;
}

/// The requests of one connection to one volume: in its io_uring, and with worker threads.
///
/// Its connection's thread alone calls it.
pub(crate) struct IoQueue<C: RequestContext> {
    /// Its transfers; none where io_uring is not supported.
    in_flight: Option<InFlight<C>>,
    completions: Arc<CompletionQueue<Completion<C>>>,
    volume: Arc<Volume>,
    executor: Executor,
    limits: IoLimits,
    /// Requests that workers have.
    offloaded: usize,
    /// Bytes of the buffers of requests that are under way.
    bytes: usize,
}

/// What a worker has done.
enum Completion<C: RequestContext> {
    /// All of it; the bytes that it held.
    Reply(C::Reply, usize),
    /// A request that goes on: a read whose part on the SSD was read, the rest is the disk's; or a write that has waited for
    /// others.
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
        // An earlier write to the same place is still under way, perhaps of a client that is gone.
        self.offloaded += 1;
        let completions = Arc::clone(&self.completions);
        ticket.begin(move |ticket| {
            request.ticket = Some(ticket);
            completions.push(Completion::Resumed(Box::new(request)));
        });
    }

    /// Lets the kernel begin what was started.
    pub(crate) fn submit(&mut self) {
        if let Some(in_flight) = &mut self.in_flight {
            in_flight.submit();
        }
    }

    /// Appends the answers that are ready.
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

    /// Executes a request: through the ring if that is possible.
    fn execute(&mut self, request: IoRequest<C>) {
        let left = match &mut self.in_flight {
            Some(in_flight) => in_flight.start(request),
            None => Some(request),
        };
        if let Some(request) = left {
            self.offload(request);
        }
    }

    /// Lets a worker execute a request. Threads that wait for a disk, which may hang, do not wait for the SSD store.
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

    /// Called before the thread sleeps: `false` when workers have left something to collect first.
    pub(crate) fn may_sleep(&self) -> bool {
        self.offloaded == 0 || self.completions.may_sleep()
    }

    /// Called after the thread has slept.
    pub(crate) fn awake(&self) {
        if self.offloaded > 0 {
            self.completions.awake();
        }
    }

    /// Descriptors that are readable when there is something to collect.
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
