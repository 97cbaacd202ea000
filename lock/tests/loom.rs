//! Every interleaving of a few threads, by loom:
//! `cargo test -p justitia-lock --features loom --test loom`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use justitia_lock::{Queueing, RawWeightLock};
use justitia_share::{VirtualTime, Weight};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

fn weight(value: u64) -> Weight {
    Weight::try_from(value).unwrap()
}

struct Guarded {
    raw: RawWeightLock,
    value: UnsafeCell<Vec<usize>>,
}

// SAFETY: the test is whether `raw` guards `value`; loom reports it if it does not.
unsafe impl Sync for Guarded {}

impl Guarded {
    fn new(order: Queueing) -> Arc<Self> {
        Arc::new(Self {
            raw: RawWeightLock::new(order),
            value: UnsafeCell::new(Vec::new()),
        })
    }

    fn push(&self, w: u64, who: usize) {
        self.raw.lock(weight(w), VirtualTime::default());
        self.note(who);
        self.raw.unlock();
    }

    fn note(&self, who: usize) {
        // SAFETY: the lock is held.
        self.value.with_mut(|v| unsafe { (*v).push(who) });
    }

    fn served(&self) -> Vec<usize> {
        // SAFETY: all other threads have been joined.
        self.value.with(|v| unsafe { (*v).clone() })
    }
}

#[test]
fn two_threads_exclude_each_other_and_lose_no_wake_up() {
    loom::model(|| {
        let lock = Guarded::new(Queueing::default());
        let other = Arc::clone(&lock);
        let thread = thread::spawn(move || {
            other.push(100, 1);
            other.push(100, 1);
        });
        lock.push(1000, 0);
        thread.join().unwrap();
        assert_eq!(lock.served().len(), 3);
    });
}

#[test]
fn three_threads_all_get_the_lock() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let lock = Guarded::new(Queueing::default());
        let threads: Vec<_> = [100, 1000]
            .into_iter()
            .enumerate()
            .map(|(who, w)| {
                let lock = Arc::clone(&lock);
                thread::spawn(move || lock.push(w, who))
            })
            .collect();
        lock.push(500, 2);
        for thread in threads {
            thread.join().unwrap();
        }
        let mut served = lock.served();
        served.sort_unstable();
        assert_eq!(served, [0, 1, 2]);
    });
}

#[test]
fn the_heavier_of_two_waiters_is_served_first() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(|| {
        let lock = Guarded::new(Queueing::default());
        lock.raw.lock(weight(1), VirtualTime::default());
        let threads: Vec<_> = [100, 1000]
            .into_iter()
            .enumerate()
            .map(|(who, w)| {
                let lock = Arc::clone(&lock);
                thread::spawn(move || lock.push(w, who))
            })
            .collect();
        thread::yield_now();
        let both = lock.raw.waiting() == 2;
        lock.note(9);
        lock.raw.unlock();
        for thread in threads {
            thread.join().unwrap();
        }
        if both {
            assert_eq!(lock.served(), [9, 1, 0]);
        } else {
            assert_eq!(lock.served().len(), 3);
        }
    });
}

#[test]
fn try_lock_excludes_too() {
    loom::model(|| {
        let lock = Guarded::new(Queueing::Fifo);
        let other = Arc::clone(&lock);
        let thread = thread::spawn(move || other.push(100, 1));
        let taken = lock.raw.try_lock();
        if taken {
            lock.note(0);
            lock.raw.unlock();
        }
        thread.join().unwrap();
        assert_eq!(lock.served().len(), 1 + usize::from(taken));
    });
}
