//! What the owner of a delegated subtree asks for.

use super::*;

/// A slice with two children, delegated to their owner, beside a sibling; all want all they can get.
fn delegated(low: u64, requests: [u64; 2]) -> Snapshot {
    let mut slice = inner(1, 400, 0);
    slice.minimum = low * MIB;
    let child = |id: u64, requested_protection: u64| {
        below(Tenant {
            requested_protection,
            ..leaf(id, 100, 200)
        })
    };
    let tenants = vec![
        slice.into(),
        child(2, requests[0]),
        child(3, requests[1]),
        leaf(4, 100, 400).into(),
    ];
    snapshot(10, tenants)
}

/// One of the tenants, to be changed.
fn at(snapshot: &mut Snapshot, index: usize) -> &mut Tenant {
    let id = snapshot.tenants.node(index).unwrap();
    &mut snapshot.tenants[id]
}

#[test]
fn requested_protection_counts_inside_the_delegated_subtree() {
    // 800 MiB to divide by two weights: 400 for the slice, unless the administrator has set a minimum for it.
    let cases = [
        ("no request and no minimum", 0, [0, 0], [400, 200, 200, 400]),
        ("one requests", 0, [150 * MIB, 0], [400, 200, 200, 400]),
        ("one hoards", 0, [u64::MAX, 0], [400, 200, 200, 400]),
        ("both hoard", 0, [u64::MAX; 2], [400, 200, 200, 400]),
        ("the administrator", 500, [0, 0], [500, 250, 250, 300]),
    ];
    for (name, low, requests, expected) in cases {
        let mut snap = delegated(low, requests);
        if low > 0 {
            at(&mut snap, 0).cache = 500 * MIB;
        }
        let entitlements = Entitlements::of(&snap, &Policy::default());
        assert_eq!(
            entitlements.entitled,
            expected.map(|part| part * MIB),
            "{name}"
        );
    }
    // Inside, it does count.
    let mut snap = delegated(0, [u64::MAX, 0]);
    at(&mut snap, 1).cache = 300 * MIB;
    at(&mut snap, 2).cache = 100 * MIB;
    let entitlements = Entitlements::of(&snap, &Policy::default());
    assert_eq!(
        entitlements.entitled,
        [400, 300, 100, 400].map(|part| part * MIB)
    );
}
