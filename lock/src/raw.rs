//! The queue lock without the data it guards.
//!
//! `state` is the whole lock while nobody waits. Whoever finds it taken goes through `queue`, and from
//! then on the lock is handed from the one who releases it to the next in order, without ever being
//! free in between: a newcomer cannot overtake the waiters.

use std::sync::PoisonError;

use justitia_share::{Queueing, VirtualTime, WaitQueue, Weight};

use crate::sync::{
    Arc, AtomicBool, AtomicU8, Mutex, Ordering, SPINS, Thread, current, park, spin_loop,
};

const FREE: u8 = 0;
/// Held, and nobody waits.
const HELD: u8 = 1;
/// Held, and the queue must be looked at on release. Set and cleared only under `queue`'s mutex,
/// except that `HELD` may become it there while the holder still runs.
const AWAITED: u8 = 2;

/// A weight-aware lock that guards nothing yet; see [`WeightLock`](crate::WeightLock).
#[derive(Debug)]
pub struct RawWeightLock {
    state: AtomicU8,
    queue: Mutex<WaitQueue<Arc<Waiter>>>,
}

#[derive(Debug)]
struct Waiter {
    granted: AtomicBool,
    thread: Thread,
}

impl RawWeightLock {
    /// A free lock that serves its waiters in `order`.
    pub fn new(queueing: Queueing) -> Self {
        Self {
            state: AtomicU8::new(FREE),
            queue: Mutex::new(WaitQueue::new(queueing)),
        }
    }

    /// Takes the lock if it is free.
    pub fn try_lock(&self) -> bool {
        self.state
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
    }

    /// Takes the lock, waiting for it in order. `virtual_start` and the result are those of
    /// [`WaitQueue::push_from`]; an uncontended acquisition leaves `virtual_start` as it was.
    pub fn lock(&self, weight: Weight, virtual_start: VirtualTime) -> VirtualTime {
        if self.try_lock() || self.spin() {
            return virtual_start;
        }
        self.wait(weight, virtual_start)
    }

    /// Gives the lock to the next in order, or frees it. Only its holder may call this.
    pub fn unlock(&self) {
        if self
            .state
            .compare_exchange(HELD, FREE, Ordering::Release, Ordering::Relaxed)
            .is_err()
        {
            self.hand_over();
        }
    }

    /// How many wait. A snapshot: it may be out of date at once.
    pub fn waiting(&self) -> usize {
        self.queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .len()
    }

    /// A short hold may end while we look. Nobody is overtaken: the lock is free only if nobody waits.
    fn spin(&self) -> bool {
        for _ in 0..SPINS {
            spin_loop();
            match self.state.load(Ordering::Relaxed) {
                FREE if self.try_lock() => return true,
                AWAITED => return false,
                _ => {}
            }
        }
        false
    }

    #[cold]
    fn wait(&self, weight: Weight, virtual_start: VirtualTime) -> VirtualTime {
        let waiter = Arc::new(Waiter {
            granted: AtomicBool::new(false),
            thread: current(),
        });
        let virtual_start = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            // From here to the end of the block no release can miss us: it takes the same mutex.
            if self.state.swap(AWAITED, Ordering::Acquire) == FREE {
                self.state.store(HELD, Ordering::Relaxed);
                return queue.served_at_once(weight, virtual_start);
            }
            queue.push_from(weight, virtual_start, Arc::clone(&waiter))
        };
        for _ in 0..SPINS {
            if waiter.granted.load(Ordering::Acquire) {
                return virtual_start;
            }
            spin_loop();
        }
        while !waiter.granted.load(Ordering::Acquire) {
            park();
        }
        virtual_start
    }

    #[cold]
    fn hand_over(&self) {
        let next = {
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            let next = queue.pop();
            if next.is_none() {
                self.state.store(FREE, Ordering::Release);
            } else if queue.is_empty() {
                self.state.store(HELD, Ordering::Relaxed);
            }
            next
        };
        if let Some(waiter) = next {
            // Cloned first: once it is granted, the waiter may return and be gone.
            let thread = waiter.thread.clone();
            waiter.granted.store(true, Ordering::Release);
            thread.unpark();
        }
    }
}
