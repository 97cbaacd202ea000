//! Minimums of tenants and of their ancestors.

use super::*;

#[test]
fn a_groups_minimum_holds_for_what_is_below_it() {
    let with = |minimum: u64| {
        let mut slice = inner(1, 500, 0);
        slice.minimum = minimum * MIB;
        let mut idle = seen(0, leaf(2, 100, 250));
        idle.growing = false;
        let twin = Tenant {
            key: leaf(3, 100, 0).key,
            ..idle.clone()
        };
        let hot = seen(600, leaf(4, 900, 250));
        let placed = vec![slice.into(), below(idle), below(twin), hot.into()];
        let (_, intents) = plan(&snapshot(2, placed));
        let below = intents.iter().filter(|intent| [2, 3].contains(&intent.0));
        below.map(|intent| intent.1).sum::<u64>()
    };
    assert!(with(0) > 7 * MIB);
    assert_eq!(with(500), 0);
    assert_eq!(with(498), 2 * MIB, "of both children together");
}

proptest! {
    /// In any tree no request brings a tenant or an ancestor below its minimum, nor do all requests together.
    #[test]
    fn never_below_a_minimum_in_any_tree(
        tenants in proptest::collection::vec((any_tenant(), any::<proptest::sample::Index>()), 1..16),
        free in 0..100_u64,
    ) {
        let mut placed: Vec<Placed> = Vec::new();
        for (number, (tenant, parent)) in tenants.into_iter().enumerate() {
            let parent = (number > 0).then(|| parent.index(number + 1)).filter(|p| *p < number);
            let key = Key::Cgroup(CgroupId(number as u64));
            placed.push(Placed { parent, tenant: Tenant { key, ..tenant } });
        }
        // An inner node has what is below it.
        for number in (0..placed.len()).rev() {
            if let Some(parent) = placed[number].parent {
                let cache = placed[number].tenant.cache;
                placed[parent].tenant.cache += cache;
                placed[parent].tenant.orphaned = placed[parent].tenant.own;
            }
        }
        let snap = snapshot(free, placed);
        let entitlements = Entitlements::of(&snap, &Policy::default());
        let mut left: Vec<u64> = snap.tenants.values().map(|t| t.cache).collect();
        for intent in plan_reclaim(&snap, &entitlements, 0) {
            let (id, _) = snap.tenants.iter().find(|(_, t)| t.key == intent.key).unwrap();
            for node in snap.tenants.ancestors(id).chain([id]) {
                left[node.index()] -= intent.bytes;
            }
        }
        for (id, tenant) in snap.tenants.iter() {
            let kept = left[id.index()] >= tenant.minimum.min(tenant.cache);
            prop_assert!(kept, "{} of {:?}", left[id.index()], tenant);
        }
    }
}
