//! A cap of unmapped page cache.

use super::*;

/// A cap of 5 % of the machine's 1,024 MiB.
fn capped() -> Policy {
    Policy {
        unmapped_max: Some(5.0),
        ..Policy::default()
    }
}

const CAP: u64 = 1024 * MIB / 20;

/// `free` and `unmapped` in MiB.
fn at(free: u64, unmapped: u64, tenants: Vec<Tenant>) -> Snapshot {
    let mut snapshot = snapshot(free, tenants);
    snapshot.memory.unmapped = unmapped * MIB;
    snapshot
}

fn mapping(mapped: u64, tenant: Tenant) -> Tenant {
    Tenant {
        mapped: mapped * MIB,
        ..tenant
    }
}

/// In whole MiB, which hides the rounding.
fn mib(bytes: &[u64]) -> Vec<u64> {
    bytes.iter().map(|bytes| bytes / MIB).collect()
}

#[test]
fn what_is_above_the_cap_is_reclaimed_though_memory_is_free() {
    for (unmapped, expected) in [(40, 0), (51, 0), (61, 10 * MIB), (200, 32 * MIB)] {
        let snapshot = at(600, unmapped, vec![leaf(1, 100, unmapped)]);
        let (entitlements, intents) = plan_by(&snapshot, &capped());
        let asked: u64 = intents.iter().map(|(_, bytes)| bytes).sum();
        // 5 % of 1,024 MiB are no whole number of MiB.
        assert!(asked.abs_diff(expected) < MIB, "{unmapped} MiB: {asked}");
        assert_eq!(entitlements.capacity, CAP);
        assert!(plan(&snapshot).1.is_empty(), "without a cap");
    }
}

#[test]
fn what_is_mapped_and_slab_is_spared_and_the_cap_is_divided_by_weight() {
    let mut tenants = vec![
        mapping(150, leaf(1, 100, 160)),
        mapping(20, leaf(2, 300, 220)),
        leaf(3, 100, 60),
    ];
    tenants[2].slab = 55 * MIB;
    let snapshot = at(400, 215, tenants);
    let (entitlements, intents) = plan_by(&snapshot, &capped());
    // By 100, 300 and 100 of the cap.
    assert_eq!(mib(&entitlements.entitled), [160, 50, 65]);
    let from: Vec<u64> = intents.iter().map(|(id, _)| *id).collect();
    assert_eq!(from, [2]);
}

#[test]
fn a_working_set_below_the_cap_is_served_before_what_is_read_once() {
    let hot = seen(30, leaf(1, 100, 30));
    let stream = seen(0, leaf(2, 800, 100));
    let (entitlements, _) = plan_by(&at(600, 130, vec![hot, stream]), &capped());
    assert_eq!(mib(&entitlements.entitled), [30, 21]);
}

/// The pages that were there when the agent came count as used for two minutes; not against an operator's word.
#[test]
fn the_cap_holds_from_the_start() {
    let mut tenants = vec![leaf(1, 100, 300)];
    tenants[0].unseen = 300 * MIB;
    let snapshot = at(600, 300, tenants);
    assert!(!plan_by(&snapshot, &capped()).1.is_empty());
}

#[test]
fn minimums_come_before_the_cap() {
    let mut tenants = vec![leaf(1, 100, 200)];
    tenants[0].minimum = 200 * MIB;
    assert!(plan_by(&at(600, 200, tenants), &capped()).1.is_empty());
}

#[test]
fn nothing_is_swapped_out_for_the_cap() {
    let mut tenants = vec![leaf(1, 100, 200)];
    tenants[0].anon = 300 * MIB;
    let mut snapshot = at(600, 200, tenants);
    (snapshot.memory.swappiness, snapshot.memory.refaulted) = (60, 500 * MIB);
    let entitlements = Entitlements::of(&snapshot, &capped());
    assert_eq!(plan_anonymous(&snapshot, &entitlements), None);
}

/// Where memory allows less than the cap, it is divided as without one: a tenant that maps files gets no more of it.
#[test]
fn a_cap_that_does_not_bind_changes_nothing() {
    let tenants = || {
        vec![
            mapping(500, leaf(1, 100, 500)),
            leaf(2, 100, 440),
            leaf(3, 100, 30),
        ]
    };
    let snapshot = at(2, 470, tenants());
    let policy = Policy {
        unmapped_max: Some(60.0),
        ..Policy::default()
    };
    let found = Entitlements::of(&snapshot, &policy);
    assert_eq!(found, Entitlements::of(&snapshot, &Policy::default()));
}

/// What it maps is free memory that the cap gives to nobody; it takes nothing of the cap from the others.
#[test]
fn who_maps_files_takes_nothing_from_the_others() {
    let others_get = |mapped: u64| {
        let tenants = vec![mapping(mapped, leaf(1, 100, 25 + mapped)), leaf(2, 100, 25)];
        let found = Entitlements::of(&at(600 - mapped, 50, tenants), &capped());
        found.entitled[1]
    };
    assert_eq!(others_get(0), others_get(400));
}

#[test]
fn what_the_unmanaged_tenant_has_mapped_is_spared() {
    let unmanaged = fixture::tenant(Key::Unmanaged, 100, 100 * MIB);
    let mut unmanaged = seen(0, unmanaged);
    (unmanaged.growing, unmanaged.idle_for) = (false, Duration::from_secs(300));
    // 80 MiB of file pages are mapped, 30 of them by tenant 1.
    let snapshot = at(600, 170, vec![mapping(30, leaf(1, 100, 150)), unmanaged]);
    let (entitlements, _) = plan_by(&snapshot, &capped());
    assert_eq!(mib(&entitlements.entitled)[1], 50);
}

#[test]
fn a_fast_reader_is_met_below_the_cap() {
    let policy = capped();
    let mut memory = memory(600);
    memory.unmapped = 30 * MIB;
    let room = |memory: &Memory| policy.unmapped_room(memory).unwrap() / MIB;
    assert_eq!(room(&memory), 21);
    // What has been read since the last count.
    memory.free -= 10 * MIB;
    assert_eq!(room(&memory), 11);
    // 100 MiB a second, of which a tenth of a second is met.
    memory.refill_rate = 100 * MIB;
    assert_eq!(room(&memory), 1);
    memory.free -= 10 * MIB;
    assert_eq!(room(&memory), 0);
    assert_eq!(Policy::default().unmapped_room(&memory), None);
}

proptest! {
    /// No request asks for what is mapped.
    #[test]
    fn requests_never_exceed_what_is_unmapped(
        tenants in proptest::collection::vec((0..200_u64, 0..200_u64, 1..1000_u64), 1..8),
    ) {
        let all = tenants.iter().enumerate().map(|(id, (mapped, unmapped, weight))| {
            mapping(*mapped, leaf(id as u64 + 1, *weight, mapped + unmapped))
        });
        let all: Vec<Tenant> = all.collect();
        let unmapped = tenants.iter().map(|(_, unmapped, _)| unmapped).sum();
        let (_, intents) = plan_by(&at(2000, unmapped, all), &capped());
        for (id, bytes) in intents {
            let (_, unmapped, _) = tenants[usize::try_from(id).unwrap() - 1];
            prop_assert!(bytes <= unmapped * MIB);
        }
    }
}
