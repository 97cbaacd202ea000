//! Which settings count, the administrator's or a delegatee's: delegated subtrees, weights, and targets of latency.
//!
//! Delegated subtrees (Documentation/admin-guide/cgroup-v2.rst, "Delegation"): where they begin, which settings count
//! in them, and their collapse into one tenant.

use std::collections::BTreeSet;
use std::time::Instant;

use justitia_api::WeightSource;
use justitia_kernel::Result;
use justitia_kernel::cgroup::{CgroupId, Ownership};
use justitia_kernel::io::{DevId, IoWeight};
use justitia_kernel::knob::Knob;
use justitia_share::Weight;

use crate::limits::Admission;
use crate::node::{Node, Standing};
use crate::tree::{CgroupTree, Changes};

impl<M> CgroupTree<M> {
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

    /// Decides anew which settings count in `top` and below, after a delegation was found there.
    pub(crate) fn apply_delegation(&mut self, top: CgroupId, changes: &mut Changes) {
        for id in self.subtree(top).collect::<Vec<_>>() {
            let Some(node) = self.nodes.get(&id) else {
                return; // not tracked on its own
            };
            let parent = node.parent.and_then(|parent| self.nodes.get(&parent));
            let owner_is_author = self.is_owner_author(node);
            let delegated = parent.is_some_and(Node::is_delegated);
            let newly_in = node.parent.filter(|_| delegated && !node.in_delegation);
            if let Some(node) = self.nodes.get_mut(&id) {
                node.owner_is_author = owner_is_author;
                node.in_delegation |= delegated;
                node.set_external_low(node.external_low);
            }
            self.read_weight(id);
            // Which answers are believed depends on whether a delegatee may have made the cgroup.
            self.inquire(id, Instant::now());
            let root = newly_in.and_then(|parent| self.delegation_root(parent));
            if root.is_some()
                && let Admission::Collapse(top) = self.quota.admit(root, self.nodes.len())
            {
                return self.collapse(top, changes);
            }
        }
        changes.weights_changed = true;
    }

    /// [`Node::owner_is_author`], as its parent is now.
    pub(crate) fn is_owner_author(&self, node: &Node<M>) -> bool {
        let parent = node.parent.and_then(|parent| self.nodes.get(&parent));
        let namespace_root = node.namespace_root && self.nsdelegate;
        parent.is_none_or(|parent| parent.child_owner_is_author(namespace_root))
    }

    /// Whether others than the administrator may make cgroups below `id`.
    pub(crate) fn is_delegated(&self, id: CgroupId) -> bool {
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
    pub(crate) fn is_collapsed(&self, id: CgroupId) -> bool {
        let root = || self.delegation_root(id);
        self.quota.has_long_path(id) || root().is_some_and(|root| self.quota.is_collapsed(root))
    }

    /// Makes `top` and everything below it one tenant.
    pub(crate) fn collapse(&mut self, top: CgroupId, changes: &mut Changes) {
        let children = self.nodes.get(&top).map(|n| n.children.clone());
        for child in children.unwrap_or_default() {
            self.remove(child, changes);
        }
    }
}

impl<M> CgroupTree<M> {
    /// The weight in effect, and where it comes from: the configuration; what was declared to the container's or machine's
    /// runtime; `IOWeight=` of its unit; the cgroup's own file; or, where none of these sets it, that of its only child, if
    /// its file has one. A declared number counts as it is, whatever its runtime makes of it in the file. podman with crun sets the weight on
    /// the cgroup `container` inside the scope, where it has no sibling.
    ///
    /// An only child's weight does not count if its author may not set the parent's: a delegatee with a single cgroup
    /// would choose the weight of everything it has.
    #[must_use]
    pub fn weight(&self, node: &Node<M>) -> (Weight, WeightSource) {
        if let Some(weight) = node.overrides.weight {
            return (weight, WeightSource::Configuration);
        }
        if let Some(declared) = &node.identity.declared {
            return (declared.weight, declared.source);
        }
        if let Some((weight, _)) = node.weight {
            return (weight, WeightSource::Cgroup);
        }
        let only_child = match node.children.as_slice() {
            [only] => self.nodes.get(only),
            _ => None,
        };
        let set = only_child.and_then(|child| Some((child, child.weight?)));
        match set {
            Some((child, (weight, author))) if node.honors(author) => {
                let declared = child.identity.declared.as_ref();
                let weight = declared.map_or(weight, |declared| declared.weight);
                (weight, WeightSource::OnlyChild)
            }
            _ => (Weight::default(), WeightSource::Default),
        }
    }

    /// The weight in effect on one device. A rule of the configuration counts on all; else the line of that device in the
    /// cgroup's `io.bfq.weight` or `io.weight`, in this order where BFQ schedules a disk; else [`CgroupTree::weight`].
    #[must_use]
    pub fn weight_on(&self, node: &Node<M>, device: DevId) -> (Weight, WeightSource) {
        let line = |found: &Option<IoWeight>, knob: Knob| {
            let lines = &found.as_ref()?.per_device;
            let (_, weight) = lines.iter().find(|(of, _)| *of == device)?;
            node.honors(node.author_of(knob.file())).then_some(*weight)
        };
        if node.overrides.weight.is_none() {
            let io = || line(&node.standing.io, Knob::IoWeight);
            let bfq = || line(&node.standing.bfq, Knob::IoBfqWeight);
            let found = if self.bfq {
                bfq().or_else(io)
            } else {
                io().or_else(bfq)
            };
            if let Some(weight) = found {
                return (weight, WeightSource::Cgroup);
            }
        }
        self.weight(node)
    }

    /// The devices for which the administrator has set a target in a managed cgroup's `io.latency`: there the kernel holds back
    /// the cgroup's siblings. A delegatee's target holds back siblings in the same subtree alone, and does not count.
    #[must_use]
    pub fn latency_targets(&self) -> BTreeSet<DevId> {
        let counts = |node: &&Node<M>| {
            !node.standing.latency.is_empty()
                && !node.is_delegatees()
                && node.honors(node.author_of("io.latency"))
        };
        let nodes = self.nodes.values().filter(counts);
        nodes
            .flat_map(|node| node.standing.latency.iter().copied())
            .collect()
    }

    /// Takes over whether any disk has the BFQ scheduler: that decides which weights are in effect.
    pub fn set_bfq(&mut self, bfq: bool, changes: &mut Changes) {
        if std::mem::replace(&mut self.bfq, bfq) != bfq {
            for id in self.breadth_first() {
                changes.weights_changed |= self.read_weight(id);
            }
        }
    }

    /// Reads a weight and `io.latency` again; returns whether the weight changed. One that cannot be read at this moment stays.
    pub(crate) fn read_weight(&mut self, id: CgroupId) -> bool {
        let bfq = self.bfq;
        let Some(node) = self.nodes.get_mut(&id) else {
            return false;
        };
        match standing(node) {
            Ok(standing) => {
                let before = node.weight;
                let lines = |found: &Option<IoWeight>| found.clone().unwrap_or_default().per_device;
                let of_devices = |standing: &Standing| (lines(&standing.io), lines(&standing.bfq));
                let other_lines = of_devices(&node.standing) != of_devices(&standing);
                node.standing = standing;
                let set = weight_set(node, bfq);
                node.weight = set.filter(|(_, author)| node.honors(*author));
                node.weight != before || other_lines
            }
            Err(error) => {
                self.note_unread(&error);
                false
            }
        }
    }
}

/// What stands in the files of weights and in `io.latency`.
///
/// # Errors
/// If a file cannot be read for lack of a file descriptor or of memory. With any other error it counts as not there.
fn standing<M>(node: &Node<M>) -> Result<Standing> {
    let latency = unless_exhausted(node.cgroup.io_latency())?.unwrap_or_default();
    Ok(Standing {
        io: unless_exhausted(node.cgroup.io_weight())?.flatten(),
        bfq: unless_exhausted(node.cgroup.io_bfq_weight())?.flatten(),
        latency: latency.into_iter().map(|(device, _)| device).collect(),
    })
}

/// What was read; `None` for any error but the lack of a file descriptor or of memory.
fn unless_exhausted<T>(read: Result<T>) -> Result<Option<T>> {
    match read {
        Err(error) if error.is_exhausted() => Err(error),
        read => Ok(read.ok()),
    }
}

/// The weight that was set, and its source. `io.bfq.weight` is looked at first where BFQ schedules a disk, else `io.weight`.
/// The other file counts where only that was set: runc writes `io.bfq.weight` alone wherever BFQ is loaded, whether or not
/// it schedules a disk.
fn weight_set<M>(node: &Node<M>, bfq: bool) -> Option<(Weight, Ownership)> {
    let (io, io_bfq) = node.standing.defaults();
    let io = (io, Knob::IoWeight);
    let io_bfq = (io_bfq, Knob::IoBfqWeight);
    let order = if bfq { [io_bfq, io] } else { [io, io_bfq] };
    let mut set = order.into_iter().filter_map(|(weight, knob)| {
        let weight = weight.filter(|weight| *weight != Weight::default())?;
        Some((weight, node.author_of(knob.file())))
    });
    set.next()
}
