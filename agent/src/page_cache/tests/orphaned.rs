//! What cgroups have beside their children.

use std::collections::HashSet;

use super::*;

/// A slice that holds 250 MiB of its own, with a child that holds 50, beside a sibling of 400.
fn beside() -> Vec<Placed> {
    vec![
        inner(1, 300, 250).into(),
        below(leaf(2, 100, 50)),
        leaf(3, 100, 400).into(),
    ]
}

#[test]
fn orphaned_pages_demand_nothing_and_go_first() {
    // The child grows: its slice is entitled to half.
    let (entitlements, intents) = plan(&snapshot(4, beside()));
    assert_eq!(entitlements.capacity, 694 * MIB);
    assert_eq!(entitlements.entitled, [347 * MIB; 3]);
    let ids: Vec<u64> = intents.iter().map(|i| i.0).collect();
    assert_eq!(
        ids,
        [1, 3],
        "the orphaned pages, and the tenant that holds more than half"
    );
    assert!(intents[0].1 > 4 * intents[1].1, "{intents:?}");
    // Nobody lives in the slice: all of it is its sibling's.
    let mut dead = beside();
    dead[1].populated = false;
    let (entitlements, intents) = plan(&snapshot(4, dead));
    assert_eq!(entitlements.protected, [0, 0, 694 * MIB]);
    assert!(intents.iter().all(|i| i.0 != 3), "{intents:?}");
}

#[test]
fn orphaned_pages_are_left_below_minimums_and_exemptions() {
    type Change = fn(&mut [Placed]);
    let cases: [(&str, Change); 4] = [
        ("the slice's minimum", |t| t[0].minimum = 300 * MIB),
        ("all of it dirty", |t| t[0].unreclaimable = 250 * MIB),
        ("an excluded cgroup below", |t| {
            t[0].exempt = Some(ReclaimExemption::UnmanagedChild)
        }),
        ("none", |t| t[0].own = 0),
    ];
    for (name, change) in cases {
        let mut tenants = beside();
        change(&mut tenants);
        let (_, intents) = plan(&snapshot(4, tenants));
        assert!(intents.iter().all(|i| i.0 != 1), "{name}: {intents:?}");
    }
    let mut tenants = beside();
    tenants[0].minimum = 299 * MIB;
    let (_, intents) = plan(&snapshot(2, tenants));
    let taken = intents.iter().find(|i| i.0 == 1).map(|i| i.1);
    assert!(taken.is_some_and(|bytes| bytes <= MIB), "{intents:?}");
}

fn unmanaged(file: u64, orphaned: u64) -> Tenant {
    Tenant {
        key: Key::Unmanaged,
        orphaned: orphaned * MIB,
        ..leaf(0, 100, file)
    }
}

#[test]
fn unmanaged_is_entitled_to_its_share_at_most() {
    // It cannot be reclaimed from: the tenants are entitled to their parts all the same.
    let mut unreachable = unmanaged(500, 0);
    unreachable.exempt = Some(ReclaimExemption::Unsupported);
    let (entitlements, intents) = plan(&snapshot(
        4,
        vec![leaf(1, 100, 100), leaf(2, 100, 100), unreachable],
    ));
    assert_eq!(entitlements.capacity, 694 * MIB);
    assert!(
        entitlements
            .entitled
            .iter()
            .all(|e| e.abs_diff(694 * MIB / 3) < 2)
    );
    assert_eq!(intents, []);
    // Nobody living has read it, and nothing reaches it.
    let mut left_behind = unmanaged(300, 280);
    left_behind.growing = false;
    left_behind.untargetable = left_behind.orphaned;
    let (entitlements, intents) = plan(&snapshot(4, vec![leaf(1, 100, 400), left_behind]));
    assert_eq!(entitlements.protected, [674 * MIB, 20 * MIB]);
    assert_eq!(intents, []);
    // What can be reached of it goes.
    let mut left_behind = unmanaged(300, 280);
    left_behind.growing = false;
    let (_, intents) = plan(&snapshot(4, vec![leaf(1, 100, 400), left_behind]));
    assert_eq!(intents, [(0, 6 * MIB)]);
}

/// One cgroup of an arrangement: below which of those before it, and what it has.
type Made = (prop::sample::Index, Tenant);

/// Below the tenant at `top`, the cgroups that its owner has made there.
fn arrange(top: &Tenant, made: &[Made]) -> Vec<Placed> {
    let mut tenants = vec![Placed::from(Tenant {
        own: 0,
        ..top.clone()
    })];
    for (n, (parent, tenant)) in (1..).zip(made) {
        tenants.push(Placed {
            parent: Some(parent.index(tenants.len())),
            tenant: Tenant {
                key: Key::Cgroup(CgroupId(1000 + n)),
                minimum: 0,
                ..tenant.clone()
            },
        });
    }
    let parents: HashSet<usize> = tenants.iter().filter_map(|t| t.parent).collect();
    for i in (1..tenants.len()).rev() {
        if parents.contains(&i) {
            tenants[i].orphaned = tenants[i].own;
        }
        let (file, unreclaimable) = (tenants[i].cache, tenants[i].unreclaimable);
        let parent = tenants[i].parent.unwrap();
        tenants[parent].cache += file;
        tenants[parent].unreclaimable += unreclaimable;
    }
    tenants
}

proptest! {
    /// A delegate may spread its cache over as many cgroups as it likes, empty them and remove them: its subtree is
    /// entitled to no more than if it had read all of it in one, and no other tenant to less.
    #[test]
    fn no_arrangement_of_cgroups_gains(
        siblings in proptest::collection::vec(any_tenant(), 1..6),
        top in any_tenant(),
        own in 0..500u64,
        made in proptest::collection::vec((any::<prop::sample::Index>(), any_tenant()), 1..12),
        free in 0..200u64,
    ) {
        let mut top = Tenant { minimum: 0, cache: 0, own: 0, unreclaimable: 0, ..top };
        let mut arranged = arrange(&top, &made);
        arranged[0].cache += own * MIB;
        (arranged[0].own, arranged[0].orphaned) = (own * MIB, own * MIB);
        // The same pages in one cgroup, which wants all that it can get.
        (top.cache, top.own, top.unreclaimable) = (arranged[0].cache, arranged[0].cache, arranged[0].unreclaimable);
        (top.populated, top.growing) = (true, true);
        let count = siblings.len();
        let entitled = |below: Vec<Placed>| {
            let below = below.into_iter().map(|placed| Placed {
                parent: placed.parent.map(|parent| parent + count),
                ..placed
            });
            let siblings = siblings.iter().cloned().map(Placed::from);
            let tenants: Vec<Placed> = siblings.chain(below).collect();
            Entitlements::of(&snapshot(free, tenants), &Policy::default()).entitled
        };
        let (one, many) = (entitled(vec![top.into()]), entitled(arranged));
        prop_assert!(many[count] <= one[count]);
        for i in 0..count {
            prop_assert!(many[i] >= one[i]);
        }
    }
}

#[test]
fn orphaned_pages_in_use_stay_within_what_their_subtree_is_entitled_to() {
    let from_slice = |in_use: u64, own: u64| {
        let mut service = seen(own, leaf(2, 100, 0));
        (service.growing, service.uses_orphaned) = (false, in_use * MIB);
        let mut slice = inner(1, own, own);
        slice.orphaned_in_use = in_use * MIB;
        slice.orphaned_lately = in_use * MIB;
        let other = seen(450, leaf(3, 100, 450));
        let (entitlements, intents) = plan(&snapshot(
            4,
            vec![slice.into(), below(service), other.into()],
        ));
        let taken: u64 = intents.iter().filter(|i| i.0 == 1).map(|i| i.1).sum();
        (entitlements.orphaned[0] / MIB, taken)
    };
    // A service that was restarted uses what its former cgroup had cached.
    assert_eq!(from_slice(250, 250), (250, 0));
    // Nothing tells that it is used.
    assert_ne!(from_slice(0, 250).1, 0);
    // No subtree gets more than its share by leaving pages to an inner cgroup.
    let (kept, taken) = from_slice(600, 600);
    assert!(kept < 600 && taken > 0, "{kept}");
}

/// A service of a slice is restarted beside a stream in the same slice, which could use all that there is.
#[test]
fn what_a_restarted_service_left_is_not_taken_for_a_stream() {
    let left_with = |in_use: u64, lately: u64| {
        let mut slice = inner(1, 700, 300);
        (slice.orphaned_in_use, slice.orphaned_lately) = (in_use * MIB, lately * MIB);
        let mut service = leaf(2, 100, 0);
        (service.growing, service.uses_orphaned) = (false, in_use * MIB);
        let stream = leaf(3, 100, 400);
        let snapshot = snapshot(4, vec![slice.into(), below(service), below(stream)]);
        let (entitlements, intents) = plan(&snapshot);
        let low = plan_protection(&snapshot, &entitlements, &[Some(Low::default()); 3]);
        let of = |id| intents.iter().find(|i| i.0 == id).map_or(0, |i| i.1);
        (of(1), of(3), low[0].low >= 300 * MIB + low[1].low)
    };
    let (service, stream, protected) = left_with(300, 300);
    assert_eq!(service, 0);
    assert!(stream > 0 && protected);
    // It was removed lately, and whether it was used is not known: shares decide.
    let (service, stream, _) = left_with(0, 300);
    assert!(service == 0 && stream > 0);
    let (service, _, _) = left_with(0, 0);
    assert!(service > 0);
}

/// As the one above, but right below the root: what it left is the unmanaged tenant's.
#[test]
fn what_a_restarted_top_level_service_left_is_not_taken_for_a_stream() {
    let left_with = |in_use: u64| {
        let mut left = unmanaged(300, 300);
        left.growing = false;
        (left.orphaned_in_use, left.orphaned_lately) = (in_use * MIB, in_use * MIB);
        let mut service = leaf(2, 100, 0);
        (service.growing, service.uses_orphaned) = (false, in_use * MIB);
        let stream = leaf(3, 100, 400);
        let (entitlements, intents) = plan(&snapshot(4, vec![service, stream, left]));
        let of = |id| intents.iter().find(|i| i.0 == id).map_or(0, |i| i.1);
        (of(0), of(3), entitlements.entitled[2] / MIB)
    };
    let (left, stream, entitled) = left_with(300);
    assert_eq!((left, entitled), (0, 300));
    assert!(stream > 0);
    assert!(left_with(0).0 > 0);
}
