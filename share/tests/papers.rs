//! The papers' own numbers fall out of one entitlement and one victim rule.

#![expect(clippy::unwrap_used, reason = "tests say what is wrong by failing")]

use justitia_share::{
    Demand, NodeId, Tree, Weight, apportion_reclaim, entitlements, excess, victim,
};

fn weight(value: u64) -> Weight {
    Weight::try_from(value).unwrap()
}

/// A flat group of tenants with the given weights and demands.
fn flat(tenants: &[(u64, u64)]) -> Tree<Demand> {
    let mut tree = Tree::new();
    for &(w, total) in tenants {
        let demand = Demand::unlimited(weight(w));
        tree.push(None, Demand { total, ..demand });
    }
    tree
}

/// Justitia, section III-B1 and Fig. 7: four applications with 1, 6, 1 and 2 of 10 pages; APP2's
/// threshold is 1.3, so its pages go.
#[test]
fn justitia_figure_7() {
    const MILLI: u64 = 1000; // thresholds in the paper are fractions of a page
    let weights = [100, 200, 400, 800];
    let tree = flat(&weights.map(|w| (w, u64::MAX)));
    let threshold = entitlements(&tree, 10 * MILLI);
    assert_eq!(threshold, [667, 1333, 2667, 5333]);

    let mut pages = [MILLI, 6 * MILLI, MILLI, 2 * MILLI];
    assert_eq!(victim(&pages, &threshold, 0), Some(1));
    // The other tenant above its threshold gives its third of a page, APP2 all the rest.
    let over: Vec<u64> = pages
        .iter()
        .zip(&threshold)
        .map(|(u, t)| excess(*u, *t))
        .collect();
    assert_eq!(over, [333, 4667, 0, 0]);
    assert_eq!(apportion_reclaim(5 * MILLI, &over), over);
    // Page by page, as the paper does it: 6 -> 5 and on, until none is above its threshold by a page.
    let mut taken = [0; 4];
    while let Some(app) = victim(&pages, &threshold, 0) {
        if pages[app] < threshold[app] + MILLI {
            break;
        }
        pages[app] -= MILLI;
        taken[app] += 1;
    }
    assert_eq!(taken, [0, 4, 0, 0]);
}

/// An entity of DoubleDecker's Algorithm 1.
#[derive(Clone, Copy)]
struct Entity {
    entitlement: u64,
    used: u64,
    weight: u64,
}

/// Algorithm 1, transcribed line by line, with equation 1 (exact in units of 1/cw).
fn algorithm_1(entities: &[Entity], eviction: u64) -> Option<usize> {
    let over: Vec<usize> = (0..entities.len())
        .filter(|&i| entities[i].entitlement < entities[i].used + eviction)
        .collect();
    let cw: u64 = over.iter().map(|&i| entities[i].weight).sum();
    let unused: u64 = entities
        .iter()
        .filter(|e| e.entitlement.saturating_sub(e.used) > 2 * eviction)
        .map(|e| e.entitlement - e.used)
        .sum();
    let exceed = |i: usize| {
        let e = entities[i];
        (i128::from(e.used + eviction) - i128::from(e.entitlement)) * i128::from(cw)
            - i128::from(unused) * i128::from(e.weight)
    };
    over.into_iter()
        .reduce(|best, i| if exceed(best) < exceed(i) { i } else { best })
}

/// DoubleDecker, section 5.1.1 (Fig. 9b, 10): 3 GB for four equal containers. Proxycache and Mail do not
/// use their 750 MB, Webserver asks for 800 MB, Videoserver takes the rest, about 1.2 GB.
#[test]
fn doubledecker_figure_9() {
    let demand = [800, 550, 520, u64::MAX]; // MB: webserver, proxycache, mail, videoserver
    let tree = flat(&demand.map(|d| (25, d)));
    let fair = entitlements(&tree, 3000);
    assert_eq!(fair, [800, 550, 520, 1130]);
    // The next 2 MB that any container stores come out of the video server.
    let greedy = [780, 530, 500, 1190];
    assert_eq!(victim(&greedy, &fair, 2), Some(3));
    let paper = greedy.map(|used| Entity {
        entitlement: 750,
        used,
        weight: 25,
    });
    assert_eq!(algorithm_1(&paper, 2), Some(3));
}

/// DoubleDecker, section 5.3.1 (Fig. 13): 1 GB divided 60:40, then 50:30:20 when a third comes.
#[test]
fn doubledecker_figure_13() {
    let before = entitlements(&flat(&[(60, u64::MAX), (40, u64::MAX), (20, 0)]), 1000);
    assert_eq!(before, [600, 400, 0]);
    let after = entitlements(
        &flat(&[(50, u64::MAX), (30, u64::MAX), (20, u64::MAX)]),
        1000,
    );
    assert_eq!(after, [500, 300, 200]);
    // Both rules take it first from the entity that is furthest above its new share.
    let used = [600, 400, 0];
    let paper: Vec<Entity> = used
        .iter()
        .zip([(500, 50), (300, 30), (200, 20)])
        .map(|(&used, (entitlement, weight))| Entity {
            entitlement,
            used,
            weight,
        })
        .collect();
    assert_eq!(victim(&used, &after, 2), Some(0));
    assert_eq!(
        algorithm_1(&paper, 2),
        Some(1),
        "the paper lends the third's share by weight"
    );
}

/// DoubleDecker, section 3 (Fig. 6): VM1 and VM2 at 33:67; VM2's containers 1:3 in memory.
#[test]
fn doubledecker_figure_6() {
    let mut tree = Tree::new();
    let vm1 = tree.push(None, Demand::unlimited(weight(33)));
    let vm2 = tree.push(None, Demand::unlimited(weight(67)));
    let c2 = tree.push(Some(vm1), Demand::unlimited(weight(100)));
    let a = tree.push(Some(vm2), Demand::unlimited(weight(1)));
    let b = tree.push(Some(vm2), Demand::unlimited(weight(3)));
    let fair = entitlements(&tree, 10_000);
    let of = |n: NodeId| fair[n.index()];
    assert_eq!([of(vm1), of(c2)], [3300, 3300]);
    assert_eq!([of(vm2), of(a), of(b)], [6700, 1675, 5025]);
}

/// Where the entities are saturated (none leaves anything unused), both rules choose alike.
#[test]
fn victim_is_algorithm_1_when_all_are_saturated() {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: u64| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for _ in 0..2000 {
        let weights: Vec<u64> = (0..5).map(|_| 1 + random(100)).collect();
        let tree = flat(&weights.iter().map(|w| (*w, u64::MAX)).collect::<Vec<_>>());
        let fair = entitlements(&tree, 100_000);
        // Around the entitlement, never more than two batches below it.
        let used: Vec<u64> = fair
            .iter()
            .map(|e| (e + random(2000)).saturating_sub(900).max(1))
            .collect();
        let paper: Vec<Entity> = weights
            .iter()
            .zip(&fair)
            .zip(&used)
            .map(|((&weight, &entitlement), &used)| Entity {
                entitlement,
                used,
                weight,
            })
            .collect();
        if let Some(chosen) = algorithm_1(&paper, 512) {
            assert_eq!(
                victim(&used, &fair, 512),
                Some(chosen),
                "{used:?} of {fair:?}"
            );
        }
    }
}
