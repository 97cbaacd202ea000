//! What pools without a target keep, whatever others gain by having more.

use super::candidate::Candidate;

/// Sizes that lack less than this part of what is divided lack it by rounding.
pub(super) const ROUNDING: f64 = 0.001;

/// What pools without a target have at least, bytes, and 0 for the others: as much as targets leave, if that is less.
pub(super) fn floors(part: f64, pools: &[Candidate<'_>], needs: &[Option<f64>]) -> Vec<f64> {
    let floor = |(pool, need): (&Candidate<'_>, &Option<f64>)| match need {
        Some(_) => 0.0,
        None => pool.floor(),
    };
    let mut floors: Vec<f64> = pools.iter().zip(needs).map(floor).collect();
    let rest = part - needs.iter().flatten().sum::<f64>();
    let all: f64 = floors.iter().sum();
    if all > rest {
        floors.iter_mut().for_each(|floor| *floor *= rest / all);
    }
    floors
}

/// Raises sizes that are not fixed to their floors, at the expense of those above. Returns what they lacked.
pub(super) fn raise(floors: &[f64], fixed: &[Option<f64>], sizes: &mut [f64]) -> f64 {
    let free: Vec<usize> = (0..sizes.len()).filter(|at| fixed[*at].is_none()).collect();
    let below: f64 = free
        .iter()
        .map(|at| (floors[*at] - sizes[*at]).max(0.0))
        .sum();
    let above: f64 = free
        .iter()
        .map(|at| (sizes[*at] - floors[*at]).max(0.0))
        .sum();
    for at in free {
        let over = (sizes[at] - floors[at]).max(0.0);
        sizes[at] = floors[at] + over * (1.0 - below / above.max(1.0)).max(0.0);
    }
    below
}
