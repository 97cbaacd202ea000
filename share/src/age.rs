//! Who is served next among waiters of different weight.
//!
//! Justitia's Algorithm 1 ("Page Allocation with Aging Technique", section III-A) picks the waiter of
//! the highest effective weight, the earliest among equals, and then adds an increment to the weight
//! of everyone it passed over. All who wait age at the same pace, so their order never changes after
//! they arrived: the effective weight of a waiter is `weight + increment * (now - arrival)`, counted
//! in grants, and comparing two waiters leaves `weight - increment * arrival`. A waiter therefore gets
//! its key once, on arrival, and the queue is a heap: `O(log n)` a grant where the paper walks the
//! list twice.
//!
//! The same remark shows what ageing promises. Between two waiters that always come back, the waits
//! differ by `(weight_high - weight_low) / increment` grants: a constant, not a ratio. Nobody starves,
//! but shares equal weights only where the increment happens to fit. [`Order::VirtualTime`] makes the
//! shares proportional for any weights (start-time fair queueing, Goyal et al. 1996).

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::Weight;

/// How the weight of one who waits grows with every grant that passes it over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ageing {
    /// It does not: the lowest weight may starve (the paper's Fig. 12, "without aging").
    Off,
    /// By this much a grant, in units of weight. At most `(10000 / increment + 1) * waiters` grants
    /// pass before anybody is served.
    By(u32),
}

impl Default for Ageing {
    /// 100, as in the paper's evaluation (section III-A).
    fn default() -> Self {
        Self::By(100)
    }
}

/// Who goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Whoever came first; weights do not matter.
    Arrival,
    /// The highest effective weight, then whoever came first (Algorithm 1).
    Weighted(Ageing),
    /// Grants in proportion to weight: each costs `1 / weight` of virtual time.
    VirtualTime,
}

impl Default for Order {
    fn default() -> Self {
        Self::Weighted(Ageing::default())
    }
}

/// A place in virtual time, in units of `2^32 / weight` per grant. What a claimant remembers between
/// its requests, so that [`Order::VirtualTime`] charges it for the grants that it had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct VirtualTime(u64);

impl VirtualTime {
    /// The tag as a number, to be kept in an atomic between requests.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The tag that [`VirtualTime::to_bits`] gave.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    const fn after_grant(self, weight: Weight) -> Self {
        Self(self.0.saturating_add(cost(weight)))
    }
}

/// Virtual time that a grant costs.
const fn cost(weight: Weight) -> u64 {
    (1 << 32) / weight.get()
}

/// How many of its own grants a claimant may be served early before the present follows it. A light
/// one that happens to wait alone for a moment would otherwise wipe out what is due to the heavy ones.
const EARLY: u64 = 4;

/// Those who wait, in the order in which they are to be served.
///
/// ```
/// use justitia_share::{Order, WaitQueue, Weight};
/// let mut queue = WaitQueue::new(Order::default());
/// queue.push(Weight::MIN, "light");
/// queue.push(Weight::default(), "heavy");
/// assert_eq!(queue.pop(), Some("heavy"));
/// ```
#[derive(Debug)]
pub struct WaitQueue<T> {
    order: Order,
    heap: BinaryHeap<Waiter<T>>,
    /// Requests so far: breaks ties in favour of the earlier.
    arrivals: u64,
    /// Grants so far: the clock by which waiters age.
    grants: u64,
    /// The present: where claimants without a past, or with an old one, start.
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
    pub const fn new(order: Order) -> Self {
        Self {
            order,
            heap: BinaryHeap::new(),
            arrivals: 0,
            grants: 0,
            virtual_time: VirtualTime(0),
        }
    }

    /// Lets `value` wait with `weight`, as a claimant without a past.
    pub fn push(&mut self, weight: Weight, value: T) {
        self.push_after(weight, VirtualTime(0), value);
    }

    /// Lets `value` wait with `weight`; `past` is what this returned at the claimant's previous request.
    /// Orders other than [`Order::VirtualTime`] ignore it. A claimant that was away gains nothing by it:
    /// it resumes at the present.
    pub fn push_after(&mut self, weight: Weight, past: VirtualTime, value: T) -> VirtualTime {
        let start = self.start(weight, past);
        self.heap.push(Waiter {
            key: self.key(weight, start),
            arrival: self.arrivals,
            weight,
            start,
            value,
        });
        self.arrivals = self.arrivals.saturating_add(1);
        start.after_grant(weight)
    }

    /// Counts a request that was served at once, without having waited; nobody was passed over.
    pub fn served_at_once(&mut self, weight: Weight, past: VirtualTime) -> VirtualTime {
        let start = self.start(weight, past);
        self.advance(weight, start);
        start.after_grant(weight)
    }

    /// Serves the next one; all who remain have been passed over once more.
    pub fn pop(&mut self) -> Option<T> {
        let next = self.heap.pop()?;
        self.grants = self.grants.saturating_add(1);
        self.advance(next.weight, next.start);
        Some(next.value)
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    fn start(&self, weight: Weight, past: VirtualTime) -> VirtualTime {
        if past == VirtualTime(0) {
            // Without a past, a request counts as if its claimant had just been served.
            self.virtual_time.after_grant(weight)
        } else {
            past.max(self.virtual_time)
        }
    }

    fn advance(&mut self, weight: Weight, start: VirtualTime) {
        let present = start.0.saturating_sub(cost(weight).saturating_mul(EARLY));
        self.virtual_time = self.virtual_time.max(VirtualTime(present));
    }

    fn key(&self, weight: Weight, start: VirtualTime) -> u128 {
        // Heavier is earlier; keys stay positive because no weight exceeds 10000.
        let lightness = u128::from(10_000 - weight.get());
        match self.order {
            Order::Arrival => 0,
            Order::Weighted(Ageing::Off) => lightness,
            Order::Weighted(Ageing::By(increment)) => {
                lightness + u128::from(self.grants) * u128::from(increment)
            }
            Order::VirtualTime => u128::from(start.0),
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

#[cfg(test)]
#[path = "age/test.rs"]
mod test;
