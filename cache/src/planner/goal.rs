//! The sizes that pools are to have.

use super::candidate::Candidate;
use super::division::{most_hits, units};
use super::floor::{ROUNDING, floors, raise};
use justitia_share::num::to_f64;

/// Little: its size is then within what a curve's sizes may be off by.
const LACKS_LITTLE: f64 = 1.25;

/// The sizes of pools, bytes, and what they do.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Goal {
    pub(super) sizes: Vec<f64>,
    /// What the target of each needs, bytes; `None` without one, and where it cannot be reached.
    pub(super) needs: Vec<Option<f64>>,
    /// Hits a second, of the pools without a target that can be reached.
    pub(super) hits: f64,
}

/// What targets need, as many as fit `part` bytes: those that need least first.
pub(super) fn needs(part: f64, pools: &[Candidate<'_>]) -> Vec<Option<f64>> {
    let mut needs: Vec<_> = pools.iter().map(|pool| pool.need(part)).collect();
    let mut order: Vec<usize> = (0..pools.len()).collect();
    order.sort_by(|a, b| f64::total_cmp(&needs[*a].unwrap_or(0.0), &needs[*b].unwrap_or(0.0)));
    let mut left = part;
    for at in order {
        match needs[at] {
            Some(need) if need <= left => left -= need,
            _ => needs[at] = None,
        }
    }
    needs
}

/// The best division of `part` bytes: what targets need; what the others keep, and the most hits of them beyond that; and
/// what is of no use to anybody, in proportion to what each has by then.
pub(super) fn best(part: f64, pools: &[Candidate<'_>]) -> Goal {
    let needs = needs(part, pools);
    let floors = floors(part, pools, &needs);
    let fixed = needs.iter().flatten().chain(&floors).sum::<f64>();
    let rest = (part - fixed).max(0.0);
    let others: Vec<_> = (0..pools.len())
        .filter(|at| needs[*at].is_none())
        .map(|at| (&pools[at], floors[at]))
        .collect();
    let units = units(others.len());
    let unit = rest / to_f64(u64::try_from(units).unwrap_or(1));
    let hits: Vec<Vec<f64>> = others
        .iter()
        .map(|(pool, floor)| {
            let sizes = (0..=units).map(|n| unit * to_f64(u64::try_from(n).unwrap_or(0)));
            sizes.map(|size| pool.hits(floor + size)).collect()
        })
        .collect();
    let mut given = most_hits(units, &hits)
        .into_iter()
        .map(|n| unit * to_f64(u64::try_from(n).unwrap_or(0)));
    let mut sizes: Vec<f64> = needs
        .iter()
        .zip(&floors)
        .map(|(need, floor)| need.unwrap_or_else(|| floor + given.next().unwrap_or(0.0)))
        .collect();
    spread(part, pools, &needs, &mut sizes);
    let hits = hits_of(&sizes, &needs, pools);
    Goal { sizes, needs, hits }
}

/// What is kept of these sizes: targets get what they need, if they have not enough, and the others the rest in the
/// proportion that they had, but at least what each keeps. Also whether that changed anything.
pub(super) fn kept(
    part: f64,
    pools: &[Candidate<'_>],
    needs: &[Option<f64>],
    sizes: &[f64],
) -> (Vec<f64>, bool) {
    let own = |at: usize| {
        let (size, need) = (sizes[at], needs[at]?);
        let enough = pools[at].is_enough(size, need);
        Some(if enough { size } else { need })
    };
    let mut fixed: Vec<_> = (0..sizes.len()).map(own).collect();
    let floors = floors(part, pools, needs);
    if part - fixed.iter().flatten().sum::<f64>() < floors.iter().sum() {
        let pairs = fixed.iter_mut().flatten().zip(needs.iter().flatten());
        pairs.for_each(|(own, need)| *own = own.min(*need));
    }
    let rest = (part - fixed.iter().flatten().sum::<f64>()).max(0.0);
    let pairs = || fixed.iter().zip(sizes);
    let free: f64 = pairs().filter(|(own, _)| own.is_none()).map(|p| p.1).sum();
    let all = |(own, size): (&Option<f64>, &f64)| own.unwrap_or(size / free.max(1.0) * rest);
    let changed = pairs().any(|(own, size)| own.is_some_and(|own| (own - size).abs() > 0.0));
    let mut kept: Vec<f64> = pairs().map(all).collect();
    let lacks = raise(&floors, &fixed, &mut kept);
    (kept, changed || lacks > part * ROUNDING)
}

/// What is left over goes to the pool without a target that lacks least for more hits, if that is little, since a curve's
/// sizes may be off; or to all in proportion to what they have.
fn spread(part: f64, pools: &[Candidate<'_>], needs: &[Option<f64>], sizes: &mut [f64]) {
    let used: f64 = sizes.iter().sum();
    let left = part - used;
    let free = (0..sizes.len()).filter(|at| needs[*at].is_none());
    let lacks = free.filter_map(|at| Some((at, pools[at].lacks(sizes[at])?)));
    let least = lacks.min_by(|a, b| a.1.total_cmp(&b.1));
    match least {
        Some((at, lacks)) if sizes[at] + lacks <= (sizes[at] + left) * LACKS_LITTLE => {
            sizes[at] += left;
        }
        _ if used > 0.0 => sizes.iter_mut().for_each(|size| *size *= part / used),
        _ => {}
    }
}

/// Hits a second of the pools without a target that can be reached.
pub(super) fn hits_of(sizes: &[f64], needs: &[Option<f64>], pools: &[Candidate<'_>]) -> f64 {
    let free = pools.iter().zip(sizes).zip(needs);
    let free = free.filter(|(_, need)| need.is_none());
    free.map(|((pool, size), _)| pool.hits(*size)).sum()
}

#[cfg(test)]
mod tests {
    use super::super::correction::Correction;
    use super::*;
    use justitia_api::CurveStatus;

    fn curve(accesses: f64, points: &[(u64, f64)]) -> CurveStatus {
        CurveStatus {
            accesses,
            points: points.to_vec(),
        }
    }

    fn pool(curve: &CurveStatus, target: Option<f64>) -> Candidate<'_> {
        Candidate {
            curve,
            correction: Correction::default(),
            declared: 0.0,
            target,
            was_out_of_reach: false,
        }
    }

    #[test]
    fn targets_come_first_the_others_have_the_most_hits_of_the_rest() {
        let slow = curve(10.0, &[(0, 1.0), (1000, 0.0)]);
        let fast = curve(1000.0, &[(0, 1.0), (1000, 0.0)]);
        let looped = curve(1200.0, &[(0, 1.0), (511, 1.0), (512, 0.0)]);
        for (part, pools, expected) in [
            (
                1000.0,
                vec![pool(&slow, Some(0.495)), pool(&fast, None)],
                vec![500, 500],
            ),
            (
                1000.0,
                vec![pool(&slow, None), pool(&fast, None)],
                vec![0, 1000],
            ),
            // The loop fits, and what it does not need is the other's.
            (
                1024.0,
                vec![pool(&looped, None), pool(&fast, None)],
                vec![512, 512],
            ),
            // It does not fit any more.
            (
                1024.0,
                vec![
                    pool(&looped, None),
                    pool(&fast, None),
                    pool(&slow, Some(0.595)),
                ],
                vec![0, 424, 600],
            ),
            // Two targets that do not fit together: the one that needs less.
            (
                1000.0,
                vec![
                    pool(&slow, Some(0.695)),
                    pool(&slow, Some(0.395)),
                    pool(&fast, None),
                ],
                vec![0, 400, 600],
            ),
            // Nothing is of use.
            (1000.0, vec![], vec![]),
        ] {
            let found = best(part, &pools);
            let near = |(size, expected): (&f64, &u64)| (size - to_f64(*expected)).abs() < 5.0;
            assert!(
                found.sizes.iter().zip(&expected).all(near),
                "{part}: {found:?}, expected {expected:?}"
            );
        }
    }

    /// Pools of 1000 bytes each by their declared weights, of 4000.
    #[test]
    fn the_busiest_does_not_take_all_of_the_others() {
        let busy = curve(50_000.0, &[(0, 1.0), (4000, 0.0)]);
        let calm = curve(5000.0, &[(0, 1.0), (1000, 0.0)]);
        let useless = curve(5000.0, &[(0, 1.0), (3998, 1.0), (3999, 0.0)]);
        let small = curve(5000.0, &[(0, 1.0), (50, 0.0)]);
        let declared = |curve| Candidate {
            declared: 1000.0,
            ..pool(curve, None)
        };
        let first = |target| Candidate {
            target,
            ..declared(&busy)
        };
        for (pools, expected) in [
            // 115 bytes have the hits of 125, but for a hundredth; and 50 suffice for all.
            (
                [
                    first(None),
                    declared(&calm),
                    declared(&calm),
                    declared(&small),
                ],
                [3720, 115, 115, 50],
            ),
            // A loop that does not fit into 125 keeps nothing, and costs nobody anything.
            (
                [
                    first(None),
                    declared(&useless),
                    declared(&calm),
                    declared(&calm),
                ],
                [3770, 0, 115, 115],
            ),
            // A target comes first. Here it leaves half of what the others keep.
            (
                [
                    first(Some(0.952)),
                    declared(&calm),
                    declared(&calm),
                    declared(&calm),
                ],
                [3828, 57, 57, 57],
            ),
        ] {
            let near = |(size, expected): (&f64, &u64)| (size - to_f64(*expected)).abs() < 20.0;
            let found = best(4000.0, &pools);
            assert!(
                found.sizes.iter().zip(&expected).all(near),
                "{found:?}, expected {expected:?}"
            );
            let had = [3997.0, 1.0, 1.0, 1.0];
            let (kept, changed) = kept(4000.0, &pools, &found.needs, &had);
            assert!(changed);
            let enough = kept.iter().zip(&expected).skip(1);
            assert!(
                enough
                    .clone()
                    .all(|(size, least)| *size > to_f64(*least) - 20.0),
                "{kept:?}"
            );
            assert!((kept.iter().sum::<f64>() - 4000.0).abs() < 1.0, "{kept:?}");
        }
    }

    #[test]
    fn what_cannot_be_reached_is_said_and_what_is_nearly_is_aimed_at() {
        let most = curve(1.0, &[(0, 1.0), (100, 0.21)]);
        let need = |target: f64, part: f64| needs(part, &[pool(&most, Some(target))])[0];
        assert!(need(0.79, 1000.0).is_some());
        assert!(need(0.83, 1000.0).is_some(), "the curve may be off");
        assert_eq!(need(0.85, 1000.0), None);
        assert_eq!(need(0.7, 50.0), None);
    }
}
