//! The thread of a queue: it takes requests from the ring, and puts answers there.

mod answer;
mod collect;
mod execute;
mod take;
mod wait;

use super::chain::Chain;
use super::device_limits::QUEUE_BYTES;
use super::hangup::Hangup;
use super::inflight::InflightQueue;
use super::memory::{GuestMemory, is_lost};
use super::vring_events::VringEvents;
use crate::frontend::{Executor, IoLimits, IoQueue, Volume};
use answer::{Answer, AnswerContext, Buffers};
use arc_swap::ArcSwap;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use virtio_queue::{Queue, QueueT};

/// What a queue's thread needs.
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

/// A queue whose thread runs.
pub(super) struct RunningQueue {
    stop: Arc<StopSignal>,
    thread: std::thread::JoinHandle<Stopped>,
}

/// Where a queue has stopped.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stopped {
    /// The next index of the available ring.
    pub(super) base: u16,
    /// All that was taken is answered, and the guest has done nothing that no driver does.
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

    /// Takes no more requests, waits until those in flight are answered.
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

/// A queue, in its thread.
struct QueueWorker {
    setup: QueueSetup,
    stop: Arc<StopSignal>,
    io: IoQueue<AnswerContext>,
    /// Heads whose answers the guest waits for.
    taken: Vec<bool>,
    /// Heads that the last server has not answered.
    left: VecDeque<u16>,
    /// Empty between two requests.
    chain: Chain,
    buffers: Buffers,
    /// Empty between two turns of the loop.
    answers: Vec<Answer>,
    /// There are answers that the guest was not told of.
    unsignalled: bool,
    /// The guest has done what no driver does: nothing more is taken.
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
        // What the last server has answered it may not have said.
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

    /// Ends the connection of a front end that takes away what it has handed over.
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

    /// Takes no more requests, until the front end starts the queue again.
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
