use super::*;
use proptest::prelude::*;

fn busy(bytes: u64) -> Activity {
    Activity {
        bytes,
        active: Fraction::clamped(1.0),
        io_stalled: Some(Fraction::clamped(0.5)),
        wrote_or_missed: true,
    }
}

/// The same, but for what is changed.
fn but(change: fn(&mut Activity)) -> Activity {
    let mut activity = busy(1);
    change(&mut activity);
    activity
}

#[test]
fn which_tenants_are_backlogged() {
    let part = Fraction::clamped;
    let starved = Activity {
        bytes: 0,
        active: part(0.0),
        io_stalled: Some(part(0.95)),
        wrote_or_missed: false,
    };
    let cached = |a: &mut Activity| (a.io_stalled, a.wrote_or_missed) = (None, false);
    for (name, activity, expected) in [
        ("busy and stalled", busy(1), true),
        ("idle", Activity::default(), false),
        (
            "now and then",
            but(|a| a.active = Fraction::clamped(0.7)),
            false,
        ),
        (
            "nine seconds of ten",
            but(|a| a.active = Fraction::clamped(0.9)),
            true,
        ),
        (
            "satisfied",
            but(|a| a.io_stalled = Some(Fraction::clamped(0.05))),
            false,
        ),
        ("starved: waits, and gets nothing", starved, true),
        // PSI tells more: a wait for a page that another tenant reads is a wait.
        (
            "stalled without own misses",
            but(|a| a.wrote_or_missed = false),
            true,
        ),
        (
            "no PSI, uses the device",
            but(|a| a.io_stalled = None),
            true,
        ),
        ("no PSI, all from the cache", but(cached), false),
    ] {
        assert_eq!(is_backlogged(&activity), expected, "{name}");
    }
}

fn tree(nodes: &[(Option<usize>, u64)]) -> Tree<Weight> {
    let weight = |weight: u64| Weight::try_from(weight).unwrap();
    let nodes = nodes.iter().map(|(parent, w)| (*parent, weight(*w)));
    Tree::from_parents(nodes)
}

#[test]
fn an_idle_or_satisfied_tenant_is_left_out() {
    let three = tree(&[(None, 100), (None, 200), (None, 800)]);
    let satisfied = Activity {
        io_stalled: Some(Fraction::clamped(0.0)),
        ..busy(3)
    };
    for third in [Activity::default(), satisfied] {
        let pv = FairnessWindow::of(&three, &[busy(10), busy(20), third]);
        assert_eq!(pv.top, Some(0.0), "{third:?}");
        assert_eq!(pv.whole, Some(0.0));
        assert_eq!(pv.backlogged, [true, true, false]);
    }
    let pv = FairnessWindow::of(&three, &[busy(10), busy(20), busy(3)]);
    assert!(
        (pv.top.unwrap() - 7.7 / 3.0).abs() < 1e-9,
        "ideal 8, got 0.3"
    );
}

#[test]
fn one_backlogged_tenant_alone_has_no_pv() {
    let two = tree(&[(None, 100), (None, 800)]);
    let pv = FairnessWindow::of(&two, &[busy(10), Activity::default()]);
    assert_eq!((pv.top, pv.whole), (None, None));
}

#[test]
fn every_level_and_the_whole() {
    // Two slices 100:300, in the second two containers 100:100, one of them idle.
    let nodes = tree(&[
        (None, 100),
        (None, 300),
        (Some(0), 100),
        (Some(1), 100),
        (Some(1), 100),
    ]);
    let none = Activity::default();
    let even = FairnessWindow::of(&nodes, &[none, none, busy(10), busy(15), busy(15)]);
    assert_eq!(even.top, Some(0.0));
    assert_eq!(even.groups, [None, Some(0.0), None, None, None]);
    assert!(even.whole.unwrap() < 1e-9);
    let one_idle = FairnessWindow::of(&nodes, &[none, none, busy(10), busy(30), none]);
    assert_eq!(one_idle.top, Some(0.0));
    assert_eq!(one_idle.groups[1], None);
    assert!(
        one_idle.whole.unwrap() < 1e-9,
        "the sibling inherits what the idle one leaves"
    );
    // Fair between the slices, unfair inside one.
    let inside = FairnessWindow::of(&nodes, &[none, none, busy(10), busy(5), busy(25)]);
    assert_eq!(inside.top, Some(0.0));
    assert!(inside.groups[1].unwrap() > 0.6);
    assert!(inside.whole.unwrap() > 0.3);
}

proptest! {
    #[test]
    fn in_proportion_is_zero(weights in proptest::collection::vec(1..=10_000u64, 2..20), unit in 1..1_000_000u64) {
        let nodes = tree(&weights.iter().map(|w| (None, *w)).collect::<Vec<_>>());
        let activities: Vec<Activity> = weights.iter().map(|w| busy(w * unit)).collect();
        let pv = FairnessWindow::of(&nodes, &activities);
        prop_assert!(pv.whole.unwrap() < 1e-6);
        prop_assert!(pv.top.unwrap() < 1e-6);
    }
}
