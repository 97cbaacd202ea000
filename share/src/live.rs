//! Proportionality while it happens: PV over a window of time, over the tenants that contend in it.
//!
//! The papers compute PV over runs in which every tenant wants all it can get (Justitia, equation 2). On a
//! real machine some are idle and some are satisfied: they take less than their weight would give them,
//! which is not unfair to them and makes nobody else's part too large. So they are left out.

use crate::num::to_f64;
use crate::pv::of_proportions;
use crate::{Demand, NodeId, Tree};

/// What a tenant did in a window of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Activity {
    /// Bytes that its applications read and wrote.
    pub bytes: u64,
    /// The part of the window's seconds in which they moved any, 0 to 1.
    pub active: f64,
    /// The part of the window's time in which some of its tasks were held up by I/O (PSI `io some`), 0 to
    /// 1; `None` where the kernel does not measure that.
    pub held_up: Option<f64>,
    /// Whether it used the device at all: wrote, or read what was not cached.
    pub beyond_cache: bool,
}

/// A contender moves bytes in this part of the window's seconds, or waits for them for this part of its time.
pub const ACTIVE: f64 = 0.8;
/// It is held up by I/O for this part of the time, at least.
pub const HELD_UP: f64 = 0.1;

/// Whether a tenant contended: it moved bytes nearly all the time or waited for them nearly all the time
/// ([`ACTIVE`]), and wanted more than it got, which shows in its tasks being held up by I/O ([`HELD_UP`]).
/// Without PSI, having used the device stands in for that: who finds everything in the cache waits for
/// nobody.
#[must_use]
pub fn contends(activity: &Activity) -> bool {
    let held_up = activity.held_up.unwrap_or(0.0);
    let wants_more = activity
        .held_up
        .map_or(activity.beyond_cache, |part| part >= HELD_UP);
    wants_more && (activity.active >= ACTIVE || held_up >= ACTIVE)
}

/// PV of a tree in a window.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LivePv {
    /// Of the group right below the root; `None` where fewer than two of it contend.
    pub top: Option<f64>,
    /// Of every node's children, indexed by [`NodeId::index`]; `None` where fewer than two of them contend.
    pub groups: Vec<Option<f64>>,
    /// Of all contending leaves together, against the products of their shares down the tree.
    pub whole: Option<f64>,
    /// Whether a node contends: a leaf by itself, an inner node if a leaf below it does.
    pub contends: Vec<bool>,
}

/// What a leaf has got, or the contending leaves below an inner node have got together.
#[derive(Clone, Copy, Debug, Default)]
struct Got {
    bytes: u64,
    contends: bool,
}

/// PV of every sibling group and of the whole tree. `activities` is indexed like the tree; only leaves'
/// count. What an inner node got is what the contending leaves below it got: a neighbour that reads from
/// the cache at memory speed does not count for its parent.
///
/// Linear in the nodes.
///
/// # Panics
/// If `activities` is shorter than the tree.
#[must_use]
pub fn live_pv(tree: &Tree<Demand>, activities: &[Activity]) -> LivePv {
    assert!(
        activities.len() >= tree.len(),
        "an activity for every node of the tree"
    );
    let got = tree.fold_up(
        |sum: &mut Got, child| {
            sum.bytes += if child.contends { child.bytes } else { 0 };
            sum.contends |= child.contends;
        },
        |node, _, below| {
            let activity = &activities[node.index()];
            if tree.is_leaf(node) {
                Got {
                    bytes: activity.bytes,
                    contends: contends(activity),
                }
            } else {
                below
            }
        },
    );
    let mut pv = LivePv {
        groups: vec![None; tree.len()],
        contends: got.iter().map(|got| got.contends).collect(),
        ..LivePv::default()
    };
    let mut ideal = vec![1.0; tree.len()];
    let mut leaves = (Vec::new(), Vec::new());
    for parent in tree.parents() {
        let group: Vec<NodeId> = tree
            .children(parent)
            .filter(|child| got[child.index()].contends)
            .collect();
        let weights: Vec<f64> = group
            .iter()
            .map(|child| to_f64(tree[*child].weight.get()))
            .collect();
        let actual: Vec<f64> = group
            .iter()
            .map(|child| to_f64(got[child.index()].bytes))
            .collect();
        let sum: f64 = weights.iter().sum();
        let above = parent.map_or(1.0, |parent| ideal[parent.index()]);
        for ((child, weight), actual) in group.iter().zip(&weights).zip(&actual) {
            ideal[child.index()] = above * weight / sum;
            if tree.is_leaf(*child) {
                leaves.0.push(ideal[child.index()]);
                leaves.1.push(*actual);
            }
        }
        let of_group = match parent {
            Some(parent) => &mut pv.groups[parent.index()],
            None => &mut pv.top,
        };
        *of_group = compared(&weights, &actual);
    }
    pv.whole = compared(&leaves.0, &leaves.1);
    pv
}

/// PV of two or more.
fn compared(ideal: &[f64], actual: &[f64]) -> Option<f64> {
    (ideal.len() > 1)
        .then(|| of_proportions(ideal, actual))
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Weight;
    use proptest::prelude::*;

    fn busy(bytes: u64) -> Activity {
        Activity {
            bytes,
            active: 1.0,
            held_up: Some(0.5),
            beyond_cache: true,
        }
    }

    #[test]
    fn who_contends() {
        let cases = [
            ("busy and held up", busy(1), true),
            ("idle", Activity::default(), false),
            (
                "now and then",
                Activity {
                    active: 0.7,
                    ..busy(1)
                },
                false,
            ),
            (
                "nine seconds of ten",
                Activity {
                    active: 0.9,
                    ..busy(1)
                },
                true,
            ),
            (
                "satisfied",
                Activity {
                    held_up: Some(0.05),
                    ..busy(1)
                },
                false,
            ),
            (
                "no PSI, uses the device",
                Activity {
                    held_up: None,
                    ..busy(1)
                },
                true,
            ),
            (
                "no PSI, all from the cache",
                Activity {
                    held_up: None,
                    beyond_cache: false,
                    ..busy(1)
                },
                false,
            ),
            (
                "starved: waits, and gets nothing",
                Activity {
                    bytes: 0,
                    active: 0.0,
                    held_up: Some(0.95),
                    beyond_cache: false,
                },
                true,
            ),
            // PSI knows better: a wait for a page that another tenant reads is a wait.
            (
                "held up without own misses",
                Activity {
                    beyond_cache: false,
                    ..busy(1)
                },
                true,
            ),
        ];
        for (name, activity, expected) in cases {
            assert_eq!(contends(&activity), expected, "{name}");
        }
    }

    fn tree(nodes: &[(Option<usize>, u64)]) -> Tree<Demand> {
        let demand = |weight: u64| Demand::unlimited(Weight::try_from(weight).unwrap());
        let nodes = nodes.iter().map(|(parent, w)| (*parent, demand(*w)));
        Tree::from_parents(nodes).unwrap()
    }

    #[test]
    fn an_idle_or_satisfied_tenant_makes_nobody_look_unfair() {
        let three = tree(&[(None, 100), (None, 200), (None, 800)]);
        let satisfied = Activity {
            held_up: Some(0.0),
            ..busy(3)
        };
        for third in [Activity::default(), satisfied] {
            let pv = live_pv(&three, &[busy(10), busy(20), third]);
            assert_eq!(pv.top, Some(0.0), "{third:?}");
            assert_eq!(pv.whole, Some(0.0));
            assert_eq!(pv.contends, [true, true, false]);
        }
        let pv = live_pv(&three, &[busy(10), busy(20), busy(3)]);
        assert!(
            (pv.top.unwrap() - 7.7 / 3.0).abs() < 1e-9,
            "ideal 8, got 0.3"
        );
    }

    #[test]
    fn one_contender_has_nobody_to_be_compared_with() {
        let two = tree(&[(None, 100), (None, 800)]);
        let pv = live_pv(&two, &[busy(10), Activity::default()]);
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
        let even = live_pv(&nodes, &[none, none, busy(10), busy(15), busy(15)]);
        assert_eq!(even.top, Some(0.0));
        assert_eq!(even.groups, [None, Some(0.0), None, None, None]);
        assert!(even.whole.unwrap() < 1e-9);
        let one_idle = live_pv(&nodes, &[none, none, busy(10), busy(30), none]);
        assert_eq!(one_idle.top, Some(0.0));
        assert_eq!(one_idle.groups[1], None);
        assert!(
            one_idle.whole.unwrap() < 1e-9,
            "the sibling inherits what the idle one leaves"
        );
        // Fair between the slices, unfair inside one.
        let inside = live_pv(&nodes, &[none, none, busy(10), busy(5), busy(25)]);
        assert_eq!(inside.top, Some(0.0));
        assert!(inside.groups[1].unwrap() > 0.6);
        assert!(inside.whole.unwrap() > 0.3);
    }

    proptest! {
        #[test]
        fn in_proportion_is_zero(weights in proptest::collection::vec(1..=10_000u64, 2..20), unit in 1..1_000_000u64) {
            let nodes = tree(&weights.iter().map(|w| (None, *w)).collect::<Vec<_>>());
            let activities: Vec<Activity> = weights.iter().map(|w| busy(w * unit)).collect();
            let pv = live_pv(&nodes, &activities);
            prop_assert!(pv.whole.unwrap() < 1e-6);
            prop_assert!(pv.top.unwrap() < 1e-6);
        }
    }
}
