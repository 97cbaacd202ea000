//! PV over a window of time, over the tenants that are backlogged in it.
//!
//! The papers compute PV over runs in which every tenant is backlogged: it wants all it can get (Justitia, equation 2). On
//! a real machine some are idle and some are satisfied. They take less than their weight would give them,
//! which is not unfair to them and makes no other tenant's part too large. So they are left out.

use crate::num::to_f64;
use crate::pv::of_proportions;
use crate::{Fraction, NodeId, Tree, Weight};

/// What a tenant did in a window of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Activity {
    /// Bytes that its applications read from and wrote to regular files, cached or not.
    pub bytes: u64,
    /// The part of the window's seconds in which they read or wrote any.
    pub active: Fraction,
    /// The part of the window's time in which some of its tasks were stalled on I/O (PSI `io some`,
    /// Documentation/accounting/psi.rst); `None` where the kernel does not measure that.
    pub io_stalled: Option<Fraction>,
    /// Whether it wrote, cached or not, or read what was not cached.
    pub wrote_or_missed: bool,
}

/// A backlogged tenant reads or writes in at least this part of the window's seconds, or is stalled on I/O for at least this
/// part of the window's time.
pub const SUSTAINED: Fraction = Fraction::clamped(0.8);
/// A backlogged tenant is stalled on I/O for at least this part of the window's time.
pub const MIN_IO_STALLED: Fraction = Fraction::clamped(0.1);

/// Whether a tenant was backlogged: it read or wrote nearly all the time or was stalled on I/O nearly all the time
/// ([`SUSTAINED`]), and wanted more than it got, which shows in stalls ([`MIN_IO_STALLED`]).
/// Without PSI a tenant that wrote, or read what was not cached, counts as stalled: one that finds everything in the cache
/// does not wait.
#[must_use]
pub fn is_backlogged(activity: &Activity) -> bool {
    let io_stalled = activity.io_stalled.unwrap_or_default();
    let wants_more = activity
        .io_stalled
        .map_or(activity.wrote_or_missed, |part| part >= MIN_IO_STALLED);
    wants_more && (activity.active >= SUSTAINED || io_stalled >= SUSTAINED)
}

/// PV of a tree in a window of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FairnessWindow {
    /// Of the group right below the root; `None` where fewer than two of it are backlogged.
    pub top: Option<f64>,
    /// Of every node's children, indexed by [`NodeId::index`]; `None` where fewer than two of them are backlogged.
    pub groups: Vec<Option<f64>>,
    /// Of all backlogged leaves together, against the products of their shares down the tree.
    pub whole: Option<f64>,
    /// Whether a node is backlogged: a leaf by itself, an inner node if a leaf below it is.
    pub backlogged: Vec<bool>,
}

/// What a leaf has got, or the backlogged leaves below an inner node have got together.
#[derive(Clone, Copy, Debug, Default)]
struct Got {
    bytes: u64,
    backlogged: bool,
}

impl FairnessWindow {
    /// PV of every sibling group and of the whole tree, by the weights in `tree`. `activities` is indexed like the tree; only leaves'
    /// count. What an inner node got is what the backlogged leaves below it got: a neighbour that reads from
    /// the cache at memory speed does not count for its parent.
    ///
    /// Linear in the nodes.
    ///
    /// # Panics
    /// If `activities` is shorter than the tree.
    #[must_use]
    pub fn of(tree: &Tree<Weight>, activities: &[Activity]) -> Self {
        assert!(
            activities.len() >= tree.len(),
            "an activity for every node of the tree"
        );
        let got = tree.fold_up(
            |sum: &mut Got, child| {
                sum.bytes += if child.backlogged { child.bytes } else { 0 };
                sum.backlogged |= child.backlogged;
            },
            |node, _, below| {
                let activity = &activities[node.index()];
                if tree.is_leaf(node) {
                    Got {
                        bytes: activity.bytes,
                        backlogged: is_backlogged(activity),
                    }
                } else {
                    below
                }
            },
        );
        let mut window = Self {
            groups: vec![None; tree.len()],
            backlogged: got.iter().map(|got| got.backlogged).collect(),
            ..Self::default()
        };
        let mut ideal = vec![1.0; tree.len()];
        let mut leaves = (Vec::new(), Vec::new());
        for parent in tree.parents() {
            let group: Vec<NodeId> = tree
                .children(parent)
                .filter(|child| got[child.index()].backlogged)
                .collect();
            let weights: Vec<f64> = group
                .iter()
                .map(|child| to_f64(tree[*child].get()))
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
                Some(parent) => &mut window.groups[parent.index()],
                None => &mut window.top,
            };
            *of_group = compared(&weights, &actual);
        }
        window.whole = compared(&leaves.0, &leaves.1);
        window
    }
}

/// PV of two or more.
fn compared(ideal: &[f64], actual: &[f64]) -> Option<f64> {
    (ideal.len() > 1)
        .then(|| of_proportions(ideal, actual))
        .flatten()
}

#[cfg(test)]
mod tests;
