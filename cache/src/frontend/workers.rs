//! Threads that may wait for a disk.

use justitia_share::{Queueing, VirtualTime, WaitQueue, Weight};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;

/// A job of a worker thread.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// A pool of threads, started on demand. Waiting jobs are served in proportion to weight ([`Queueing::Sfq`]): under contention
/// a VM's requests get its share of the workers.
#[derive(Clone)]
pub(super) struct Workers(Arc<Handle>);

/// The users' shared handle. After the last is dropped, the threads end once no job waits.
struct Handle {
    shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.work.notify_all();
    }
}

/// The jobs of one VM.
#[derive(Default)]
pub(super) struct VmQueue(Mutex<QueueState>);

#[derive(Default)]
struct QueueState {
    weight: Weight,
    virtual_start: VirtualTime,
    /// Jobs that wait for a worker or run.
    active: usize,
    /// Jobs beyond the VM's limit.
    held: VecDeque<Job>,
}

impl VmQueue {
    /// Sets the weight of later jobs.
    pub(super) fn set_weight(&self, weight: Weight) {
        self.0.lock().weight = weight;
    }
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    most: usize,
    /// The most threads of one VM.
    part: usize,
}

struct State {
    waiting: WaitQueue<(Arc<VmQueue>, Job)>,
    threads: usize,
    idle: usize,
    closed: bool,
}

impl Workers {
    /// A pool of at most `most` threads. One VM gets at most `part` of them; at least one.
    pub(super) fn new(most: usize, part: usize) -> Self {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                waiting: WaitQueue::new(Queueing::Sfq),
                threads: 0,
                idle: 0,
                closed: false,
            }),
            work: Condvar::new(),
            most: most.max(1),
            part: part.max(1),
        });
        Self(Arc::new(Handle { shared }))
    }

    /// Executes `job` for this VM. A VM's queue belongs to one pool.
    pub(super) fn submit(&self, queue: &Arc<VmQueue>, job: Job) {
        let shared = &self.0.shared;
        let mut vm = queue.0.lock();
        if vm.active >= shared.part {
            vm.held.push_back(job);
            return;
        }
        vm.active += 1;
        let mut state = shared.state.lock();
        state.enqueue(queue, &mut vm, job);
        drop(vm);
        if state.idle >= state.waiting.len() {
            drop(state);
            shared.work.notify_one();
        } else if state.threads < shared.most {
            state.threads += 1;
            drop(state);
            self.start();
        }
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

impl State {
    /// Lock the VM's queue before the pool.
    fn enqueue(&mut self, queue: &Arc<VmQueue>, vm: &mut QueueState, job: Job) {
        let job = (Arc::clone(queue), job);
        vm.virtual_start = self.waiting.push_from(vm.weight, vm.virtual_start, job);
    }
}

impl Shared {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some((queue, job)) = state.waiting.pop() {
                drop(state);
                job();
                let mut vm = queue.0.lock();
                state = self.state.lock();
                match vm.held.pop_front() {
                    Some(next) => state.enqueue(&queue, &mut vm, next),
                    None => vm.active -= 1,
                }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn a_vm_whose_disks_hang_leaves_workers_to_the_others() {
        let workers = Workers::new(8, 2);
        let (hung, other) = (Arc::<VmQueue>::default(), Arc::<VmQueue>::default());
        let latch = Arc::new(Mutex::new(0));
        let (done, finished) = mpsc::channel();
        let closed = latch.lock();
        for _ in 0..100 {
            let (latch, done) = (Arc::clone(&latch), done.clone());
            workers.submit(
                &hung,
                Box::new(move || {
                    *latch.lock() += 1;
                    done.send("hung").unwrap();
                }),
            );
        }
        for _ in 0..100 {
            let done = done.clone();
            workers.submit(&other, Box::new(move || done.send("other").unwrap()));
        }
        let timeout = Duration::from_secs(20);
        for _ in 0..100 {
            assert_eq!(finished.recv_timeout(timeout).unwrap(), "other");
        }
        assert_eq!(hung.0.lock().active, 2);
        drop(closed);
        for _ in 0..100 {
            assert_eq!(finished.recv_timeout(timeout).unwrap(), "hung");
        }
        assert_eq!(*latch.lock(), 100);
    }
}
