//! The weights by which a disk is divided.

use std::collections::HashMap;

use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::io::DevId;
use justitia_share::{Demand, NodeId, Tree};

use crate::page_cache::CgroupTree;

/// A tree of weights, and each cgroup's node in it.
pub(super) type Divided = (Tree<Demand>, HashMap<CgroupId, NodeId>);

/// The tree of these tenants' weights on a disk, including their ancestors', and the nodes. A line of the disk counts unless it
/// `is_ours`. Inactive tenants have no part: a thousand of them would only cost time.
pub(super) fn weights(
    cgroups: &CgroupTree,
    device: DevId,
    is_ours: impl Fn(CgroupId) -> bool,
    tenants: impl Iterator<Item = CgroupId>,
) -> Divided {
    let mut tree = Tree::new();
    let mut nodes = HashMap::new();
    for tenant in tenants {
        let mut above = Vec::new();
        let mut next = Some(tenant);
        while let Some(id) = next.filter(|id| !nodes.contains_key(id))
            && let Some(node) = cgroups.get(id)
        {
            above.push((id, node));
            next = node.parent;
        }
        for (id, node) in above.into_iter().rev() {
            let parent = node.parent.and_then(|id| nodes.get(&id).copied());
            let (weight, _) = match is_ours(id) {
                true => cgroups.weight(node),
                false => cgroups.weight_on(node, device),
            };
            nodes.insert(id, tree.push(parent, Demand::unlimited(weight)));
        }
    }
    (tree, nodes)
}
