//! Delegated subtrees (Documentation/admin-guide/cgroup-v2.rst, "Delegation"): where they begin, whose settings count in
//! them, and their collapse into one tenant.

use std::time::Instant;

use justitia_kernel::cgroup::CgroupId;

use super::node::Node;
use super::quota::Admission;
use super::tree::{CgroupTree, Changes};

impl CgroupTree {
    /// Checks, if that is due, whether a cgroup is delegated to a process of root. A container runtime first makes the
    /// cgroup and then the namespace, so one check is not enough. In a delegated subtree only the runtime's container is
    /// checked.
    pub fn check_delegation(&mut self, id: CgroupId, now: Instant, changes: &mut Changes) {
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        let parent = node.parent.and_then(|parent| self.nodes.get(&parent));
        let inner = node.in_delegation
            && parent.is_some_and(|parent| parent.in_delegation || !parent.delegate_xattr);
        if inner || !node.next_check.is_due(now) {
            return;
        }
        let delegate_xattr = node.cgroup.has_delegate_xattr();
        let namespace_root = self.namespace_root_of(id);
        let mut found = false;
        if let Some(node) = self.nodes.get_mut(&id) {
            node.next_check = node.next_check.next(now);
            found = delegate_xattr && !node.delegate_xattr;
            node.delegate_xattr |= delegate_xattr;
        }
        if let Some(node) = namespace_root.and_then(|root| self.nodes.get_mut(&root)) {
            found |= !node.namespace_root;
            node.namespace_root = true;
        }
        if found {
            self.apply_delegation(namespace_root.unwrap_or(id), changes);
        }
    }

    /// The root of the cgroup namespace in which the processes of `id` live: this cgroup or one above it.
    fn namespace_root_of(&self, id: CgroupId) -> Option<CgroupId> {
        let root = self.nodes.get(&id)?.cgroup.namespace_root()?;
        std::iter::successors(Some(id), |id| self.nodes.get(id)?.parent)
            .filter_map(|id| self.nodes.get(&id))
            .find(|node| node.cgroup.path() == root)
            .map(|node| node.cgroup.id())
    }

    /// Decides anew whose settings count in `top` and below, after a delegation was found there.
    pub(super) fn apply_delegation(&mut self, top: CgroupId, changes: &mut Changes) {
        for id in self.subtree(top).collect::<Vec<_>>() {
            let Some(node) = self.nodes.get(&id) else {
                return; // not tracked on its own
            };
            let parent = node.parent.and_then(|parent| self.nodes.get(&parent));
            let namespace_root = node.namespace_root && self.nsdelegate;
            let owner_is_author =
                parent.is_none_or(|parent| parent.child_owner_is_author(namespace_root));
            let delegated = parent.is_some_and(Node::is_delegated);
            let newly_in = node.parent.filter(|_| delegated && !node.in_delegation);
            if let Some(node) = self.nodes.get_mut(&id) {
                node.owner_is_author = owner_is_author;
                node.in_delegation |= delegated;
                node.set_external_low(node.external_low);
            }
            self.read_weight(id);
            let root = newly_in.and_then(|parent| self.delegation_root(parent));
            if root.is_some()
                && let Admission::Collapse(top) = self.quota.admit(root, self.nodes.len())
            {
                return self.collapse(top, changes);
            }
        }
        changes.weights_changed = true;
    }

    /// Whether others than the administrator may make cgroups below `id`.
    pub(super) fn is_delegated(&self, id: CgroupId) -> bool {
        self.nodes.get(&id).is_some_and(Node::is_delegated)
    }

    /// The delegated cgroup at or above `id` that the administrator made.
    #[must_use]
    pub fn delegation_root(&self, id: CgroupId) -> Option<CgroupId> {
        let mut top = None;
        let mut at = Some(id);
        while let Some(node) = at.and_then(|id| self.nodes.get(&id)) {
            top = Some(node.cgroup.id());
            if !node.in_delegation {
                break;
            }
            at = node.parent;
        }
        top
    }

    /// Whether cgroups below `id` are not tracked on their own any more.
    pub(super) fn is_collapsed(&self, id: CgroupId) -> bool {
        let root = || self.delegation_root(id);
        self.quota.has_long_path(id) || root().is_some_and(|root| self.quota.is_collapsed(root))
    }

    /// Makes `top` and everything below it one tenant.
    pub(super) fn collapse(&mut self, top: CgroupId, changes: &mut Changes) {
        let children = self.nodes.get(&top).map(|n| n.children.clone());
        for child in children.unwrap_or_default() {
            self.remove(child, changes);
        }
    }
}
