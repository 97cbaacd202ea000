//! Which working sets come first.

use super::*;

#[test]
fn working_sets_come_before_data_read_once() {
    let tenants = vec![seen(400, leaf(1, 100, 400)), seen(0, leaf(2, 800, 400))];
    let entitlements = Entitlements::of(&snapshot(2, tenants.clone()), &Policy::default());
    assert!(entitlements.entitled[0] >= 400 * MIB);
    assert_eq!(entitlements.protected[0], 400 * MIB);
    // The rest is for those that take in more.
    assert!(entitlements.entitled[1] > 300 * MIB);
    let usage = Policy {
        demand: DemandModel::Usage,
        ..Policy::default()
    };
    let entitlements = Entitlements::of(&snapshot(2, tenants), &usage);
    assert!(entitlements.entitled[0] < 100 * MIB, "by weight alone");
}

#[test]
fn sets_in_use_come_before_those_of_resting_tenants_and_these_before_data_read_once() {
    let entitled = |idle, growing_weight| {
        let mut tenants = vec![
            seen(450, leaf(1, 100, 350)),
            seen(450, leaf(2, 100, 450)),
            seen(0, leaf(3, growing_weight, 10)),
        ];
        tenants[1].growing = false;
        tenants[1].unused_for = Duration::from_secs(idle);
        tenants[1].idle_for = tenants[1].unused_for;
        let entitlements = Entitlements::of(&snapshot(2, tenants), &Policy::default());
        (entitlements.capacity, entitlements.entitled)
    };
    let (all, busy) = entitled(9, 800);
    assert_eq!(busy[0], busy[1], "by weight");
    let (_, rested) = entitled(10, 800);
    assert_eq!(rested[..2], [450 * MIB, all - 450 * MIB]);
    assert_eq!(rested[2], 0, "whatever its weight");
}
