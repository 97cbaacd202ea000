//! Weighted max-min fairness in one sibling group: an amount divided by weight, between a minimum and a demand each.
//!
//! The rule is water-filling (Bertsekas and Gallager, Data Networks, section 6.5.2): each member gets `level × weight`,
//! clamped to its own minimum and demand. The level is the one at which the amount is used up. Whole units are given by
//! the divisor method of Sainte-Laguë (Webster): the k-th unit of a bidder has the rank `weight / (2k − 1)`, and the
//! best-ranked units win. That makes the integers exact (they add up) and monotone: more weight, more demand or a
//! larger amount never gives a bidder less, and one unit more to divide changes one bidder by one unit.
//! Largest-remainder rounding has none of these (the Alabama paradox).

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// What one member of a sibling group asks for. Amounts are in the caller's unit: bytes, blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bid {
    /// Relative weight; 0 gets nothing above its minimum.
    pub weight: u32,
    /// What it gets first, before anything is divided by weight.
    pub minimum: u64,
    /// The part of its working set that is in use now: it gets this, by weight, before any member gets more than that.
    pub in_use: u64,
    /// Its working set: it gets this, by weight, before any member gets more than that.
    pub working_set: u64,
    /// What it can use at most. It caps the minimum and the working set.
    pub demand: u64,
}

/// Divides `amount` among `bids`, in whole units of the bids. The parts are in the order of the bids and add up to
/// `amount` (unless every weight is 0).
///
/// - Minimums that do not fit together are cut by weight.
/// - Working sets beyond the minimums come next, divided by weight: a member whose working set is smaller than its part leaves
///   the rest to those with larger ones. What is in use of them comes before the rest of them.
/// - Between that and the demands the rest is divided by weight, what each has already counted; what one does not
///   ask for goes to the others (work-conserving).
/// - When all are satisfied, the rest is divided by weight too, on top of the demands: it is free, and each may grow into it.
///
/// O(n log n) in the number of bids, O(n) memory.
#[must_use]
pub fn max_min(amount: u64, bids: &[Bid]) -> Vec<u64> {
    let zeros = vec![0; bids.len()];
    let demands: Vec<u64> = bids.iter().map(|b| b.demand).collect();
    let at_least_minimum = |amount: fn(&Bid) -> u64| -> Vec<u64> {
        let bounded = |b: &Bid| amount(b).max(b.minimum).min(b.demand);
        bids.iter().map(bounded).collect()
    };
    let rounds = [
        at_least_minimum(|b| b.minimum),
        at_least_minimum(|b| b.in_use.min(b.working_set)),
        at_least_minimum(|b| b.working_set),
        demands.clone(),
    ];
    let total = |parts: &[u64]| parts.iter().map(|p| u128::from(*p)).sum::<u128>();
    let mut had = zeros.clone();
    for round in rounds {
        if total(&round) >= u128::from(amount) {
            return level(amount, bids, &had, &round);
        }
        had = round;
    }
    let rest = amount - u64::try_from(total(&demands)).unwrap_or(amount);
    let room = vec![rest; bids.len()];
    let extra = level(rest, bids, &zeros, &room);
    demands.iter().zip(extra).map(|(d, e)| d + e).collect()
}

/// The water level between `lo` and `hi`, where the sums of `lo` and `hi` enclose `amount`.
fn level(amount: u64, bids: &[Bid], lo: &[u64], hi: &[u64]) -> Vec<u64> {
    let (num, den) = find_level(amount, bids, lo, hi);
    let mut parts: Vec<u64> = (0..bids.len())
        .map(|i| {
            let exact = (2 * u128::from(bids[i].weight) * num + den) / (2 * den);
            u64::try_from(exact).unwrap_or(u64::MAX).clamp(lo[i], hi[i])
        })
        .collect();
    settle(amount, bids, lo, hi, &mut parts);
    parts
}

/// The level at which the clamped parts add up to `amount`, as a fraction.
fn find_level(amount: u64, bids: &[Bid], lo: &[u64], hi: &[u64]) -> (u128, u128) {
    // Rising level: a bidder starts to grow at lo/weight and stops at hi/weight.
    let mut turns: Vec<(u64, usize, bool)> = (0..bids.len())
        .filter(|&i| bids[i].weight > 0 && lo[i] < hi[i])
        .flat_map(|i| [(lo[i], i, true), (hi[i], i, false)])
        .collect();
    let weight = |i: usize| u128::from(bids[i].weight);
    let key = |&(at, i, starts): &(u64, usize, bool)| (u128::from(at), weight(i), starts);
    turns.sort_unstable_by(|a, b| {
        let ((x, v, s), (y, w, t)) = (key(a), key(b));
        (x * w).cmp(&(y * v)).then(t.cmp(&s))
    });
    let amount = u128::from(amount);
    let mut fixed: u128 = lo.iter().map(|l| u128::from(*l)).sum();
    let mut growing: u128 = 0;
    for (at, i, starts) in turns {
        let reached = growing > 0 && (amount - fixed) * weight(i) <= u128::from(at) * growing;
        if reached {
            return (amount - fixed, growing);
        }
        if starts {
            growing += weight(i);
            fixed -= u128::from(at);
        } else {
            growing -= weight(i);
            fixed += u128::from(at);
        }
    }
    // Each member that can grow has grown to the end: any level above all of them will do.
    (u128::from(u64::MAX), 1)
}

/// A unit that could be given to (or taken from) bidder `index`; ordered by rank `weight / divisor`,
/// then by the lower index.
struct Unit {
    weight: u32,
    divisor: u128,
    index: usize,
}

impl Unit {
    fn rank(&self, other: &Self) -> Ordering {
        let (a, b) = (u128::from(self.weight), u128::from(other.weight));
        (a * other.divisor)
            .cmp(&(b * self.divisor))
            .then(other.index.cmp(&self.index))
    }
}

/// A heap entry: the best unit to give comes first, or the worst one held comes first.
struct Turn {
    unit: Unit,
    give: bool,
}

impl Ord for Turn {
    fn cmp(&self, other: &Self) -> Ordering {
        let order = self.unit.rank(&other.unit);
        if self.give { order } else { order.reverse() }
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Turn {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Turn {}

/// Gives or takes the units (about n/2 at most) by which rounding missed the amount.
fn settle(amount: u64, bids: &[Bid], lo: &[u64], hi: &[u64], parts: &mut [u64]) {
    let sum: u128 = parts.iter().map(|p| u128::from(*p)).sum();
    let amount = u128::from(amount);
    let give = sum < amount;
    let mut missing = sum.abs_diff(amount);
    if missing == 0 {
        return;
    }
    let next = |index: usize, part: u64| -> Option<Turn> {
        let open = bids[index].weight > 0
            && if give {
                part < hi[index]
            } else {
                part > lo[index]
            };
        let divisor = if give {
            2 * u128::from(part) + 1
        } else {
            2 * u128::from(part) - 1
        };
        open.then(|| Turn {
            unit: Unit {
                weight: bids[index].weight,
                divisor,
                index,
            },
            give,
        })
    };
    let mut turns: BinaryHeap<Turn> = (0..parts.len())
        .filter_map(|i| {
            if give || parts[i] > 0 {
                next(i, parts[i])
            } else {
                None
            }
        })
        .collect();
    while missing > 0 {
        let Some(Turn {
            unit: Unit { index, .. },
            ..
        }) = turns.pop()
        else {
            return; // only weights of 0 are left: none may have the rest
        };
        parts[index] = if give {
            parts[index] + 1
        } else {
            parts[index] - 1
        };
        missing -= 1;
        if give || parts[index] > 0 {
            turns.extend(next(index, parts[index]));
        }
    }
}
