//! Tables: a situation, and what must come of it.

mod delegated;
mod minimums;
mod orphaned;
mod resources;
mod unmapped;
mod working_sets;

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use justitia_api::{DemandModel, EstimateBasis, ReclaimExemption};
use justitia_kernel::cgroup::CgroupId;
use proptest::prelude::*;

use super::reclaim::{plan_anonymous, plan_reclaim, reclaimable_above_minimums};
use super::*;
use crate::model::{Key, Memory, Snapshot, Tenant, WorkingSet};

const MIB: u64 = 1 << 20;

fn memory(free: u64) -> Memory {
    Memory {
        total: 1024 * MIB,
        cache: 1024_u64.saturating_sub(free) * MIB,
        free: free * MIB,
        reclaim_in_flight: 0,
        low_watermark: 6 * MIB,
        high_watermark: 8 * MIB,
        fall_rate: 0,
        refill_rate: 0,
        reaction: Duration::ZERO,
        refaulted: 0,
        unmapped: 0,
        free_at_sample: free * MIB,
        swappiness: 0,
    }
}

/// A busy leaf below the root that grows.
fn leaf(id: u64, weight: u64, file: u64) -> Tenant {
    Tenant {
        other: 10 * MIB,
        ..fixture::tenant(Key::Cgroup(CgroupId(id)), weight, file * MIB)
    }
}

/// An inner node below the root that holds `file`, of which `own` is charged to no child.
fn inner(id: u64, file: u64, own: u64) -> Tenant {
    Tenant {
        own: own * MIB,
        orphaned: own * MIB,
        ..leaf(id, 100, file)
    }
}

/// A tenant and the position of its parent.
#[derive(Clone, Debug)]
struct Placed {
    parent: Option<usize>,
    tenant: Tenant,
}

impl From<Tenant> for Placed {
    fn from(tenant: Tenant) -> Self {
        let parent = None;
        Self { parent, tenant }
    }
}

impl Deref for Placed {
    type Target = Tenant;

    fn deref(&self) -> &Tenant {
        &self.tenant
    }
}

impl DerefMut for Placed {
    fn deref_mut(&mut self) -> &mut Tenant {
        &mut self.tenant
    }
}

/// A tenant below the first.
fn below(tenant: Tenant) -> Placed {
    let parent = Some(0);
    Placed { parent, tenant }
}

fn snapshot<T: Into<Placed>>(free: u64, tenants: Vec<T>) -> Snapshot {
    let placed = tenants.into_iter().map(Into::into);
    let tenants = fixture::tree(placed.map(|placed: Placed| (placed.parent, placed.tenant)));
    Snapshot {
        memory: memory(free),
        tenants,
    }
}

fn plan(snapshot: &Snapshot) -> (Entitlements, Vec<(u64, u64)>) {
    plan_by(snapshot, &Policy::default())
}

fn plan_by(snapshot: &Snapshot, policy: &Policy) -> (Entitlements, Vec<(u64, u64)>) {
    let entitlements = Entitlements::of(snapshot, policy);
    let intents = plan_reclaim(snapshot, &entitlements, 0)
        .into_iter()
        .map(|i| match i.key {
            Key::Cgroup(CgroupId(id)) => (id, i.bytes),
            Key::Unmanaged => (0, i.bytes),
        })
        .collect();
    (entitlements, intents)
}

#[test]
fn nothing_is_reclaimed_while_memory_suffices() {
    let (entitlements, intents) = plan(&snapshot(500, vec![leaf(1, 100, 300), leaf(2, 800, 10)]));
    assert!(intents.is_empty(), "{entitlements:?} {intents:?}");
}

#[test]
fn tenants_above_their_entitlement_give_back_in_proportion() {
    let four = vec![
        leaf(1, 100, 200),
        leaf(2, 200, 200),
        leaf(3, 400, 200),
        leaf(4, 800, 200),
    ];
    let (entitlements, intents) = plan(&snapshot(4, four));
    // 800 MiB + 4 free - 10 of headroom = 794, by weight 1:2:4:8.
    assert_eq!(entitlements.capacity, 794 * MIB);
    assert_eq!(entitlements.entitled[0], (794 * MIB + 7) / 15);
    let ids: Vec<u64> = intents.iter().map(|i| i.0).collect();
    assert_eq!(ids, [1, 2], "the third and fourth are below theirs");
    let taken: u64 = intents.iter().map(|i| i.1).sum();
    assert_eq!(taken, 6 * MIB, "what is missing, no more");
    let over = |i: usize| (200 * MIB - entitlements.entitled[i]) as u128;
    let exact = u128::from(6 * MIB) * over(0) / (over(0) + over(1));
    assert!(u128::from(intents[0].1).abs_diff(exact) <= 1);
}

/// Of each it would be too little for a request.
#[test]
fn of_many_tenants_some_give_what_is_missing_and_the_others_the_next_time() {
    let mut tenants = vec![seen(800, leaf(1, 100, 300))];
    tenants.extend((2..102).map(|id| Tenant {
        growing: false,
        ..seen(0, leaf(id, 100, 5))
    }));
    let (_, first) = plan(&snapshot(4, tenants.clone()));
    let given = |intents: &[(u64, u64)]| intents.iter().map(|intent| intent.1).sum::<u64>();
    // 6 MiB are missing: 60 KiB of each.
    assert!((5 * MIB..=6 * MIB).contains(&given(&first)), "{first:?}");
    assert!(first.iter().all(|intent| intent.0 != 1), "{first:?}");
    // However much is missing.
    let (_, bounded) = plan(&snapshot(0, tenants.clone()));
    assert_eq!((bounded.len(), given(&bounded)), (64, 10 * MIB));
    for tenant in &mut tenants {
        let gave = first.iter().find(|one| tenant.key == leaf(one.0, 1, 0).key);
        let bytes = gave.map_or(0, |intent| intent.1);
        (tenant.cache, tenant.own) = (tenant.cache - bytes, tenant.own - bytes);
    }
    let (_, second) = plan(&snapshot(4, tenants));
    assert!(given(&second) >= 5 * MIB, "{second:?}");
    let others: Vec<u64> = second.iter().map(|intent| intent.0).take(40).collect();
    let again = first.iter().any(|intent| others.contains(&intent.0));
    assert!(!again, "{first:?} {second:?}");
}

#[test]
fn each_reason_to_reclaim_nothing() {
    type Change = fn(&mut Tenant);
    let cases: [(&str, Change); 5] = [
        ("its minimum", |t| t.minimum = t.cache),
        ("it thrashes", |t| {
            t.exempt = Some(ReclaimExemption::Thrashing { full_avg10: 80.0 })
        }),
        ("only anonymous means", |t| {
            t.exempt = Some(ReclaimExemption::Anonymous)
        }),
        ("all of it dirty", |t| t.unreclaimable = t.cache),
        ("nothing of its own", |t| t.own = 0),
    ];
    for (name, change) in cases {
        let mut tenants = vec![leaf(1, 100, 400), leaf(2, 100, 100)];
        change(&mut tenants[0]);
        let (_, intents) = plan(&snapshot(2, tenants));
        assert!(intents.iter().all(|i| i.0 != 1), "{name}: {intents:?}");
    }
}

/// A tenant of which it is known for three minutes what it uses, in MiB.
fn seen(working_set: u64, tenant: Tenant) -> Tenant {
    let working_set = WorkingSet {
        bytes: working_set * MIB,
        observed_for: Duration::from_secs(180),
        evidence: EstimateBasis::Accesses,
    };
    Tenant {
        working_set,
        ..tenant
    }
}

#[test]
fn unused_cache_is_protected_until_observed_long_enough() {
    let quiet = |watched| {
        let mut tenants = vec![seen(0, leaf(1, 800, 400)), leaf(2, 100, 400)];
        tenants[0].growing = false;
        tenants[0].working_set.observed_for = Duration::from_secs(watched);
        Entitlements::of(&snapshot(2, tenants), &Policy::default()).protected[0]
    };
    assert_eq!(quiet(30), 400 * MIB);
    assert_eq!(quiet(180), 0);
}

#[test]
fn mapped_pages_count_as_used() {
    let mut tenants = vec![seen(0, leaf(1, 800, 400)), leaf(2, 100, 400)];
    tenants[0].growing = false;
    tenants[0].mapped = 150 * MIB;
    let entitlements = Entitlements::of(&snapshot(2, tenants), &Policy::default());
    assert_eq!(entitlements.protected[0], 150 * MIB);
}

#[test]
fn an_unobserved_tenant_keeps_what_it_holds_and_an_unpopulated_one_nothing() {
    let mut tenants = vec![leaf(1, 800, 400), leaf(2, 100, 400)];
    tenants[0].growing = false;
    let held = Entitlements::of(&snapshot(2, tenants.clone()), &Policy::default());
    assert_eq!(
        held.protected[0],
        400 * MIB,
        "its weight entitles it to all that it holds"
    );
    tenants[0].populated = false;
    let dead = Entitlements::of(&snapshot(2, tenants), &Policy::default());
    assert_eq!(dead.protected[0], 0);
}

#[test]
fn unreclaimable_pages_count_as_a_minimum() {
    let mut tenants = vec![leaf(1, 100, 400), leaf(2, 100, 400)];
    tenants[0].unreclaimable = 390 * MIB;
    let entitlements = Entitlements::of(&snapshot(10, tenants), &Policy::default());
    assert_eq!(entitlements.entitled[0], 400 * MIB);
    let mut tenants = vec![leaf(1, 100, 400), leaf(2, 800, 400)];
    tenants[0].unreclaimable = 390 * MIB;
    let entitlements = Entitlements::of(&snapshot(10, tenants), &Policy::default());
    assert_eq!(entitlements.entitled, [390 * MIB, 410 * MIB]);
}

#[test]
fn a_writers_excess_is_reclaimed_down_to_the_minimums_only() {
    let tenants = |slice: u64, child: u64| {
        let mut top = inner(1, 400, 0);
        top.minimum = slice * MIB;
        let minimum = child * MIB;
        let below_it = below(Tenant {
            minimum,
            ..leaf(2, 100, 400)
        });
        snapshot(1000, vec![top.into(), below_it])
    };
    let above = |slice, child| {
        let id = leaf(2, 100, 0).key;
        reclaimable_above_minimums(&tenants(slice, child), id) / MIB
    };
    assert_eq!(above(0, 0), 400);
    assert_eq!(above(0, 300), 100);
    assert_eq!(above(350, 300), 50);
    assert_eq!(above(0, 500), 0);
    let unknown = leaf(9, 100, 0).key;
    assert_eq!(reclaimable_above_minimums(&tenants(0, 0), unknown), 0);
    let mut excluded = leaf(2, 100, 400);
    excluded.exempt = Some(ReclaimExemption::UnmanagedChild);
    let key = excluded.key;
    assert_eq!(
        reclaimable_above_minimums(&snapshot(1000, vec![excluded]), key),
        0
    );
}

#[test]
fn an_inner_node_protects_its_childrens_sum_with_a_deadband() {
    let inner = inner(1, 200, 0);
    let (child, other) = (leaf(2, 100, 150), leaf(3, 300, 50));
    let snap = snapshot(10, vec![inner.into(), below(child), below(other)]);
    let entitlements = Entitlements::of(&snap, &Policy::default());
    let ours = |now| Some(Low { now, least: 0 });
    let lows = plan_protection(&snap, &entitlements, &[ours(0); 3]);
    let of = |i: usize| lows[i].low;
    assert_eq!(lows.len(), 3);
    assert!(
        of(0).abs_diff(of(1) + of(2)) <= 4096,
        "an inner node protects its children's sum"
    );
    assert!(of(2) > 2 * of(1));
    let standing: Vec<_> = lows.iter().map(|l| ours(l.low + l.low / 64)).collect();
    assert!(
        plan_protection(&snap, &entitlements, &standing).is_empty(),
        "within the deadband"
    );
    assert!(
        plan_protection(&snap, &entitlements, &[None; 3]).is_empty(),
        "not ours to write"
    );
    // What its operator has set is raised to the sum, and never lowered.
    for (set, expected) in [(10 * MIB, Some(of(0))), (400 * MIB, None)] {
        let operators = Low {
            now: set,
            least: set,
        };
        let lows = plan_protection(&snap, &entitlements, &[Some(operators), None, None]);
        assert_eq!(lows.first().map(|intent| intent.low), expected, "{set}");
    }
}

/// Dirty pages below it make no group of it: they come and go.
#[test]
fn leaves_compete_as_leaves_also_while_pages_are_dirty() {
    let group = |dirty: u64| Tenant {
        sums_weights: true,
        unreclaimable: dirty * MIB,
        ..inner(1, 480, 0)
    };
    let writes = Tenant {
        unreclaimable: 8 * MIB,
        ..leaf(2, 100, 240)
    };
    let idle = Tenant {
        growing: false,
        ..leaf(3, 100, 240)
    };
    let parts = |dirty| {
        let tenants = vec![
            Placed::from(group(dirty)),
            below(writes.clone()),
            below(idle.clone()),
            Placed::from(leaf(4, 100, 240)),
        ];
        let entitlements = Entitlements::of(&snapshot(2, tenants), &Policy::default());
        entitlements.entitled
    };
    let (clean, dirty) = (parts(0), parts(9));
    assert_eq!(clean, dirty);
    let apart = dirty[1].abs_diff(dirty[3]);
    assert!(
        apart <= 1,
        "what the idle one leaves is everybody's: {dirty:?}"
    );
}

#[test]
fn the_free_headroom_looks_ahead_and_is_bounded() {
    let policy = Policy::default();
    let calm = policy.free_headroom(&memory(100));
    assert_eq!(calm, 6 * MIB + 4 * MIB);
    let with_rate = |rate| {
        policy.free_headroom(&Memory {
            fall_rate: rate,
            ..memory(100)
        })
    };
    assert_eq!(with_rate(50 * MIB), 16 * MIB);
    assert_eq!(with_rate(u64::MAX), 6 * MIB + 64 * MIB);
    // What kswapd, which frees up to the high watermark, keeps free on the mean.
    let wide = Memory {
        high_watermark: 30 * MIB,
        refill_rate: 60 * MIB,
        ..memory(100)
    };
    assert_eq!(policy.free_headroom(&wide), 18 * MIB);
    // Of what is divided: huge pages and anonymous memory are not.
    let small = Memory {
        cache: 60 * MIB,
        fall_rate: u64::MAX,
        ..memory(20)
    };
    assert_eq!(policy.free_headroom(&small), 6 * MIB + 5 * MIB);
    // A busy machine answers later.
    for (millis, expected) in [(0, 6), (500, 30), (60_000, 60)] {
        let busy = Memory {
            refill_rate: 60 * MIB,
            reaction: Duration::from_millis(millis),
            ..memory(100)
        };
        assert_eq!(
            policy.free_headroom(&busy),
            (6 + expected) * MIB,
            "{millis}"
        );
    }
}

fn any_tenant() -> impl Strategy<Value = Tenant> {
    (
        1..100u64,
        1..=10_000u64,
        0..500u64,
        0..100u64,
        any::<[bool; 3]>(),
        0..600u64,
        0..50u64,
    )
        .prop_map(
            |(id, weight, file, minimum, [populated, growing, exempt], idle, unreclaimable)| {
                Tenant {
                    minimum: minimum * MIB,
                    requested_protection: idle * MIB,
                    populated,
                    growing,
                    idle_for: Duration::from_secs(idle),
                    unused_for: Duration::from_secs(idle),
                    unreclaimable: unreclaimable.min(file) * MIB,
                    exempt: exempt.then_some(ReclaimExemption::NoProgress),
                    ..leaf(id, weight, file)
                }
            },
        )
}

proptest! {
    /// Never below the minimum, never below the entitlement, never more than is missing.
    #[test]
    fn never_below_minimum_or_entitlement(tenants in proptest::collection::vec(any_tenant(), 1..12), free in 0..200u64) {
        let snap = snapshot(free, tenants);
        let entitlements = Entitlements::of(&snap, &Policy::default());
        let intents = plan_reclaim(&snap, &entitlements, 0);
        let total: u64 = intents.iter().map(|i| i.bytes).sum();
        prop_assert!(total <= entitlements.free_headroom.saturating_sub(snap.memory.free));
        for (id, tenant) in snap.tenants.iter() {
            let taken: u64 = intents.iter().filter(|i| i.key == tenant.key).map(|i| i.bytes).sum();
            if snap.tenants.values().filter(|t| t.key == tenant.key).count() == 1 {
                let i = id.index();
                prop_assert!(taken == 0 || tenant.cache - taken >= entitlements.entitled[i].max(tenant.minimum));
                prop_assert!(taken == 0 || tenant.exempt.is_none());
            }
        }
    }
}
