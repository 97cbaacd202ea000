//! Slab, limits, anonymous memory, and what was there before anything was observed.

use super::*;

#[test]
fn slab_is_usage_and_is_left_to_kswapd() {
    let mut crawler = leaf(2, 100, 500);
    crawler.slab = 480 * MIB;
    let mut hot = seen(300, leaf(1, 100, 310));
    (hot.growing, hot.slab) = (false, 10 * MIB);
    let snap = snapshot(2, vec![hot.clone(), crawler.clone()]);
    let (entitlements, intents) = plan(&snap);
    // What goes with its file pages is protected with them.
    assert_eq!(entitlements.protected[0], 310 * MIB);
    // Of its 484 MiB of entitlement next to none protects slab.
    assert!(entitlements.protected[1] < 20 * MIB, "{entitlements:?}");
    // A quarter of its file pages at once, or slab would shrink out of proportion.
    assert_eq!(intents, [(2, 5 * MIB)]);
    // Without file pages nothing can be taken in measure, and nobody gives in its place.
    crawler.slab = crawler.own;
    let others = vec![hot, crawler];
    assert_eq!(plan(&snapshot(2, others)).1, []);
}

#[test]
fn no_tenant_demands_more_than_its_limits_leave_to_it() {
    let mut capped = leaf(1, 800, 64);
    capped.limit = 64 * MIB;
    let three = vec![capped, leaf(2, 300, 400), leaf(3, 100, 330)];
    let entitled = Entitlements::of(&snapshot(10, three), &Policy::default()).entitled;
    assert_eq!(entitled[0], 64 * MIB);
    assert!(entitled[1].abs_diff(3 * entitled[2]) <= 3, "{entitled:?}");
    // A group's limit caps what is below it.
    let mut group = inner(1, 200, 0);
    group.limit = 200 * MIB;
    let placed = vec![
        group.into(),
        below(leaf(2, 100, 200)),
        leaf(3, 100, 600).into(),
    ];
    let entitled = Entitlements::of(&snapshot(10, placed), &Policy::default()).entitled;
    assert_eq!(entitled[..2], [200 * MIB, 200 * MIB]);
}

#[test]
fn who_misses_nothing_needs_no_more_than_it_holds() {
    let mut sparse = seen(686, leaf(1, 100, 64));
    let set = |tenant: &Tenant| {
        let snap = snapshot(10, vec![tenant.clone(), leaf(2, 100, 700)]);
        Entitlements::of(&snap, &Policy::default()).demands[0].working_set / MIB
    };
    assert_eq!(set(&sparse), 686, "it takes in more");
    sparse.growing = false;
    assert_eq!(set(&sparse), 64);
    // Mapped pages and those that are read may be different ones.
    sparse.mapped = 20 * MIB;
    sparse.working_set.bytes = 30 * MIB;
    assert_eq!(set(&sparse), 50);
}

#[test]
fn what_was_there_before_counts_as_used_until_it_is_observed() {
    let mut hot = seen(0, leaf(1, 100, 400));
    (hot.growing, hot.unseen) = (false, 400 * MIB);
    let stream = seen(0, leaf(2, 800, 400));
    let (entitlements, intents) = plan(&snapshot(2, vec![hot.clone(), stream.clone()]));
    assert_eq!(entitlements.protected[0], 400 * MIB);
    assert_eq!(intents, [(2, 8 * MIB)]);
    // Even where its share is smaller, nothing is taken of it.
    let second = Tenant {
        key: leaf(2, 100, 0).key,
        ..hot.clone()
    };
    assert_eq!(plan(&snapshot(2, vec![hot, second])).1, []);
}

/// A tenant of 200 MiB of anonymous memory, and file pages that come back.
fn with_swap(change: impl Fn(&mut Snapshot)) -> Option<u64> {
    let mut app = leaf(1, 100, 0);
    app.anon = 200 * MIB;
    let mut snap = snapshot(2, vec![app, leaf(2, 100, 400), leaf(3, 100, 300)]);
    (snap.memory.refaulted, snap.memory.swappiness) = (100 * MIB, 60);
    change(&mut snap);
    let entitlements = Entitlements::of(&snap, &Policy::default());
    plan_anonymous(&snap, &entitlements).map(|intent| intent.bytes)
}

fn app(snapshot: &mut Snapshot) -> &mut Tenant {
    let first = snapshot.tenants.node(0).unwrap();
    &mut snapshot.tenants[first]
}

#[test]
fn anonymous_memory_gives_the_part_that_the_kernel_would_scan() {
    // 200 x 60 twice as cheap against 700 x 140: a fifth of the 8 MiB that are missing.
    let part = with_swap(|_| {}).unwrap();
    let exact = 8 * MIB * (200 * 60 * 2) / (200 * 60 * 2 + 700 * 140);
    assert!(part.abs_diff(exact) <= 1, "{part}, not {exact}");
    let costly = with_swap(|snap| app(snap).swapped_out = 100 * MIB).unwrap();
    assert!(costly < part);
}

#[test]
fn each_reason_to_swap_nothing_out() {
    type Change = fn(&mut Snapshot);
    let cases: [(&str, Change); 6] = [
        ("no file page comes back", |snap| snap.memory.refaulted = 0),
        ("no swap", |snap| snap.memory.swappiness = 0),
        ("memory suffices", |snap| snap.memory.free = 500 * MIB),
        ("what was swapped out is in use", |snap| {
            (app(snap).swapped_out, app(snap).swapped_in) = (40 * MIB, 7 * MIB);
        }),
        ("it thrashes", |snap| {
            app(snap).exempt = Some(ReclaimExemption::Thrashing { full_avg10: 80.0 });
        }),
        ("it has none", |snap| app(snap).anon = 0),
    ];
    for (name, change) in cases {
        assert_eq!(with_swap(change), None, "{name}");
    }
    // All of it is there, with the slab that goes with it.
    let whole = with_swap(|snap| {
        let second = snap.tenants.node(1).unwrap();
        snap.tenants[second] = seen(390, leaf(2, 100, 400));
        snap.tenants[second].slab = 10 * MIB;
        let third = snap.tenants.node(2).unwrap();
        snap.tenants[third] = seen(0, leaf(3, 100, 300));
        *app(snap) = seen(0, app(snap).clone());
    });
    assert_eq!(whole, None);
    let few_come_back = with_swap(|snap| {
        (app(snap).swapped_out, app(snap).swapped_in) = (40 * MIB, 5 * MIB);
    });
    assert!(few_come_back.is_some());
}

/// Each plan would take as many of its file pages as there is slab that goes with them, and find the set smaller.
#[test]
fn a_set_that_rests_is_not_taken_piece_by_piece() {
    // Of large files, and of files of 4 KiB.
    for slab in [10, 100] {
        let mut rests = seen(300, leaf(1, 100, 300 + slab));
        (rests.growing, rests.slab) = (false, slab * MIB);
        rests.unused_for = Duration::from_secs(600);
        rests.idle_for = rests.unused_for;
        let stream = seen(0, leaf(2, 800, 300));
        for _ in 0..100 {
            let (_, intents) = plan(&snapshot(2, vec![rests.clone(), stream.clone()]));
            let taken = intents.iter().filter(|intent| intent.0 == 1);
            let taken: u64 = taken.map(|intent| intent.1).sum();
            (rests.cache, rests.own) = (rests.cache - taken, rests.own - taken);
        }
        assert_eq!(rests.own, (300 + slab) * MIB);
    }
}
