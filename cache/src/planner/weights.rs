//! Weights from sizes.

use justitia_share::num::to_u64;

/// Weights in the proportion of sizes, at least 1 each, that add up to `sum` (or to as many as there are pools, if that is
/// more). Those that need their size have theirs rounded up, the others are rounded so that the sum is right.
pub(super) fn weights(sum: u64, sizes: &[(f64, bool)]) -> Vec<u64> {
    let all: f64 = sizes.iter().map(|(size, _)| size).sum();
    let whole = justitia_share::num::to_f64(sum);
    let exact = |size: f64| if all > 0.0 { size / all * whole } else { 1.0 };
    let mut weights: Vec<u64> = sizes
        .iter()
        .map(|(size, needed)| {
            let exact = exact(*size);
            let rounded = if *needed { exact.ceil() } else { exact.floor() };
            to_u64(rounded).max(1)
        })
        .collect();
    // Those furthest below their size get the rest; the largest give what is too much.
    while weights.iter().sum::<u64>() < sum {
        let below = |at: &usize| exact(sizes[*at].0) - justitia_share::num::to_f64(weights[*at]);
        let Some(at) = (0..sizes.len()).max_by(|a, b| below(a).total_cmp(&below(b))) else {
            break;
        };
        weights[at] += 1;
    }
    while weights.iter().sum::<u64>() > sum {
        let given = (0..sizes.len()).filter(|at| weights[*at] > 1);
        let Some(at) = given.max_by_key(|at| (!sizes[*at].1, weights[*at])) else {
            break;
        };
        weights[at] -= 1;
    }
    weights
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
}
