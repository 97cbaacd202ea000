//! The managed cgroups with their weights, as the agent sees them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use justitia_cgroup_tree::{CgroupTree, Changes, Node, Rule};
use justitia_kernel::block::bfq_disks;
use justitia_kernel::cgroup::{Cgroup, CgroupFs, CgroupId};

use super::plan::Member;

/// How often the tree is read anew where events do not report every change.
const RESCAN: Duration = Duration::from_secs(10);

/// The cgroups that the administrator has made. What a delegatee makes below one belongs to it: with many cgroups it
/// does not get many pools.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    pub(crate) members: BTreeMap<CgroupId, Member>,
    /// Of every cgroup, the member that it belongs to.
    pub(crate) owners: BTreeMap<CgroupId, CgroupId>,
}

/// The cgroups.
#[derive(Debug)]
pub(crate) struct Cgroups {
    tree: CgroupTree<()>,
    rescanned: Instant,
}

impl Cgroups {
    /// Reads the tree.
    pub(crate) fn new(fs: &CgroupFs, rules: &[Rule]) -> Self {
        let bfq = bfq_disks(Path::new("/sys/block")).is_ok_and(|disks| !disks.is_empty());
        let mut tree = CgroupTree::new(fs, bfq, |_| ());
        let rescanned = Instant::now();
        tree.rescan(rules, rescanned, &mut Changes::default());
        Self { tree, rescanned }
    }

    /// Follows what has changed.
    pub(crate) fn follow(&mut self, rules: &[Rule], now: Instant) {
        self.tree.process_events(rules, now);
        let due = now.saturating_duration_since(self.rescanned) >= RESCAN;
        if due && (self.tree.events_lost() || self.tree.events_incomplete().is_some()) {
            self.tree.rescan(rules, now, &mut Changes::default());
            self.rescanned = now;
        }
    }

    /// The containers, and which cgroup belongs to which.
    pub(crate) fn view(&self) -> View {
        let mut view = View::default();
        // Parents come first.
        for id in self.tree.breadth_first() {
            let Some(node) = self.tree.get(id) else {
                continue;
            };
            let owner = match node.parent.filter(|_| node.in_delegation) {
                Some(parent) => view.owners.get(&parent).copied().unwrap_or(parent),
                None => {
                    let parent = node.parent.and_then(|parent| view.members.get_mut(&parent));
                    parent.into_iter().for_each(|parent| parent.leaf = false);
                    view.members.insert(id, self.member(node));
                    id
                }
            };
            view.owners.insert(id, owner);
        }
        view
    }

    fn member(&self, node: &Node<()>) -> Member {
        let (weight, _) = self.tree.weight(node);
        Member {
            parent: node.parent,
            weight: u32::try_from(weight.get()).unwrap_or(u32::MAX),
            path: node.cgroup.path().to_string_lossy().into_owned(),
            leaf: true,
        }
    }

    /// One of them.
    pub(crate) fn cgroup(&self, id: CgroupId) -> Option<&Cgroup> {
        self.tree.get(id).map(|node| &node.cgroup)
    }
}
