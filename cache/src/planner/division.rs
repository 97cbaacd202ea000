//! The division of a VM's part that has the most hits.

/// Units into which a part is divided: a division is exact to a 256th, a 512th where there are many pools.
pub(super) const fn units(pools: usize) -> usize {
    match pools * 2 {
        0..=256 => 256,
        257..=511 => pools * 2,
        _ => 512,
    }
}

/// Divides `units` between pools so that the sum of their hits is the largest. `hits` has for each pool the hits by the
/// units that it has, `units` + 1 of them, ascending. What is of no use to any is left.
///
/// A curve need not be concave (a loop saves nothing until it fits), so it does not do to give each unit to the pool that
/// gains most by it: all divisions are compared, pool by pool (dynamic programming).
pub(super) fn most_hits(units: usize, hits: &[Vec<f64>]) -> Vec<usize> {
    // By units that the pools so far have together: the most hits, and what the last of them has then.
    let mut best = vec![0.0; units + 1];
    let mut chosen: Vec<Vec<usize>> = Vec::with_capacity(hits.len());
    for of in hits {
        let mut next = Vec::with_capacity(units + 1);
        let mut choice = Vec::with_capacity(units + 1);
        for all in 0..=units {
            let sums = of.iter().zip(best.iter().take(all + 1).rev());
            let mut most = (f64::NEG_INFINITY, 0);
            for (own, (hits, others)) in sums.enumerate() {
                if hits + others > most.0 {
                    most = (hits + others, own);
                }
            }
            next.push(most.0);
            choice.push(most.1);
        }
        best = next;
        chosen.push(choice);
    }
    let mut left = units;
    let mut parts: Vec<usize> = chosen
        .iter()
        .rev()
        .map(|choice| {
            let own = choice.get(left).copied().unwrap_or(0);
            left -= own;
            own
        })
        .collect();
    parts.reverse();
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hits of a pool of 8 units.
    fn loops(size: usize, hits: f64) -> Vec<f64> {
        (0..=8)
            .map(|own| if own < size { 0.0 } else { hits })
            .collect()
    }

    fn linear(each: f64, until: usize) -> Vec<f64> {
        (0..=8_u32)
            .map(|own| f64::from(own.min(u32::try_from(until).unwrap())) * each)
            .collect()
    }

    #[test]
    fn loops_fit_whole_or_get_nothing() {
        for (hits, expected) in [
            (vec![linear(1.0, 3), linear(2.0, 3)], vec![3, 3]),
            (vec![linear(1.0, 8), linear(2.0, 6)], vec![2, 6]),
            // The denser loop alone leaves more unused than it is denser.
            (vec![loops(5, 5.5), loops(8, 8.0)], vec![0, 8]),
            (
                vec![loops(5, 9.0), loops(8, 8.0), linear(0.5, 8)],
                vec![5, 0, 3],
            ),
            // A loop that does not fit gets nothing.
            (vec![vec![0.0; 9], linear(0.1, 2)], vec![0, 2]),
            (vec![], vec![]),
        ] {
            assert_eq!(most_hits(8, &hits), expected, "{hits:?}");
        }
    }
}
