//! What holds for any sequence of samples.

use crate::law::{Allowance, Interval, Law, MOST_CORRECTION, Observed, water_fill};
use justitia_share::credit::Flow;
use justitia_share::credit::limit::LEAST_BYTES;
use justitia_share::num::{to_f64, to_u64};
use justitia_share::{Demand, NodeId, Tree, Weight};
use proptest::prelude::*;

fn tree(weights: &[u64]) -> (Tree<Demand>, Vec<NodeId>) {
    let mut tree = Tree::new();
    let weight = |w: &u64| Demand::unlimited(Weight::try_from(*w).unwrap());
    let nodes = weights.iter().map(|w| tree.push(None, weight(w)));
    let nodes = nodes.collect();
    (tree, nodes)
}

/// A direct writer that waits.
fn waits(id: usize, node: NodeId, bytes: f64) -> Observed {
    Observed {
        id: id as u64,
        node,
        flow: Flow {
            wbytes: bytes,
            wios: bytes / 65536.0,
            ..Flow::default()
        },
        stalled: 1.0,
        application: bytes,
        dirty: 0,
        limitable: true,
    }
}

fn busy(throughput: f64) -> Interval {
    Interval {
        seconds: 0.25,
        busy: 1.0,
        throughput,
    }
}

/// What the law allows after all got these bytes a second for so many looks.
fn after(looks: usize, weights: &[u64], got: &[f64]) -> Vec<Allowance> {
    let (tree, nodes) = tree(weights);
    let mut law = Law::default();
    let mut allowed = Vec::new();
    for _ in 0..looks {
        let tenants = nodes.iter().zip(got).enumerate();
        let observed: Vec<_> = tenants
            .map(|(id, (node, got))| waits(id, *node, *got))
            .collect();
        allowed = law.step(&tree, busy(got.iter().sum()), &observed);
    }
    allowed
}

proptest! {
    #[test]
    fn corrections_are_bounded_and_sum_to_nothing(
        tenants in proptest::collection::vec((1u64..=10_000, 1e5..1e8f64), 2..8),
        looks in 1usize..200,
    ) {
        let (weights, got): (Vec<_>, Vec<_>) = tenants.into_iter().unzip();
        let allowed = after(looks, &weights, &got);
        let parts: f64 = allowed.iter().map(|a| a.part).sum();
        prop_assert!(allowed.is_empty() || (parts - 1.0).abs() < 1e-6, "{parts}");
        for a in &allowed {
            let factor = a.correction.max(1.0 / a.correction);
            prop_assert!(factor <= MOST_CORRECTION * MOST_CORRECTION, "{a:?}");
            prop_assert!(a.limits.wbps.unwrap() >= to_u64(LEAST_BYTES), "{a:?}");
        }
        let mean: f64 = allowed.iter().map(|a| a.share * a.correction.ln()).sum();
        prop_assert!(mean.abs() < 1e-6, "{mean}");
    }

    #[test]
    fn neither_the_unit_of_weights_nor_their_order_matters(
        weights in proptest::collection::vec(1u64..=1000, 2..6),
        looks in 4usize..40,
    ) {
        let got: Vec<f64> = weights.iter().map(|w| 1e6 + to_f64(w % 7) * 1e6).collect();
        let parts = |weights: &[u64], got: &[f64]| -> Vec<f64> {
            after(looks, weights, got).iter().map(|a| a.part).collect()
        };
        let plain = parts(&weights, &got);
        let tenfold: Vec<u64> = weights.iter().map(|w| w * 10).collect();
        let mut other_unit = parts(&tenfold, &got);
        let backwards = |of: &[f64]| of.iter().rev().copied().collect::<Vec<_>>();
        let reversed: Vec<u64> = weights.iter().rev().copied().collect();
        let mut other_order = backwards(&parts(&reversed, &backwards(&got)));
        prop_assert_eq!(other_unit.len(), plain.len());
        for (a, b) in plain.iter().zip(other_unit.drain(..)) {
            prop_assert!((a - b).abs() < 1e-6);
        }
        for (a, b) in plain.iter().zip(other_order.drain(..)) {
            prop_assert!((a - b).abs() < 1e-6);
        }
    }

    #[test]
    fn what_is_divided_is_divided_whole_and_demands_are_kept(
        bids in proptest::collection::vec((1u64..=10_000, 0.0..100f64), 1..8),
        amount in 0.0..300f64,
    ) {
        let (weights, demands): (Vec<u64>, Vec<f64>) = bids.into_iter().unzip();
        let (tree, _) = tree(&weights);
        let weights: Vec<f64> = tree.values().map(|d| f64::from(u32::from(d.weight))).collect();
        let parts = water_fill(&tree, &weights, &demands, amount);
        let wanted: f64 = demands.iter().sum();
        prop_assert!((parts.iter().sum::<f64>() - amount.min(wanted)).abs() < 1e-6);
        prop_assert!(parts.iter().zip(&demands).all(|(p, d)| *p <= d + 1e-9));
    }
}

#[test]
fn who_lacks_is_corrected_up_and_who_has_too_much_down() {
    let allowed = after(12, &[100, 300], &[30e6, 30e6]);
    assert!(
        allowed[0].correction < 0.7 && allowed[1].correction > 1.1,
        "{allowed:?}"
    );
    assert!(
        allowed[0].part < 0.25 && allowed[1].part > 0.75,
        "{allowed:?}"
    );
}

#[test]
fn who_cannot_be_limited_is_not_and_keeps_nobody_from_his_part() {
    let (tree, nodes) = tree(&[100, 300]);
    let mut law = Law::default();
    let mut allowed = Vec::new();
    for _ in 0..8 {
        let own = Observed {
            limitable: false,
            ..waits(0, nodes[0], 30e6)
        };
        allowed = law.step(&tree, busy(60e6), &[own, waits(1, nodes[1], 30e6)]);
    }
    assert!(allowed[0].limits.none() && !allowed[1].limits.none());
}
