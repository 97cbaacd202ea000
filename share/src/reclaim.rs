//! From which tenants memory is reclaimed, and how much from each.

use crate::max_min::{Bid, max_min};

/// Usage above entitlement, in the unit of both; 0 if it is not above.
#[must_use]
pub const fn excess(usage: u64, entitlement: u64) -> u64 {
    usage.saturating_sub(entitlement)
}

/// Divides what is to be reclaimed, `need`, among tenants in proportion to their excess, in the same unit. From none is
/// taken more than its excess, so where the excesses together are less than `need`, the sum of the parts is less too.
///
/// O(n log n).
#[must_use]
pub fn apportion_reclaim(need: u64, excesses: &[u64]) -> Vec<u64> {
    let total: u128 = excesses.iter().map(|e| u128::from(*e)).sum();
    let need = u64::try_from(total).map_or(need, |total| need.min(total));
    // Weights are 32 bits wide: scale the largest excess into them.
    let largest = excesses.iter().copied().max().unwrap_or(0);
    let shift = 32u32.saturating_sub(largest.leading_zeros());
    let bids: Vec<Bid> = excesses
        .iter()
        .map(|&excess| {
            let scaled = u32::try_from(excess >> shift).unwrap_or(u32::MAX);
            Bid {
                weight: if excess > 0 { scaled.max(1) } else { 0 },
                demand: excess,
                ..Bid::default()
            }
        })
        .collect();
    max_min(need, &bids)
}

/// DoubleDecker's victim (section 4.3, Algorithm 1 and equation 1): the tenant whose usage would
/// exceed its entitlement the most once `batch` more units are wanted. Among equals, the first.
///
/// The paper's `exceed(E, b, cw)` adds to a fixed entitlement a part of what the others leave unused;
/// [`entitlements`](crate::entitlements) has done that already, so the algorithm is one `argmax`.
/// A tenant without usage is never the victim; `None` if there is no other. The usages, the entitlements and `batch` are
/// in the same unit; the result is the tenant's place in both lists.
#[must_use]
pub fn victim(usages: &[u64], entitlements: &[u64], batch: u64) -> Option<usize> {
    let exceed = |i: usize| i128::from(usages[i]) + i128::from(batch) - i128::from(entitlements[i]);
    (0..usages.len().min(entitlements.len()))
        .filter(|&i| usages[i] > 0)
        .max_by_key(|&i| (exceed(i), std::cmp::Reverse(i)))
}
