//! The budget distributor: the credits of an interval by weight, over the entitlement that the page cache
//! uses too.

use crate::max_min::{Bid, max_min};
use crate::num;
use crate::{Demand, Tree};

/// Credits are divided in whole billionths.
const PARTS: f64 = 1e9;

/// Divides `total` credits among the nodes of the tree ("All containers are allocated credits in proportion
/// to their I/O weight", slides "Budget Distributor"), hierarchically, and what a node does not demand among
/// its siblings. Demands and minimums are in billionths of a credit; see [`demand`].
/// Indexed like the tree.
#[must_use]
pub fn distribute(tree: &Tree<Demand>, total: f64) -> Vec<f64> {
    crate::entitlements(tree, num::to_u64(total * PARTS))
        .into_iter()
        .map(|part| num::to_f64(part) / PARTS)
        .collect()
}

/// A demand of so many credits, in the unit of [`distribute`]'s tree.
#[must_use]
pub fn demand(credits: f64) -> u64 {
    num::to_u64(credits * PARTS)
}

/// Divides room for dirty pages, in bytes, among writers that contend, in proportion to `parts` (credits, any
/// scale), at least `minimum` bytes for each as far as that goes.
///
/// The weight-aware lock's part on a stock kernel (Justitia, section III-A): whoever has more room among the
/// dirty pages is held less by the kernel when it wants another page.
#[must_use]
pub fn rooms(pool: u64, parts: &[f64], minimum: u64) -> Vec<u64> {
    let most = parts.iter().copied().fold(0.0, f64::max);
    let weight = |part: f64| -> u32 {
        if most > 0.0 {
            u32::try_from(num::to_u64(part / most * 1e6).max(1)).unwrap_or(u32::MAX)
        } else {
            1
        }
    };
    let bid = |part: &f64| Bid {
        weight: weight(*part),
        minimum,
        demand: u64::MAX,
        ..Bid::default()
    };
    max_min(pool, &parts.iter().map(bid).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Weight;

    #[test]
    fn by_weight_and_what_is_not_wanted_goes_on() {
        let mut tree = Tree::new();
        for (weight, wanted) in [(100, 1.0), (200, 0.1), (700, 1.0)] {
            let weight = Weight::try_from(weight).unwrap();
            let total = demand(wanted);
            tree.push(
                None,
                Demand {
                    total,
                    ..Demand::unlimited(weight)
                },
            );
        }
        let parts = distribute(&tree, 1.0);
        for (part, expected) in parts.iter().zip([0.1125, 0.1, 0.7875]) {
            assert!((part - expected).abs() < 1e-6, "{parts:?}");
        }
    }

    #[test]
    fn rooms_are_in_proportion_above_a_minimum() {
        let by_weight = [100, 200, 400, 800];
        assert_eq!(rooms(1500, &[0.1, 0.2, 0.4, 0.8], 10), by_weight);
        assert_eq!(rooms(100, &[0.0, 1.0], 20)[0], 20);
        assert_eq!(rooms(100, &[0.0, 0.0], 0), [50, 50]);
        assert!(rooms(100, &[], 0).is_empty());
    }
}
