//! Entitlement: what each tenant may have now.

use crate::fill::{Bid, divide};
use crate::tree::Tree;

/// The part of `capacity` that each node of the tree is entitled to, indexed by
/// [`NodeId::index`](crate::NodeId::index); the root's is the capacity.
///
/// Hierarchical (a group divides what its parent is entitled to), weighted, and work-conserving (what a
/// node's subtree does not demand goes to its siblings, by weight). In every group the parts add up to the
/// parent's; none is below its floor while the floors fit; none gets more than is of use to it while another gets less
/// and is below its part by weight; none is above its demand unless all are satisfied. Monotone in weight, use, demand and
/// capacity (see [`divide`]).
///
/// A wish ([`Tree::set_wish`]) counts as a floor among siblings, after all their floors, and nowhere else: as
/// the kernel's `memory.low`, whose effect in a subtree is bounded by the subtree's own.
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
        heed_wishes(tree, children, parts[node], &mut group);
        for (&child, part) in children.iter().zip(divide(parts[node], &group)) {
            parts[child] = part;
        }
    }
    parts
}

/// What each node asks for on behalf of its whole subtree.
fn subtree_bids(tree: &Tree) -> Vec<Bid> {
    let mut floors = vec![0u64; tree.len()];
    let mut useful: Vec<Option<u64>> = vec![None; tree.len()];
    let mut demands: Vec<Option<u64>> = vec![None; tree.len()];
    let mut bids = vec![
        Bid {
            weight: 0,
            floor: 0,
            useful: 0,
            demand: 0
        };
        tree.len()
    ];
    for node in (0..tree.len()).rev() {
        let claim = tree.nodes[node].claim;
        // What an inner node is to keep, it keeps, even where its children ask for less.
        let own = claim.floor.min(claim.demand);
        let demand = demands[node].map_or(claim.demand, |sum| sum.min(claim.demand).max(own));
        let floor = floors[node].max(claim.floor).min(demand);
        let of_use = useful[node].unwrap_or(claim.useful).max(floor).min(demand);
        bids[node] = Bid {
            weight: u32::from(claim.weight),
            floor,
            useful: of_use,
            demand,
        };
        if node > 0 {
            let parent = tree.nodes[node].parent;
            floors[parent] = floors[parent].saturating_add(floor);
            useful[parent] = Some(useful[parent].unwrap_or(0).saturating_add(of_use));
            demands[parent] = Some(demands[parent].unwrap_or(0).saturating_add(demand));
        }
    }
    bids
}

/// Turns what `children` wish into floors. Where they do not fit beside the floors, floors come first, and what
/// is left goes to the wishes, by weight.
fn heed_wishes(tree: &Tree, children: &[usize], amount: u64, group: &mut [Bid]) {
    if children.iter().all(|&c| tree.nodes[c].wish == 0) {
        return;
    }
    let wished = |i: usize, bid: &Bid| tree.nodes[children[i]].wish.min(bid.demand).max(bid.floor);
    let sum: u128 = (0..)
        .zip(group.iter())
        .map(|(i, bid)| u128::from(wished(i, bid)))
        .sum();
    for (i, bid) in group.iter_mut().enumerate() {
        if sum > u128::from(amount) {
            bid.demand = wished(i, bid);
        } else {
            bid.floor = wished(i, bid);
        }
    }
}
