//! Entitlement: what each tenant may have now.

use crate::max_min::{Bid, max_min};
use crate::{NodeId, Tree, Weight};

/// The part of `capacity` that each node of the tree is entitled to, indexed by
/// [`NodeId::index`](crate::NodeId::index). The unit is that of `capacity` and of the demands, which is the same.
///
/// Hierarchical (a group divides what its parent is entitled to), weighted, and work-conserving (what a node's subtree
/// does not demand goes to its siblings, by weight). In every group the parts add up to the parent's; none is below
/// its minimum while the minimums fit; none gets more than its working set while a sibling has less than both its own
/// working set and its share by weight; none is above its demand unless all are satisfied. Monotone in weight, use,
/// working set, demand and capacity (see [`max_min`]). A group's requested protection
/// ([`Demand::requested_protection`]) comes after all minimums of the group. The members of a group without a weight of
/// its own compete with its siblings, each by its own weight ([`Demand::sums_weights`]).
///
/// With unlimited demands this is the Justitia paper's `Threshold = NR_FILE_PAGES × proportion` (section
/// III-B3, equation 1), at every level of the tree; with demands it is DoubleDecker's effective
/// entitlement (section 4.3, equation 1), carried to its end.
///
/// One pass up, one down, each linear in the nodes (sorting within a sibling group apart).
#[must_use]
pub fn entitlements(tree: &Tree<Demand>, capacity: u64) -> Vec<u64> {
    let bids = subtree_bids(tree);
    let dissolved = tree.ids().map(|id| dissolves(tree, &bids, id, capacity));
    let dissolved: Vec<bool> = dissolved.collect();
    let dissolves = |id: &NodeId| dissolved[id.index()];
    let mut parts = vec![0; tree.len()];
    let (mut members, mut group) = (Vec::new(), Vec::new());
    for parent in tree
        .parents()
        .filter(|p| !p.as_ref().is_some_and(dissolves))
    {
        let amount = parent.map_or(capacity, |parent| parts[parent.index()]);
        members.clear();
        members.extend(tree.children(parent));
        let mut at = 0;
        while let Some(member) = members.get(at).copied() {
            if dissolves(&member) {
                members.swap_remove(at);
                members.extend(tree.children(Some(member)));
            } else {
                at += 1;
            }
        }
        group.clear();
        group.extend(members.iter().map(|member| bids[member.index()]));
        apply_requested(tree, &members, amount, &mut group);
        for (member, part) in members.iter().zip(max_min(amount, &group)) {
            parts[member.index()] = part;
        }
    }
    for group in tree.ids().rev().filter(dissolves) {
        let members = tree.children(Some(group));
        parts[group.index()] = members.map(|member| parts[member.index()]).sum();
    }
    parts
}

/// Whether the members of a group compete with its siblings. So they do if it has no weight of its own and nothing else
/// makes it one competitor: no limit that may bind, no minimum beyond those of its members, and no protection that a
/// member requests, which counts inside the group alone.
fn dissolves(tree: &Tree<Demand>, bids: &[Bid], group: NodeId, capacity: u64) -> bool {
    let own = &tree[group];
    let members = || tree.children(Some(group));
    let sum = |of: fn(&Bid) -> u64| {
        let bids = members().map(|member| &bids[member.index()]);
        bids.fold(0_u64, |sum, bid| sum.saturating_add(of(bid)))
    };
    own.sums_weights
        && !tree.is_leaf(group)
        && own.minimum <= sum(|bid| bid.minimum)
        && own.requested_protection == 0
        && sum(|bid| bid.demand).min(capacity) <= own.total
        && members().all(|member| tree[member].requested_protection == 0)
}

/// What each node asks for on behalf of its whole subtree.
fn subtree_bids(tree: &Tree<Demand>) -> Vec<Bid> {
    let merge = |sum: &mut Bid, child: &Bid| {
        sum.minimum = sum.minimum.saturating_add(child.minimum);
        sum.in_use = sum.in_use.saturating_add(child.in_use);
        sum.working_set = sum.working_set.saturating_add(child.working_set);
        sum.demand = sum.demand.saturating_add(child.demand);
        if child.demand > 0 {
            sum.weight = sum.weight.saturating_add(child.weight);
        }
    };
    tree.fold_up(merge, |node, own, below| {
        let (in_use, working_set, total) = if tree.is_leaf(node) {
            (own.in_use, own.working_set, own.total)
        } else {
            // What an inner node is to keep, it keeps, even where its children ask for less.
            let keeps = own.minimum.min(own.total);
            let total = below.demand.min(own.total).max(keeps);
            (below.in_use, below.working_set, total)
        };
        let minimum = below.minimum.max(own.minimum).min(total);
        Bid {
            weight: if own.sums_weights && below.weight > 0 {
                below.weight
            } else {
                u32::from(own.weight)
            },
            minimum,
            in_use: in_use.max(minimum).min(total),
            working_set: working_set.max(minimum).min(total),
            demand: total,
        }
    })
}

/// Turns what the members of a group request into minimums. Where that does not fit beside the minimums, minimums come
/// first, and what is left goes to the requests, by weight.
fn apply_requested(tree: &Tree<Demand>, members: &[NodeId], amount: u64, group: &mut [Bid]) {
    let requests = members
        .iter()
        .map(|member| tree[*member].requested_protection);
    if requests.clone().all(|requested| requested == 0) {
        return;
    }
    let protected = |(requested, bid): (u64, &Bid)| requested.min(bid.demand).max(bid.minimum);
    let sum: u128 = requests
        .clone()
        .zip(group.iter())
        .map(|pair| u128::from(protected(pair)))
        .sum();
    for (requested, bid) in requests.zip(group) {
        let protected = protected((requested, bid));
        if sum > u128::from(amount) {
            bid.demand = protected;
        } else {
            bid.minimum = protected;
        }
    }
}

// What a tenant demands of a resource that is divided.

/// What a tenant demands. Amounts are in the caller's unit: bytes, blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Weight among the siblings.
    pub weight: Weight,
    /// This inner node has no weight of its own: its children compete with its siblings, each by its own weight. So
    /// where no weight is set on the way, leaves compete as leaves, whatever the shape of the tree. Where it has a
    /// limit that binds, or a minimum, it competes as one, with the sum of the weights of those children that demand
    /// anything.
    pub sums_weights: bool,
    /// What it gets before anything is divided by weight (for an inner node, at least the sum of its children's minimums).
    pub minimum: u64,
    /// Requested protection: counts as a minimum among the siblings, after all their minimums, and nowhere else. It is
    /// never carried up to the parent. It is for delegatees, who may decide inside the parent, but not how much the
    /// parent gets: as the kernel's `memory.low`, whose effect in a subtree is bounded by the subtree's own
    /// (Documentation/admin-guide/cgroup-v2.rst, "memory.low").
    pub requested_protection: u64,
    /// The part of its working set that is in use now. It is served, by weight, before what others keep for later (for an
    /// inner node, the sum of its children's, whatever is given here).
    pub in_use: u64,
    /// Its working set. It is served, by weight, before any demand beyond that (for an inner node, the
    /// sum of its children's, whatever is given here).
    pub working_set: u64,
    /// All that it can use (for an inner node, a cap on the sum of its children's).
    pub total: u64,
}

impl Demand {
    /// A tenant of this weight that takes whatever it can get: Justitia's tenants (section III-B1).
    #[must_use]
    pub const fn unlimited(weight: Weight) -> Self {
        Self {
            weight,
            sums_weights: false,
            minimum: 0,
            requested_protection: 0,
            in_use: 0,
            working_set: 0,
            total: u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Weight;

    fn unset() -> Demand {
        Demand {
            sums_weights: true,
            ..Demand::unlimited(Weight::default())
        }
    }

    /// One pod in one class, ten in another, as Kubernetes arranges them.
    #[test]
    fn where_no_weight_is_set_leaves_compete_as_leaves() {
        let mut tree = Tree::new();
        let best_effort = tree.push(None, unset());
        let burstable = tree.push(None, unset());
        tree.push(Some(best_effort), unset());
        let pods: Vec<NodeId> = (0..10)
            .map(|_| tree.push(Some(burstable), unset()))
            .collect();
        let parts = entitlements(&tree, 1100);
        assert_eq!(parts, [[100, 1000].as_slice(), &[100; 11]].concat());
        // Pods that demand nothing do not weigh.
        for pod in &pods[1..] {
            tree[*pod].total = 0;
        }
        assert_eq!(entitlements(&tree, 1100)[..2], [550, 550]);
        // Nor do those that demand next to nothing, and what they leave goes to all members.
        for pod in &pods[1..] {
            tree[*pod].total = 1;
        }
        let parts = entitlements(&tree, 1109);
        assert_eq!((parts[2], parts[3]), (550, 550), "{parts:?}");
        assert_eq!(parts[..2], [550, 559]);
        // A minimum of a member is carried up, and changes nothing.
        tree[pods[0]].minimum = 10;
        assert_eq!(entitlements(&tree, 1109)[..2], [550, 559]);
        tree[burstable].minimum = 11;
        assert_eq!(entitlements(&tree, 1109)[..2], [101, 1008]);
        (tree[pods[0]].minimum, tree[burstable].minimum) = (0, 0);
        // A limit that may bind makes a group one, as a minimum of its own does.
        tree[burstable].total = 1109;
        assert_eq!(entitlements(&tree, 1109)[..2], [550, 559]);
        tree[burstable].total = 300;
        tree[pods[1]].total = u64::MAX;
        assert_eq!(entitlements(&tree, 1100)[..2], [800, 300]);
        tree[burstable].total = u64::MAX;
        // A weight that was set is that of the group.
        tree[burstable].sums_weights = false;
        for pod in &pods {
            tree[*pod] = unset();
        }
        assert_eq!(entitlements(&tree, 1100)[..2], [550, 550]);
    }
}
