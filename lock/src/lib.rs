//! A mutex whose waiters are served by weight: Justitia's weight-aware queue lock (section III-A,
//! Algorithm 1) in user space.
//!
//! Uncontended it is one compare-and-swap, like any mutex. Under contention whoever releases it picks
//! the next holder by [`Queueing`]: by arrival, by weight with aging (the paper's), or in proportion to
//! weight. Waiters spin for about a microsecond and then sleep: long holds cost no CPU.
//!
//! A panic while the lock is held releases it; the lock is **not** poisoned. What it guards must be
//! kept consistent across panics by the caller, as with `parking_lot`.
//!
//! ```
//! use justitia_lock::{Claimant, Queueing, WeightLock};
//! use justitia_share::Weight;
//!
//! let lock = WeightLock::new(0, Queueing::default());
//! *lock.lock(Weight::default()) += 1;
//! # let tenant = Claimant::new(Weight::default());
//! *lock.lock_as(&tenant) += 1;
//! assert_eq!(lock.into_inner(), 2);
//! ```

mod raw;
mod sync;

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};

use justitia_share::{VirtualTime, Weight};

pub use justitia_share::{Aging, Queueing};
pub use raw::RawWeightLock;

/// A mutual exclusion lock around `T` that serves its waiters by weight.
pub struct WeightLock<T: ?Sized> {
    raw: RawWeightLock,
    value: UnsafeCell<T>,
}

/// The right to use what a [`WeightLock`] guards, until it is dropped.
#[must_use = "the lock is released when the guard is dropped"]
pub struct WeightGuard<'a, T: ?Sized> {
    lock: &'a WeightLock<T>,
    /// Access to `T` is what the guard gives: it may be shared between threads only if `T` may be, and
    /// it stays with the thread that took it.
    access: PhantomData<*mut T>,
}

/// One who takes locks again and again, as several threads if it likes: a tenant. What it had is
/// remembered between requests, which [`Queueing::Wfq`] needs to charge all its threads together.
#[derive(Debug)]
pub struct Claimant {
    weight: Weight,
    virtual_start: AtomicU64,
}

impl Claimant {
    /// A claimant that has had no grant.
    #[must_use]
    pub const fn new(weight: Weight) -> Self {
        Self {
            weight,
            virtual_start: AtomicU64::new(0),
        }
    }

    /// The weight that its requests carry.
    #[must_use]
    pub const fn weight(&self) -> Weight {
        self.weight
    }
}

// SAFETY: the lock gives access to `T` to one thread at a time, so sharing the lock only ever moves
// `T` between threads.
unsafe impl<T: ?Sized + Send> Sync for WeightLock<T> {}
// SAFETY: a shared guard gives `&T` alone.
unsafe impl<T: ?Sized + Sync> Sync for WeightGuard<'_, T> {}

impl<T> WeightLock<T> {
    /// A free lock around `value`.
    pub fn new(value: T, queueing: Queueing) -> Self {
        Self {
            raw: RawWeightLock::new(queueing),
            value: UnsafeCell::new(value),
        }
    }

    /// What was guarded.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T: ?Sized> WeightLock<T> {
    /// Takes the lock with `weight`, waiting in order.
    ///
    /// Not reentrant: a thread that locks twice waits for itself for ever.
    pub fn lock(&self, weight: Weight) -> WeightGuard<'_, T> {
        self.raw.lock(weight, VirtualTime::default());
        self.guard()
    }

    /// Takes the lock for `claimant`, which is charged for it under [`Queueing::Wfq`]; otherwise
    /// as [`lock`](Self::lock) with the claimant's weight.
    pub fn lock_as(&self, claimant: &Claimant) -> WeightGuard<'_, T> {
        let virtual_start = VirtualTime::from_bits(claimant.virtual_start.load(Ordering::Relaxed));
        let tag = self.raw.lock(claimant.weight, virtual_start);
        claimant
            .virtual_start
            .fetch_max(tag.to_bits(), Ordering::Relaxed);
        self.guard()
    }

    /// Takes the lock if it is free; never overtakes a waiter.
    pub fn try_lock(&self) -> Option<WeightGuard<'_, T>> {
        self.raw.try_lock().then(|| self.guard())
    }

    /// How many wait for the lock. A snapshot.
    pub fn waiting(&self) -> usize {
        self.raw.waiting()
    }

    /// What is guarded; exclusive access needs no lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }

    const fn guard(&self) -> WeightGuard<'_, T> {
        WeightGuard {
            lock: self,
            access: PhantomData,
        }
    }
}

impl<T: ?Sized> Deref for WeightGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard's existence means that its lock is held, by it alone.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T: ?Sized> DerefMut for WeightGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and `&mut self` excludes other references through the guard.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T: ?Sized> Drop for WeightGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.raw.unlock();
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for WeightGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized> fmt::Debug for WeightLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeightLock")
            .field("raw", &self.raw)
            .finish_non_exhaustive()
    }
}
