//! Threads that may wait for a disk.

use justitia_share::{Order, VirtualTime, WaitQueue, Weight};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;

/// What a worker does.
type Job = Box<dyn FnOnce() + Send>;

/// A pool of threads, started as they are needed. Jobs that wait are served in proportion to weight
/// ([`Order::VirtualTime`]): under contention a VM's misses get its share of the workers.
#[derive(Clone)]
pub struct Workers(Arc<Handle>);

/// What the pool's users share; with the last of them the threads end, once nothing waits any more.
struct Handle {
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.work.notify_all();
    }
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    most: usize,
}

struct State {
    waiting: WaitQueue<Job>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl Workers {
    /// A pool of at most `most` threads, at least one.
    pub fn new(most: usize) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                waiting: WaitQueue::new(Order::VirtualTime),
                threads: 0,
                idle: 0,
                closed: false,
            }),
            work: Condvar::new(),
            most: most.max(1),
        });
        Self(Arc::new(Handle { shared }))
    }

    /// Lets `job` be done, for a claimant of this weight and past; returns its new past.
    pub fn submit(&self, weight: Weight, past: VirtualTime, job: Job) -> VirtualTime {
        let mut state = self.0.shared.state.lock();
        let past = state.waiting.push_after(weight, past, job);
        if state.idle >= state.waiting.len() {
            drop(state);
            self.0.shared.work.notify_one();
        } else if state.threads < self.0.shared.most {
            state.threads += 1;
            drop(state);
            self.start();
        }
        past
    }

    fn start(&self) {
        let shared = Arc::clone(&self.0.shared);
        let started = std::thread::Builder::new()
            .name("justitia-io".into())
            .spawn(move || shared.work());
        if let Err(e) = started {
            self.0.shared.state.lock().threads -= 1;
            tracing::error!("cannot start a worker thread: {e}; requests wait for those that run");
        }
    }
}

impl Shared {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.waiting.pop() {
                drop(state);
                job();
                state = self.state.lock();
            } else if state.closed {
                state.threads -= 1;
                return;
            } else {
                state.idle += 1;
                self.work.wait(&mut state);
                state.idle -= 1;
            }
        }
    }
}
