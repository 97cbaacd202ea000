//! Entitlement: what each tenant may have now.

use crate::fill::{Bid, divide};
use crate::tree::Tree;

/// The part of `capacity` that each node of the tree is entitled to, indexed by
/// [`NodeId::index`](crate::NodeId::index); the root's is the capacity.
///
/// Hierarchical (a group divides what its parent is entitled to), weighted, and work-conserving (what a
/// node's subtree does not demand goes to its siblings, by weight). In every group the parts add up to the
/// parent's; none is below its floor while the floors fit; none is above its demand unless all are
/// satisfied. Monotone in weight, demand and capacity (see [`divide`]).
///
/// With unlimited demands this is the Justitia paper's `Threshold = NR_FILE_PAGES × proportion` (section
/// III-B3, equation 1), at every level of the tree; with demands it is DoubleDecker's effective
/// entitlement (section 4.3, equation 1), carried to its end.
///
/// One pass up, one down, each linear in the nodes (sorting within a sibling group apart).
#[must_use]
pub fn entitlements(tree: &Tree, capacity: u64) -> Vec<u64> {
    let groups = tree.groups();
    let bids = subtree_bids(tree);
    let mut parts = vec![0; tree.len()];
    parts[0] = capacity;
    let mut group = Vec::new();
    for node in 0..tree.len() {
        let children = groups.children(node);
        group.clear();
        group.extend(children.iter().map(|&c| bids[c]));
        for (&child, part) in children.iter().zip(divide(parts[node], &group)) {
            parts[child] = part;
        }
    }
    parts
}

/// What each node asks for on behalf of its whole subtree.
fn subtree_bids(tree: &Tree) -> Vec<Bid> {
    let mut floors = vec![0u64; tree.len()];
    let mut demands: Vec<Option<u64>> = vec![None; tree.len()];
    let mut bids = vec![
        Bid {
            weight: 0,
            floor: 0,
            demand: 0
        };
        tree.len()
    ];
    for node in (0..tree.len()).rev() {
        let claim = tree.nodes[node].claim;
        let demand = demands[node].map_or(claim.demand, |sum| sum.min(claim.demand));
        let floor = floors[node].max(claim.floor).min(demand);
        bids[node] = Bid {
            weight: u32::from(claim.weight),
            floor,
            demand,
        };
        if node > 0 {
            let parent = tree.nodes[node].parent;
            floors[parent] = floors[parent].saturating_add(floor);
            demands[parent] = Some(demands[parent].unwrap_or(0).saturating_add(demand));
        }
    }
    bids
}
