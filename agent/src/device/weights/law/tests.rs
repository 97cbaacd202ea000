//! What holds for any sequence of samples.

use super::*;
use justitia_share::Weight;
use proptest::prelude::*;

const MOST: u64 = 1000;

fn tree(weights: &[u64]) -> (Tree<Demand>, Vec<NodeId>, Vec<u64>) {
    let mut tree = Tree::new();
    let weight = |w: &u64| Demand::unlimited(Weight::try_from(*w).unwrap());
    let nodes = weights.iter().map(|w| tree.push(None, weight(w)));
    let nodes: Vec<NodeId> = nodes.collect();
    let ids = (0..nodes.len() as u64).collect();
    (tree, nodes, ids)
}

/// A direct writer that waits.
fn waits(node: NodeId, bytes: f64) -> Used {
    Used {
        node,
        bytes,
        written: bytes,
        stalled: 1.0,
        application: bytes,
        dirty: 0,
    }
}

fn busy() -> Looked {
    Looked {
        seconds: 0.25,
        busy: 1.0,
        divided: true,
    }
}

/// What the law decides after all got these bytes a second for so many looks.
fn after(looks: usize, weights: &[u64], got: &[f64]) -> Vec<Corrected> {
    let (tree, nodes, ids) = tree(weights);
    let mut law = Law::default();
    let mut decided = Vec::new();
    for _ in 0..looks {
        let tenants = nodes.iter().zip(got);
        let used: Vec<_> = tenants.map(|(node, got)| waits(*node, *got)).collect();
        decided = law.step(&tree, &ids, busy(), &used, MOST);
    }
    decided
}

proptest! {
    #[test]
    fn weights_are_the_actuators_and_corrections_bounded(
        tenants in proptest::collection::vec((1u64..=10_000, 0.0..1e8f64), 2..8),
        looks in 1usize..200,
    ) {
        let (weights, got): (Vec<_>, Vec<_>) = tenants.into_iter().unzip();
        let decided = after(looks, &weights, &got);
        let parts: f64 = decided.iter().map(|one| one.part).sum();
        prop_assert!(decided.is_empty() || (parts - 1.0).abs() < 1e-6, "{parts}");
        for one in &decided {
            let corrections = decided.iter().map(|other| one.correction / other.correction);
            let apart = corrections.fold(1.0, f64::max);
            prop_assert!(apart <= MOST_CORRECTION * 1.001, "{apart} {one:?}");
            prop_assert!((1..=MOST).contains(&one.weight), "{one:?}");
        }
    }

    #[test]
    fn neither_the_unit_of_bytes_nor_the_order_of_tenants_matters(
        weights in proptest::collection::vec(1u64..=1000, 2..6),
        looks in 4usize..40,
    ) {
        let got: Vec<f64> = weights.iter().map(|w| 1e6 + to_f64(w % 7) * 1e6).collect();
        let corrections = |weights: &[u64], got: &[f64]| -> Vec<f64> {
            after(looks, weights, got).iter().map(|one| one.correction).collect()
        };
        let plain = corrections(&weights, &got);
        let thousandfold: Vec<f64> = got.iter().map(|got| got * 1e3).collect();
        let other_unit = corrections(&weights, &thousandfold);
        let reversed: Vec<u64> = weights.iter().rev().copied().collect();
        let got_reversed: Vec<f64> = got.iter().rev().copied().collect();
        let mut other_order = corrections(&reversed, &got_reversed);
        other_order.reverse();
        for other in [other_unit, other_order] {
            prop_assert_eq!(other.len(), plain.len());
            prop_assert!(plain.iter().zip(other).all(|(a, b)| (a - b).abs() < 1e-6));
        }
    }

    #[test]
    fn who_gets_his_part_is_left_as_he_is(
        weights in proptest::collection::vec(1u64..=1000, 2..6),
        looks in 1usize..40,
    ) {
        let got: Vec<f64> = weights.iter().map(|w| to_f64(*w) * 1e5).collect();
        prop_assert!(after(looks, &weights, &got).is_empty());
    }
}

#[test]
fn who_lacks_is_corrected_up_and_who_has_too_much_down() {
    let decided = after(12, &[100, 300], &[30e6, 30e6]);
    assert!(
        decided[0].correction < 0.8 && decided[1].correction > 1.05,
        "{decided:?}"
    );
    assert!(
        decided[0].weight < 80 && decided[1].weight > 310,
        "{decided:?}"
    );
    assert!(decided[0].part < 0.25 && decided[1].part > 0.75);
    // Larger weights than the scheduler takes keep their proportion.
    let decided = after(6, &[910, 10_000], &[30e6, 30e6]);
    assert!(decided[1].weight >= 950 && decided[0].weight < 100);
}

/// As a pod with one container beside another one.
#[test]
fn who_contends_alone_below_one_that_contends_has_its_part() {
    let weight = |w: u64| Demand::unlimited(Weight::try_from(w).unwrap());
    let mut tree = Tree::new();
    let pods = [100, 300].map(|w| tree.push(None, weight(w)));
    let inside = pods.map(|pod| tree.push(Some(pod), weight(100)));
    let ids: Vec<u64> = (0..4).collect();
    let mut law = Law::default();
    for looks in 0..12 {
        let used = inside.map(|node| waits(node, 30e6));
        let decided = law.step(&tree, &ids, busy(), &used, MOST);
        assert!(looks < 3 || decided.len() == 2, "{decided:?}");
    }
    let part = |law: &Law, node: NodeId| law.part(ids[node.index()]);
    for (pod, inside) in pods.into_iter().zip(inside) {
        assert!(part(&law, pod).is_some() && part(&law, pod) == part(&law, inside));
    }
    let first = part(&law, inside[0]).unwrap();
    assert!(first < 0.3, "{first}");
    // One that contends with nobody has none.
    for _ in 0..20 {
        law.step(&tree, &ids, busy(), &[waits(inside[0], 60e6)], MOST);
    }
    assert_eq!(part(&law, inside[0]), None);
}

/// What waits for a disk that is the bottleneck leaves gaps.
#[test]
fn a_disk_that_rests_now_and_then_is_contended() {
    for (part, expected) in [(0.6, false), (0.8, true)] {
        let (tree, nodes, ids) = tree(&[100, 300]);
        let mut law = Law::default();
        for _ in 0..8 {
            let used: Vec<_> = nodes.iter().map(|node| waits(*node, 30e6)).collect();
            let looked = Looked {
                busy: part,
                ..busy()
            };
            law.step(&tree, &ids, looked, &used, MOST);
        }
        assert_eq!(law.engaged(), expected, "{part}");
    }
}

/// As after a stop of the agent.
#[test]
fn a_long_interval_counts_for_a_second() {
    let (tree, nodes, ids) = tree(&[100, 100]);
    let step = |law: &mut Law, seconds| {
        let used = [waits(nodes[0], 20e6), waits(nodes[1], 30e6)];
        let looked = Looked { seconds, ..busy() };
        law.step(&tree, &ids, looked, &used, MOST)
    };
    let mut law = Law::default();
    for _ in 0..4 {
        step(&mut law, 0.25);
    }
    let (mut minute, mut second) = (law.clone(), law);
    let correction = |decided: Vec<Corrected>| decided[1].correction;
    let (minute, second) = (step(&mut minute, 60.0), step(&mut second, 1.0));
    assert!((correction(minute) - correction(second)).abs() < 0.05);
}

/// Of two groups, one with two tenants that contend with each other alone.
#[test]
fn siblings_are_corrected_against_each_other() {
    let weight = |w: u64| Demand::unlimited(Weight::try_from(w).unwrap());
    let mut tree = Tree::new();
    let above = tree.push(None, weight(100));
    let nodes = [100, 300].map(|w| tree.push(Some(above), weight(w)));
    let idle = tree.push(None, weight(900));
    let mut law = Law::default();
    let mut decided = Vec::new();
    for _ in 0..12 {
        let mut used = nodes.map(|node| waits(node, 30e6)).to_vec();
        used.push(Used {
            stalled: 0.0,
            ..waits(idle, 1e5)
        });
        decided = law.step(&tree, &[0, 1, 2, 3], busy(), &used, MOST);
    }
    let of: Vec<NodeId> = decided.iter().map(|one| one.node).collect();
    assert_eq!(of, nodes, "{decided:?}");
    // Nobody waits any more.
    for _ in 0..8 {
        let quiet = Looked {
            busy: 0.1,
            ..busy()
        };
        decided = law.step(&tree, &[0, 1, 2, 3], quiet, &[], MOST);
    }
    assert!(decided.is_empty() && !law.engaged());
}

/// Who is protected does not wait any more, and would again without it.
#[test]
fn contention_lasts_while_one_waits_and_another_uses_the_disk() {
    let (tree, nodes, ids) = tree(&[100, 800]);
    let mut law = Law::default();
    let mut step = |stalled: f64, bytes: f64| {
        let careful = Used {
            stalled,
            ..waits(nodes[1], bytes)
        };
        for _ in 0..12 {
            law.step(&tree, &ids, busy(), &[waits(nodes[0], 50e6), careful], MOST);
        }
        law.engaged()
    };
    assert!(!step(0.2, 4e6), "it does not wait yet");
    assert!(step(0.9, 1e6));
    assert!(step(0.2, 4e6));
    assert!(!step(0.0, 0.0), "it has gone");
}

/// io.cost gives others what it leaves, but no more than the disk can do only as long as its weight is its own.
#[test]
fn who_leaves_most_of_its_part_of_io_cost_is_not_corrected() {
    let (tree, nodes, ids) = tree(&[100, 800, 100]);
    let corrections = |exact| {
        let mut law = Law::new(exact);
        let mut decided = Vec::new();
        for _ in 0..400 {
            let got = [40e6, 4e6, 16e6];
            let used = nodes.iter().zip(got).map(|(node, got)| waits(*node, got));
            decided = law.step(&tree, &ids, busy(), &used.collect::<Vec<_>>(), MOST);
        }
        let of = |node| {
            decided
                .iter()
                .find(|one| one.node == node)
                .unwrap()
                .correction
        };
        [of(nodes[0]), of(nodes[1]), of(nodes[2])]
    };
    let [greedy, careful, modest] = corrections(true);
    assert!((0.8..1.2).contains(&careful), "{careful}");
    assert!(modest > 1.5 * greedy, "{modest} {greedy}");
    let [greedy, careful, _] = corrections(false);
    assert!(careful > 30.0 * greedy, "{careful} {greedy}");
}

/// Tenants that do not use all that io.cost hands out do not wait for their part of it.
#[test]
fn no_weight_is_corrected_below_saturation() {
    let (tree, nodes, ids) = tree(&[100, 800]);
    let corrections = |divided| {
        let mut law = Law::new(true);
        let looked = Looked { divided, ..busy() };
        let used = [waits(nodes[0], 20e6), waits(nodes[1], 20e6)];
        for _ in 0..16 {
            law.step(&tree, &ids, busy(), &used, MOST);
        }
        let mut decided = Vec::new();
        for _ in 0..240 {
            decided = law.step(&tree, &ids, looked, &used, MOST);
        }
        [decided[0].correction, decided[1].correction]
    };
    let [light, heavy] = corrections(false);
    assert!(light > 0.8 && heavy < 1.2, "{light} {heavy}");
    let [light, heavy] = corrections(true);
    assert!(heavy > 4.0 * light, "{light} {heavy}");
}

/// A burst of many times the part counts as some seconds of it.
#[test]
fn a_burst_is_not_corrected_for_longer_than_a_bound() {
    let (tree, nodes, ids) = tree(&[100, 100]);
    let mut law = Law::default();
    let mut step = |got: [f64; 2]| {
        let used = [waits(nodes[0], got[0]), waits(nodes[1], got[1])];
        let decided = law.step(&tree, &ids, busy(), &used, MOST);
        decided.first().map_or(1.0, |one| one.correction)
    };
    for _ in 0..8 {
        step([50e6, 10e6]);
    }
    let low = (0..100).map(|_| step([30e6, 30e6])).fold(1.0, f64::min);
    assert!(low > 1.0 / 8.0, "{low}");
    assert!((step([30e6, 30e6]) - step([30e6, 30e6])).abs() < 1e-6);
}

/// Who has most of a disk waits least: one that contends does so until it waits no more at all.
#[test]
fn a_tenant_that_waits_little_contends_if_it_did_before() {
    let (tree, nodes, ids) = tree(&[100, 800]);
    let contends = |stalled_before: f64| {
        let mut law = Law::default();
        let mut decided = Vec::new();
        for look in 0..60 {
            let (light, mut heavy) = (waits(nodes[0], 1e7), waits(nodes[1], 2e7));
            heavy.stalled = if look < 20 { stalled_before } else { 0.05 };
            decided = law.step(&tree, &ids, busy(), &[light, heavy], MOST);
        }
        decided.iter().any(|one| one.node == nodes[1])
    };
    assert!(contends(1.0), "it did, and still waits");
    assert!(!contends(0.05), "it never waited for long");
}
