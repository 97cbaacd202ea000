//! A queue of waiters of different weights.
//!
//! Justitia's Algorithm 1 ("Page Allocation with Aging Technique", section III-A) picks the waiter of
//! the highest effective weight, the earliest among equals, and then adds an increment to the weight
//! of every waiter that it passed over. All waiters age at the same pace, so their order never changes after
//! they arrived: the effective weight of a waiter is `weight + increment * (now - arrival)`, counted
//! in grants, and comparing two waiters leaves `weight - increment * arrival`. A waiter therefore gets
//! its key once, on arrival, and the queue is a heap: `O(log n)` a grant where the paper walks the
//! list twice.
//!
//! This also shows what aging promises. Between two waiters that always come back, the waits
//! differ by `(weight_high - weight_low) / increment` grants: a constant, not a ratio. No waiter starves,
//! but shares equal weights only where the increment happens to fit. [`Queueing::Sfq`] makes the
//! shares proportional for any weights (start-time fair queueing, Goyal et al. 1996).

#[cfg(test)]
mod tests;

use crate::Weight;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// How many of its own grants a client may be served early before the present follows it. Otherwise a light client
/// that happens to wait alone for a moment would wipe out what is due to the heavy ones.
const MAX_EARLY_GRANTS: u64 = 4;

/// Waiters in the order in which they are to be served.
///
/// ```
/// use justitia_share::{Queueing, WaitQueue, Weight};
/// let mut queue = WaitQueue::new(Queueing::default());
/// queue.push(Weight::MIN, "light");
/// queue.push(Weight::default(), "heavy");
/// assert_eq!(queue.pop(), Some("heavy"));
/// ```
#[derive(Debug)]
pub struct WaitQueue<T> {
    queueing: Queueing,
    heap: BinaryHeap<Waiter<T>>,
    /// Requests so far: breaks ties in favour of the earlier.
    arrivals: u64,
    /// Grants so far: the clock by which waiters age.
    grants: u64,
    /// The present: where requests of clients start that have had no grant, or had their last long ago.
    virtual_time: VirtualTime,
}

#[derive(Debug)]
struct Waiter<T> {
    /// Smaller goes first.
    key: u128,
    arrival: u64,
    weight: Weight,
    start: VirtualTime,
    value: T,
}

impl<T> WaitQueue<T> {
    /// An empty queue.
    #[must_use]
    pub const fn new(queueing: Queueing) -> Self {
        Self {
            queueing,
            heap: BinaryHeap::new(),
            arrivals: 0,
            grants: 0,
            virtual_time: VirtualTime::ZERO,
        }
    }

    /// Adds `value` with `weight`, as the request of a client that has had no grant.
    pub fn push(&mut self, weight: Weight, value: T) {
        self.push_from(weight, VirtualTime::ZERO, value);
    }

    /// Adds `value` with `weight`; `virtual_start` is what this returned at the client's previous request.
    /// [`Queueing::Sfq`] alone heeds it. A client that was away gains nothing by that:
    /// it resumes at the present.
    pub fn push_from(
        &mut self,
        weight: Weight,
        virtual_start: VirtualTime,
        value: T,
    ) -> VirtualTime {
        let start = self.start(weight, virtual_start);
        self.heap.push(Waiter {
            key: self.key(weight, start),
            arrival: self.arrivals,
            weight,
            start,
            value,
        });
        self.arrivals = self.arrivals.saturating_add(1);
        start.after(1, weight)
    }

    /// Serves the next waiter; all that remain have been passed over once more.
    pub fn pop(&mut self) -> Option<T> {
        let next = self.heap.pop()?;
        self.grants = self.grants.saturating_add(1);
        self.advance(next.weight, next.start);
        Some(next.value)
    }

    /// The number of waiters.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether there is no waiter.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    fn start(&self, weight: Weight, virtual_start: VirtualTime) -> VirtualTime {
        if virtual_start == VirtualTime::ZERO {
            // The first request of a client counts as if it had just been served.
            self.virtual_time.after(1, weight)
        } else {
            virtual_start.max(self.virtual_time)
        }
    }

    fn advance(&mut self, weight: Weight, start: VirtualTime) {
        self.virtual_time = self
            .virtual_time
            .max(start.before(MAX_EARLY_GRANTS, weight));
    }

    fn key(&self, weight: Weight, start: VirtualTime) -> u128 {
        // Heavier is earlier; keys stay positive because no weight exceeds 10000.
        let lightness = u128::from(10_000 - weight.get());
        match self.queueing {
            Queueing::PriorityAging { increment } => {
                lightness + u128::from(self.grants) * u128::from(increment)
            }
            Queueing::Sfq => u128::from(start.get()),
        }
    }
}

impl<T> Ord for Waiter<T> {
    /// Greatest first out of the heap: the smallest key, then the earliest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.key, other.arrival).cmp(&(self.key, self.arrival))
    }
}

impl<T> PartialOrd for Waiter<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> PartialEq for Waiter<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Waiter<T> {}

/// Which waiter is served next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queueing {
    /// The one of the highest effective weight, the first that came among equals (Justitia, Algorithm 1).
    PriorityAging {
        /// By this much the weight of a waiter grows with every grant that passes it over, in units of weight. At most
        /// `(10000 / increment + 1) * waiters` grants pass before a waiter is served; with 0 the lowest weight may starve
        /// (Justitia, Fig. 12, "without aging").
        increment: u32,
    },
    /// Start-time fair queueing (Goyal et al. 1996): grants in proportion to weight. Each costs `1 / weight` of virtual
    /// time.
    Sfq,
}

impl Default for Queueing {
    /// Aging by 100, as in the Justitia paper's evaluation (section III-A).
    fn default() -> Self {
        Self::PriorityAging { increment: 100 }
    }
}

/// A point in virtual time, in units of `2^32 / weight` a grant. A client keeps the one at which its next request starts,
/// so that [`Queueing::Sfq`](crate::Queueing::Sfq) charges it for the grants that it had. The default, 0, is that of a
/// client that has had none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct VirtualTime(u64);

impl VirtualTime {
    const ZERO: Self = Self(0);

    /// The time as a number: the earlier, the smaller.
    const fn get(self) -> u64 {
        self.0
    }

    /// The position `grants` grants of this weight later.
    const fn after(self, grants: u64, weight: Weight) -> Self {
        Self(self.0.saturating_add(cost(weight).saturating_mul(grants)))
    }

    /// The position `grants` grants of this weight earlier.
    const fn before(self, grants: u64, weight: Weight) -> Self {
        Self(self.0.saturating_sub(cost(weight).saturating_mul(grants)))
    }
}

/// Virtual time that a grant costs.
const fn cost(weight: Weight) -> u64 {
    (1 << 32) / weight.get()
}
