//! The lock for puts while a store is full.

use crate::lock_rank::{ADMISSION, LEAF, Ranked, RankedGuard};
use justitia_share::{Queueing, WaitQueue, Weight};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Thread, current, park};

/// A mutex that serves waiters by weight with aging (Justitia, section III-A, Algorithm 1). A wait queue grants turns; only the
/// holder of the turn takes the mutex.
#[derive(Default)]
pub(super) struct AdmissionLock<T> {
    turns: Ranked<Turns, LEAF>,
    value: Ranked<T, ADMISSION>,
}

#[derive(Debug)]
struct Turns {
    taken: bool,
    waiting: WaitQueue<Arc<Waiter>>,
}

/// A thread that waits for its turn.
#[derive(Debug)]
struct Waiter {
    served: AtomicBool,
    thread: Thread,
}

/// Access to the guarded value, until it is dropped. The fields are dropped in this order, so the next in turn finds the mutex
/// free.
pub(super) struct AdmissionGuard<'a, T> {
    value: RankedGuard<'a, T>,
    _turn: Turn<'a>,
}

/// The turn; dropping it hands it to the next waiter, so that no newcomer overtakes.
struct Turn<'a>(&'a Ranked<Turns, LEAF>);

impl<T> AdmissionLock<T> {
    /// Takes the lock in the order of weights. Not reentrant. A panic releases it.
    pub(super) fn lock(&self, weight: Weight) -> AdmissionGuard<'_, T> {
        let turn = Turn::wait(&self.turns, weight);
        AdmissionGuard {
            value: self.value.lock(),
            _turn: turn,
        }
    }
}

impl<'a> Turn<'a> {
    fn wait(turns: &'a Ranked<Turns, LEAF>, weight: Weight) -> Self {
        let mut found = turns.lock();
        if !std::mem::replace(&mut found.taken, true) {
            return Self(turns);
        }
        let waiter = Arc::new(Waiter {
            served: AtomicBool::new(false),
            thread: current(),
        });
        found.waiting.push(weight, Arc::clone(&waiter));
        drop(found);
        while !waiter.served.load(Ordering::Acquire) {
            park();
        }
        Self(turns)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let next = {
            let mut turns = self.0.lock();
            let next = turns.waiting.pop();
            turns.taken = next.is_some();
            next
        };
        if let Some(next) = next {
            next.served.store(true, Ordering::Release);
            next.thread.unpark();
        }
    }
}

impl Default for Turns {
    fn default() -> Self {
        Self {
            taken: false,
            waiting: WaitQueue::new(Queueing::default()),
        }
    }
}

impl<T> Deref for AdmissionGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for AdmissionGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn waiters_are_served_by_weight_and_the_first_among_equals() {
        let lock = AdmissionLock::<Vec<usize>>::default();
        let held = lock.lock(Weight::default());
        thread::scope(|scope| {
            for (at, weight) in [100, 1000, 300, 1000, 200].into_iter().enumerate() {
                let (lock, weight) = (&lock, Weight::try_from(weight).unwrap());
                scope.spawn(move || lock.lock(weight).push(at));
                while lock.turns.lock().waiting.len() <= at {
                    thread::yield_now();
                }
            }
            drop(held);
        });
        assert_eq!(*lock.lock(Weight::default()), [1, 3, 2, 4, 0]);
    }

    #[test]
    fn one_at_a_time_has_it() {
        let lock = AdmissionLock::<u64>::default();
        thread::scope(|scope| {
            for weight in 1..=8 {
                let (lock, weight) = (&lock, Weight::try_from(100 * weight).unwrap());
                scope.spawn(move || (0..2_000).for_each(|_| *lock.lock(weight) += 1));
            }
        });
        assert_eq!(*lock.lock(Weight::default()), 16_000);
    }

    #[test]
    fn a_panic_releases_it() {
        let lock = AdmissionLock::<u64>::default();
        let outcome = thread::scope(|scope| {
            let panics = scope.spawn(|| {
                let _held = lock.lock(Weight::default());
                panic!("on purpose");
            });
            panics.join()
        });
        assert!(outcome.is_err());
        assert_eq!(*lock.lock(Weight::default()), 0);
    }
}
