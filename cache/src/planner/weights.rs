//! Weights from sizes.

use justitia_share::num::{to_f64, to_u64};
use std::collections::BinaryHeap;

/// Weights in the proportion of sizes, at least 1 each, that add up to `sum` (or to as many as there are pools, if that is
/// more). Those that need their size have theirs rounded up, the others are rounded so that the sum is right.
pub(super) fn weights(sum: u64, sizes: &[(f64, bool)]) -> Vec<u64> {
    let all: f64 = sizes.iter().map(|(size, _)| size).sum();
    let divided = all.is_finite() && all > 0.0;
    let each = to_f64(sum) / to_f64(len(sizes).max(1));
    let exact = |size: f64| {
        if divided {
            size / all * to_f64(sum)
        } else {
            each
        }
    };
    let exact: Vec<f64> = sizes.iter().map(|(size, _)| exact(*size)).collect();
    let mut weights: Vec<u64> = exact
        .iter()
        .zip(sizes)
        .map(|(exact, (_, needed))| {
            let rounded = if *needed { exact.ceil() } else { exact.floor() };
            to_u64(rounded).max(1)
        })
        .collect();
    let given: u64 = weights.iter().sum();
    add(sum.saturating_sub(given), &exact, &mut weights);
    take(given.saturating_sub(sum), sizes, &mut weights);
    weights
}

fn len<T>(of: &[T]) -> u64 {
    u64::try_from(of.len()).unwrap_or(u64::MAX)
}

/// Those furthest below their size get the rest, one each, and so on.
fn add(rest: u64, exact: &[f64], weights: &mut [u64]) {
    let below = |at: usize| exact[at] - to_f64(weights[at]);
    let mut order: Vec<(f64, usize)> = (0..weights.len()).map(|at| (below(at), at)).collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
    let pools = len(weights).max(1);
    for ((_, at), place) in order.into_iter().zip(0..) {
        weights[at] += rest / pools + u64::from(place < rest % pools);
    }
}

/// The largest give what is too much, first of those that do not need their size.
fn take(excess: u64, sizes: &[(f64, bool)], weights: &mut [u64]) {
    let many = weights
        .iter()
        .enumerate()
        .filter(|(_, weight)| **weight > 1);
    let mut largest: BinaryHeap<_> = many
        .map(|(at, weight)| (!sizes[at].1, *weight, at))
        .collect();
    for _ in 0..excess {
        let Some((free, weight, at)) = largest.pop() else {
            break;
        };
        weights[at] = weight - 1;
        if weight > 2 {
            largest.push((free, weight - 1, at));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_add_up_and_nobody_has_none() {
        for (sum, sizes, expected) in [
            (200, vec![(1.0, false), (3.0, false)], vec![50, 150]),
            (200, vec![(0.0, false), (3.0, false)], vec![1, 199]),
            (
                300,
                vec![(1.0, false), (1.0, false), (1.0, false)],
                vec![100, 100, 100],
            ),
            (10, vec![(1.0, true), (2.0, false)], vec![4, 6]),
            (10, vec![(1.0, false), (2.0, false)], vec![3, 7]),
            (
                2,
                vec![(0.0, false), (0.0, true), (5.0, false)],
                vec![1, 1, 1],
            ),
            (20, vec![(0.0, false), (0.0, false)], vec![10, 10]),
            (20, vec![], vec![]),
        ] {
            assert_eq!(weights(sum, &sizes), expected, "{sizes:?}");
        }
    }

    /// However far sizes say nothing: one at a time would take longer than anybody waits.
    #[test]
    fn a_large_rest_is_given_at_once() {
        let count = 256;
        for size in [0.0, f64::NAN, f64::INFINITY, 1e300] {
            let found = weights(1 << 40, &vec![(size, false); count]);
            assert!(found.iter().all(|weight| *weight == 1 << 32), "{size}");
        }
        let sizes: Vec<_> = (0..256_u32)
            .map(|n| (f64::from(n).sqrt(), n % 3 == 0))
            .collect();
        for sum in [256, 1000, 2_560_000, (1 << 40) + 7] {
            assert_eq!(weights(sum, &sizes).iter().sum::<u64>(), sum);
        }
    }
}
