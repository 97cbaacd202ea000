use super::*;

const MIB: u64 = 1 << 20;

/// A pool with weight 100 that would have all hits with so many MiB, and fewer in proportion with less.
fn pool(index: u32, accesses: f64, all_hits: u64) -> PoolView {
    let points = vec![(0, 1.0), (all_hits * MIB, 0.0)];
    PoolView::new(index, CurveStatus { accesses, points })
}

/// So many periods, each with the weights of the last.
fn run(planner: &mut Planner, pools: &mut [PoolView], periods: usize) -> Plan {
    let mut plan = Plan::default();
    for _ in 0..periods {
        plan = planner.step(1000 * MIB, pools);
        for (pool, planned) in pools.iter_mut().zip(&plan.pools) {
            pool.weight = planned.weight;
        }
    }
    plan
}

fn weights_of(plan: &Plan) -> Vec<u64> {
    plan.pools.iter().map(|pool| pool.weight).collect()
}

#[test]
fn weights_move_to_where_the_most_hits_are_a_tenth_in_a_period() {
    let mut pools = vec![pool(0, 10.0, 1000), pool(1, 1000.0, 1000)];
    let mut planner = Planner::default();
    let first = run(&mut planner, &mut pools, 1);
    assert!(first.is_new, "{first:?}");
    assert_eq!(weights_of(&first), [80, 120]);
    assert_eq!(first.expected_hits.map(to_u64), [505, 948]);
    let second = run(&mut planner, &mut pools, 1);
    assert!(!second.is_new, "it is on its way");
    assert_eq!(weights_of(&second), [60, 140]);
    let last = weights_of(&run(&mut planner, &mut pools, 8));
    assert_eq!(
        last,
        [10, 190],
        "an eighth of its hits stays, but for a hundredth"
    );
}

#[test]
fn nothing_moves_for_less_than_a_hundredth() {
    let mut pools = vec![pool(0, 100.0, 1000), pool(1, 101.0, 1000)];
    let plan = run(&mut Planner::default(), &mut pools, 20);
    assert_eq!(weights_of(&plan), [100, 100]);
}

#[test]
fn a_target_gets_what_it_needs_and_no_more() {
    let mut pools = vec![pool(0, 10.0, 1000), pool(1, 1000.0, 2000)];
    pools[0].target = Some(Target::HitPercent(70));
    let plan = run(&mut Planner::default(), &mut pools, 20);
    assert_eq!(weights_of(&plan), [141, 59]);
    assert_eq!(plan.pools[0].state, PoolState::Target);
    assert_eq!(plan.pools[0].needs_bytes.map(|need| need / MIB), Some(705));
}

#[test]
fn a_target_out_of_reach_counts_as_none() {
    let mut pools = vec![pool(0, 10.0, 3000), pool(1, 1000.0, 1000)];
    pools[0].target = Some(Target::HitPercent(90));
    let plan = run(&mut Planner::default(), &mut pools, 20);
    assert_eq!(weights_of(&plan), [7, 193]);
    assert_eq!(plan.pools[0].state, PoolState::OutOfReach);
}

#[test]
fn a_latency_is_met_once_the_time_of_a_miss_is_known() {
    let mut pools = vec![pool(0, 10.0, 1000), pool(1, 1000.0, 2000)];
    pools[0].target = Some(Target::ReadLatencyUs(500));
    let mut planner = Planner::default();
    let plan = run(&mut planner, &mut pools, 3);
    assert_eq!(plan.pools[0].state, PoolState::MostHits);
    (pools[0].reads, pools[0].read_us) = (1000, 1_000_000);
    let plan = run(&mut planner, &mut pools, 20);
    assert_eq!(plan.pools[0].state, PoolState::Target);
    assert_eq!(weights_of(&plan), [101, 99]);
}

#[test]
fn a_weight_that_was_set_by_hand_stays_and_the_others_keep_their_sum() {
    let mut pools = vec![
        pool(0, 10.0, 1000),
        pool(1, 1000.0, 1000),
        pool(2, 5e3, 1000),
    ];
    (pools[2].pinned, pools[2].declared, pools[2].weight) = (true, 50, 50);
    let plan = run(&mut Planner::default(), &mut pools, 20);
    assert_eq!(weights_of(&plan), [10, 190, 50]);
    assert_eq!(plan.pools[2].state, PoolState::SetByHand);
}

#[test]
fn a_pool_without_a_curve_keeps_its_weight_and_joins_when_it_has_one() {
    let mut pools = vec![
        pool(0, 10.0, 1000),
        pool(1, 1000.0, 1000),
        pool(2, 1e5, 500),
    ];
    let curve = pools[2].curve.take();
    let mut planner = Planner::default();
    let plan = run(&mut planner, &mut pools, 20);
    assert_eq!(weights_of(&plan), [10, 190, 100]);
    assert_eq!(plan.pools[2].state, PoolState::NoCurve);
    pools[2].curve = curve;
    let plan = run(&mut planner, &mut pools, 20);
    assert_eq!(weights_of(&plan), [10, 140, 150]);
}

/// A store that fails, or is taken away, has no bytes to divide.
#[test]
fn without_anything_to_divide_weights_stay() {
    let mut pools = vec![pool(0, 10.0, 1000), pool(1, 1000.0, 1000)];
    (pools[0].declared, pools[0].weight) = (9000, 9000);
    let mut planner = Planner::default();
    let keeps = planner.step(0, &pools);
    assert_eq!(weights_of(&keeps), [9000, 100]);
    assert!(!keeps.is_new, "{keeps:?}");
    let moves = weights_of(&planner.step(1000 * MIB, &pools));
    assert_eq!(weights_of(&planner.step(0, &pools)), [9000, 100]);
    assert_eq!(moves, [8090, 1010], "a tenth, once there is something");
}

#[test]
fn a_target_that_is_missed_is_corrected() {
    let mut pools = vec![pool(0, 1000.0, 1000), pool(1, 1000.0, 2000)];
    pools[0].target = Some(Target::HitPercent(50));
    let mut planner = Planner::default();
    for period in 1..40 {
        run(&mut planner, &mut pools, 1);
        let weight = pools[0].weight;
        // A fifth of the hits that the curve says do not come.
        pools[0].holds = weight * 1000 * MIB / 200;
        pools[0].gets = period * 10_000;
        pools[0].hits += weight * 10_000 / 200 * 4 / 5;
    }
    let has = to_f64(pools[0].weight) / 200.0 * 0.8;
    assert!((0.49..0.54).contains(&has), "{has}");
}

/// However often one reads: its neighbours keep the hits of an eighth of what their weights give.
#[test]
fn a_busy_pool_leaves_the_others_a_part() {
    let mut pools: Vec<PoolView> = (0..4).map(|n| pool(n, 5000.0, 1000)).collect();
    pools[3] = pool(3, 50_000.0, 1000);
    let mut planner = Planner::default();
    let plan = run(&mut planner, &mut pools, 20);
    let weights = weights_of(&plan);
    assert!(
        weights[..3].iter().all(|weight| (8..=9).contains(weight)),
        "{weights:?}"
    );
    assert_eq!(weights.iter().sum::<u64>(), 400);
    // Taken from it by hand, or by an earlier planner, it comes back.
    [1, 1, 1, 397]
        .into_iter()
        .zip(&mut pools)
        .for_each(|(weight, pool)| pool.weight = weight);
    assert_eq!(
        weights_of(&run(&mut Planner::default(), &mut pools, 20)),
        weights
    );
}

/// Whatever is said of pools, weights are weights, and add up.
#[test]
fn hostile_views_do_no_harm() {
    let odd = |points: &[(u64, f64)], accesses| {
        let points = points.to_vec();
        Some(CurveStatus { accesses, points })
    };
    let curves = [
        odd(&[], 1.0),
        odd(&[(0, f64::NAN)], f64::NAN),
        odd(&[(3, 2.0), (5, -1.0), (u64::MAX, 0.5)], f64::INFINITY),
        odd(&[(0, 1.0), (0, 0.0)], -1.0),
        None,
    ];
    let mut pools: Vec<PoolView> = (0..)
        .zip(curves)
        .map(|(n, curve)| {
            let mut pool = pool(n, 1.0, 1);
            (pool.curve, pool.holds) = (curve, u64::MAX);
            pool.target = (n % 2 == 0).then_some(Target::HitPercent(99));
            pool
        })
        .collect();
    for part in [0, 1, u64::MAX] {
        let mut planner = Planner::default();
        for gets in [0, 5000, u64::MAX, 3] {
            pools
                .iter_mut()
                .for_each(|pool| (pool.gets, pool.hits) = (gets, gets));
            let plan = planner.step(part, &pools);
            let weights = weights_of(&plan);
            assert!(
                weights.iter().all(|weight| (1..=400).contains(weight)),
                "{weights:?}"
            );
            assert_eq!(weights.iter().sum::<u64>(), 500, "{weights:?}");
        }
    }
    assert_eq!(Planner::default().step(100, &[]).pools, []);
}
