//! What entitlement promises, for any tree.

#![expect(clippy::unwrap_used, reason = "tests say what is wrong by failing")]

use justitia_share::{Bid, Demand, NodeId, Tree, Weight, apportion_reclaim, entitlements, max_min};
use proptest::prelude::*;

fn any_bid() -> impl Strategy<Value = Bid> {
    let amount = prop_oneof![Just(0), 0..50u64, 0..1_000_000u64, Just(u64::MAX)];
    (
        1..=10_000u32,
        prop_oneof![Just(0u64), 0..100_000u64],
        prop_oneof![Just(0u64), 0..1_000_000u64],
        prop_oneof![Just(0u64), Just(u64::MAX), 0..1_000_000u64],
        amount,
    )
        .prop_map(|(weight, minimum, working_set, in_use, demand)| Bid {
            weight,
            minimum,
            in_use: in_use.min(working_set),
            working_set,
            demand,
        })
}

fn any_group() -> impl Strategy<Value = Vec<Bid>> {
    proptest::collection::vec(any_bid(), 1..12)
}

fn any_amount() -> impl Strategy<Value = u64> {
    prop_oneof![0..100u64, 0..10_000_000u64, any::<u64>()]
}

/// Parents as fractions of the index, so that any vector describes a tree of any depth.
fn any_tree() -> impl Strategy<Value = Tree<Demand>> {
    proptest::collection::vec((any::<prop::sample::Index>(), any_bid()), 1..30).prop_map(|nodes| {
        let mut tree = Tree::new();
        let mut ids = vec![None];
        for (parent, bid) in nodes {
            ids.push(Some(tree.push(*parent.get(&ids), demand(&bid, 0))));
        }
        tree
    })
}

fn demand(bid: &Bid, requested: u64) -> Demand {
    Demand {
        weight: Weight::try_from(u64::from(bid.weight)).unwrap(),
        sums_weights: false,
        minimum: bid.minimum,
        requested_protection: requested,
        in_use: bid.in_use,
        working_set: bid.working_set,
        total: bid.demand,
    }
}

fn minimum(bid: &Bid) -> u64 {
    bid.minimum.min(bid.demand)
}

fn in_use(bid: &Bid) -> u64 {
    bid.in_use.max(bid.minimum).min(bid.demand)
}

fn working_set(bid: &Bid) -> u64 {
    bid.working_set.max(bid.minimum).min(bid.demand)
}

fn wide_sum(parts: impl IntoIterator<Item = u64>) -> u128 {
    parts.into_iter().map(u128::from).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn parts_add_up(bids in any_group(), amount in any_amount()) {
        prop_assert_eq!(wide_sum(max_min(amount, &bids)), u128::from(amount));
    }

    #[test]
    fn minimums_and_demands_hold(bids in any_group(), amount in any_amount()) {
        let parts = max_min(amount, &bids);
        let minimums = wide_sum(bids.iter().map(minimum));
        let asked = wide_sum(bids.iter().map(|b| b.demand));
        for (bid, part) in bids.iter().zip(&parts) {
            if minimums <= u128::from(amount) {
                prop_assert!(*part >= bid.minimum.min(bid.demand));
            }
            if asked >= u128::from(amount) {
                prop_assert!(*part <= bid.demand);
            } else {
                prop_assert!(*part >= bid.demand);
            }
        }
    }

    /// Working sets come before everything but minimums: while all of them fit, each member has its own, and while they
    /// do not, none has more than its own.
    #[test]
    fn working_sets_before_the_rest(bids in any_group(), amount in any_amount()) {
        let parts = max_min(amount, &bids);
        let fits = wide_sum(bids.iter().map(working_set)) <= u128::from(amount);
        for (bid, part) in bids.iter().zip(&parts) {
            let kept = if fits { *part >= working_set(bid) } else { *part <= working_set(bid) };
            prop_assert!(kept, "{part} of {bid:?}");
        }
    }

    /// What is in use of them comes before the rest of them.
    #[test]
    fn what_is_in_use_comes_before_the_rest_of_working_sets(bids in any_group(), amount in any_amount()) {
        let parts = max_min(amount, &bids);
        let fits = wide_sum(bids.iter().map(in_use)) <= u128::from(amount);
        for (bid, part) in bids.iter().zip(&parts) {
            let kept = if fits { *part >= in_use(bid) } else { *part <= in_use(bid) };
            prop_assert!(kept, "{part} of {bid:?}");
        }
    }

    #[test]
    fn more_use_is_never_less(bids in any_group(), amount in any_amount(), index in any::<prop::sample::Index>(), more in 1..50_000u64) {
        let i = index.index(bids.len());
        let mut keen = bids.clone();
        keen[i].working_set += more;
        prop_assert!(max_min(amount, &keen)[i] >= max_min(amount, &bids)[i]);
        let mut used = bids.clone();
        used[i].in_use = (used[i].in_use + more).min(used[i].working_set);
        prop_assert!(max_min(amount, &used)[i] >= max_min(amount, &bids)[i]);
    }

    /// Between minimum and what is in use, between that and the working set, and between that and the demand, all
    /// members stand at the same level, within half a unit.
    #[test]
    fn same_level_for_all(bids in any_group(), amount in 0..10_000_000u64) {
        let parts = max_min(amount, &bids);
        let rounds: [fn(&Bid) -> u64; 4] = [minimum, in_use, working_set, |b| b.demand];
        let sum = |round: fn(&Bid) -> u64| wide_sum(bids.iter().map(round));
        let wide = u128::from(amount);
        let pair = rounds.windows(2).find(|pair| sum(pair[0]) < wide && wide < sum(pair[1]));
        prop_assume!(pair.is_some());
        let (low, high) = (pair.unwrap()[0], pair.unwrap()[1]);
        // A unit that one holds above the lower bound never ranks below a unit that another was refused.
        for (x, held) in bids.iter().zip(&parts).filter(|(b, p)| **p > low(b)) {
            for (y, refused) in bids.iter().zip(&parts).filter(|(b, p)| **p < high(b)) {
                let holds = u128::from(x.weight) * (2 * u128::from(*refused) + 1);
                let wants = u128::from(y.weight) * (2 * u128::from(*held) - 1);
                prop_assert!(holds >= wants, "{x:?} holds {held}, {y:?} has {refused}");
            }
        }
    }

    #[test]
    fn more_weight_is_never_less(bids in any_group(), amount in any_amount(), index in any::<prop::sample::Index>(), more in 1..5000u32) {
        let i = index.index(bids.len());
        let mut heavier = bids.clone();
        heavier[i].weight += more;
        let (before, after) = (max_min(amount, &bids), max_min(amount, &heavier));
        prop_assert!(after[i] >= before[i]);
        for j in (0..bids.len()).filter(|&j| j != i) {
            prop_assert!(after[j] <= before[j], "nobody else gains by it");
        }
    }

    #[test]
    fn more_demand_is_never_less(bids in any_group(), amount in any_amount(), index in any::<prop::sample::Index>(), more in 1..5000u64) {
        let i = index.index(bids.len());
        let mut hungrier = bids.clone();
        hungrier[i].demand = hungrier[i].demand.saturating_add(more);
        prop_assert!(max_min(amount, &hungrier)[i] >= max_min(amount, &bids)[i]);
    }

    /// One unit more to divide moves one unit, anywhere in the tree: tiny changes stay tiny.
    #[test]
    fn one_unit_more_moves_one_unit(tree in any_tree(), amount in 0..10_000_000u64) {
        let (before, after) = (entitlements(&tree, amount), entitlements(&tree, amount + 1));
        for node in tree.ids() {
            let (b, a) = (before[node.index()], after[node.index()]);
            prop_assert!(a == b || a == b + 1, "{b} became {a}");
        }
    }

    #[test]
    fn every_level_adds_up(tree in any_tree(), amount in any_amount()) {
        let parts = entitlements(&tree, amount);
        for parent in tree.parents() {
            let whole = parent.map_or(amount, |parent| parts[parent.index()]);
            let sum = wide_sum(tree.children(parent).map(|child| parts[child.index()]));
            prop_assert_eq!(sum, u128::from(whole));
        }
    }

    /// A tenant that demands nothing leaves everything to the others. What no tenant demands is divided by weight. A
    /// tenant that is alone gets all, whatever it demands.
    #[test]
    fn work_conserving(
        weights in proptest::collection::vec(1..=10_000u64, 2..10),
        amount in any_amount(),
        total in any_amount(),
    ) {
        let mut tree = Tree::new();
        for (i, w) in weights.iter().enumerate() {
            let total = if i == 0 { u64::MAX } else { 0 };
            tree.push(None, Demand { total, ..Demand::unlimited(Weight::try_from(*w).unwrap()) });
        }
        prop_assert_eq!(entitlements(&tree, amount)[0], amount);
        let group = |weights: &[u64], total: u64| {
            let mut tree = Tree::new();
            for weight in weights {
                let weight = Weight::try_from(*weight).unwrap();
                tree.push(None, Demand { total, ..Demand::unlimited(weight) });
            }
            entitlements(&tree, amount)
        };
        prop_assert_eq!(group(&weights[..1], total), [amount]);
        let sum = wide_sum(weights.iter().copied());
        for (part, weight) in group(&weights, 0).into_iter().zip(&weights) {
            let ideal = u128::from(amount) * u128::from(*weight) / sum;
            prop_assert!(ideal.abs_diff(u128::from(part)) <= 2, "{part} of {amount}, ideally {ideal}");
        }
    }

    /// Settings inside a node decide nothing outside it: not its requested protections, not its weights, not the number
    /// of its children, as long as these demand no more together.
    #[test]
    fn what_is_said_inside_changes_nothing_outside(
        tree in any_tree(),
        amount in any_amount(),
        top in any::<prop::sample::Index>(),
        said in proptest::collection::vec((1..=10_000u64, any_amount()), 1..30),
    ) {
        let top = tree.node(top.index(tree.len())).unwrap();
        let is_inside = |node: &NodeId| tree.ancestors(*node).any(|above| above == top);
        let inside = tree.ids().filter(is_inside).collect::<Vec<NodeId>>();
        let mut changed = tree.clone();
        for (node, (weight, requested)) in inside.iter().zip(said.iter().cycle()) {
            let weight = Weight::try_from(*weight).unwrap();
            changed[*node] = Demand { weight, requested_protection: *requested, ..tree[*node] };
        }
        // Many that demand nothing beside those which are there, but request everything.
        let mut crowded = changed.clone();
        if !inside.is_empty() {
            for (weight, requested) in &said {
                let weight = Weight::try_from(*weight).unwrap();
                let demand = Demand { requested_protection: *requested, total: 0, ..Demand::unlimited(weight) };
                crowded.push(Some(top), demand);
            }
        }
        let before = entitlements(&tree, amount);
        for after in [entitlements(&changed, amount), entitlements(&crowded, amount)] {
            for node in tree.ids().filter(|n| !inside.contains(n)) {
                prop_assert_eq!(before[node.index()], after[node.index()]);
            }
        }
    }

    /// Among siblings requested protection is a minimum, after all minimums.
    #[test]
    fn minimums_come_before_requested_protection(
        bids in proptest::collection::vec((any_bid(), any_amount()), 1..12),
        amount in any_amount(),
    ) {
        let mut tree = Tree::new();
        for (bid, requested) in &bids {
            tree.push(None, demand(bid, *requested));
        }
        let parts = entitlements(&tree, amount);
        prop_assert_eq!(wide_sum(parts.iter().copied()), u128::from(amount));
        let protected = |b: &Bid, requested: u64| requested.min(b.demand).max(minimum(b));
        let minimums = wide_sum(bids.iter().map(|(b, _)| minimum(b)));
        let all = wide_sum(bids.iter().map(|(b, requested)| protected(b, *requested)));
        for ((bid, requested), part) in bids.iter().zip(&parts) {
            prop_assert!(minimums > u128::from(amount) || *part >= minimum(bid));
            prop_assert!(all > u128::from(amount) || *part >= protected(bid, *requested));
            prop_assert!(all <= u128::from(amount) || *part <= protected(bid, *requested));
        }
    }

    #[test]
    fn apportioned_reclaim_is_bounded_and_proportional(over in proptest::collection::vec(prop_oneof![Just(0), 1..1u64 << 40], 1..20), need in 0..1u64 << 42) {
        let parts = apportion_reclaim(need, &over);
        let total = wide_sum(over.iter().copied());
        prop_assert_eq!(wide_sum(parts.iter().copied()), total.min(u128::from(need)));
        for (part, o) in parts.iter().zip(&over) {
            prop_assert!(part <= o);
            if total > u128::from(need) {
                let exact = u128::from(need) * u128::from(*o) / total;
                // The weights are scaled to 32 bits: a 2^-31st part of the need may shift.
                let slack = 2 + u128::from(need >> 30) * 20;
                prop_assert!(u128::from(*part).abs_diff(exact) <= slack, "{part} for {exact}");
            }
        }
    }
}
