//! The tree's state, and walks over it.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::time::Instant;

use justitia_api::escape;
use justitia_kernel::cgroup::{Cgroup, CgroupFs, CgroupId};
use justitia_kernel::knob::Knob;
use justitia_kernel::watch::TreeWatcher;
use justitia_runtimes::Resolver;

use crate::inquiry::Inquiries;
use crate::limits::{CgroupQuota, RateLimiter};
use crate::node::{Departed, Left, Node};

/// What changed in the tree.
#[derive(Debug, Default)]
pub struct Changes {
    /// Cgroups that are managed from now on.
    pub added: Vec<CgroupId>,
    /// Cgroups that are managed no more: removed from the kernel, or merged into a collapsed ancestor.
    pub removed: Vec<CgroupId>,
    /// Knobs that were written, by this agent or by others.
    pub knobs_written: Vec<(CgroupId, Knob)>,
    /// Whether any weight changed.
    pub weights_changed: bool,
}

/// The managed cgroups. `M` is the state that the user of the tree keeps of each one's memory.
#[derive(Debug)]
pub struct CgroupTree<M> {
    pub(crate) root: Cgroup,
    pub(crate) nodes: HashMap<CgroupId, Node<M>>,
    /// The managed cgroups right below the root.
    pub(crate) top_level: Vec<CgroupId>,
    /// Excluded cgroups right below the root.
    pub(crate) excluded: Vec<Cgroup>,
    /// The cgroups right below the root that were left out, as in [`Node::untracked`].
    pub(crate) untracked: BTreeSet<OsString>,
    pub(crate) watcher: Option<TreeWatcher>,
    /// Whether cgroup2 is mounted with `nsdelegate`: only processes outside a cgroup namespace may write the files of its
    /// root.
    pub(crate) nsdelegate: bool,
    /// How many directories were listed.
    #[cfg(test)]
    pub(crate) scans: usize,
    /// Whether any disk has the BFQ scheduler: then `io.bfq.weight` is the weight that is in effect.
    pub(crate) bfq: bool,
    /// Why events do not report every change, if so.
    pub(crate) events_incomplete: Option<String>,
    /// Whether events were lost since the last rescan, or could not be followed.
    pub(crate) events_lost: bool,
    /// Whether a cgroup right below the root was added or removed since [`CgroupTree::take_top_level_changed`].
    pub(crate) top_level_changed: bool,
    /// What managed cgroups right below the root left that were removed lately.
    pub(crate) departed: Departed,
    pub(crate) quota: CgroupQuota,
    pub(crate) limiter: RateLimiter,
    /// Says what cgroups are.
    pub(crate) resolver: Resolver,
    /// Of which that is to be asked.
    pub(crate) inquiries: Inquiries,
    /// Makes [`Node::memory`] of a new cgroup.
    pub(crate) new_memory: fn(Instant) -> M,
}

impl<M> CgroupTree<M> {
    /// An empty tree of `fs`; [`CgroupTree::rescan`] fills it. `bfq`: whether any disk has the BFQ scheduler. `new_memory`
    /// makes [`Node::memory`] of a cgroup that is found at that time.
    #[must_use]
    pub fn new(fs: &CgroupFs, bfq: bool, new_memory: fn(Instant) -> M) -> Self {
        let (watcher, events_incomplete) = match TreeWatcher::new() {
            Ok(watcher) => (Some(watcher), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Self {
            root: fs.root().clone(),
            nodes: HashMap::new(),
            top_level: Vec::new(),
            excluded: Vec::new(),
            untracked: BTreeSet::new(),
            #[cfg(test)]
            scans: 0,
            watcher,
            nsdelegate: fs.nsdelegate(),
            bfq,
            events_incomplete,
            events_lost: false,
            top_level_changed: false,
            departed: Departed::default(),
            quota: CgroupQuota::new(),
            limiter: RateLimiter::new(),
            resolver: Resolver::new(fs.system_root()),
            inquiries: Inquiries::default(),
            new_memory,
        }
    }

    /// The root cgroup, which is no tenant.
    #[must_use]
    pub fn root(&self) -> CgroupId {
        self.root.id()
    }

    /// The handle of the root cgroup.
    #[must_use]
    pub const fn root_cgroup(&self) -> &Cgroup {
        &self.root
    }

    /// A managed cgroup.
    #[must_use]
    pub fn get(&self, id: CgroupId) -> Option<&Node<M>> {
        self.nodes.get(&id)
    }

    /// [`CgroupTree::get`], to be changed.
    pub fn get_mut(&mut self, id: CgroupId) -> Option<&mut Node<M>> {
        self.nodes.get_mut(&id)
    }

    /// The number of managed cgroups.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether no cgroup is managed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Why events do not report every change, if so. Then the tree has to be rescanned periodically.
    #[must_use]
    pub fn events_incomplete(&self) -> Option<&str> {
        self.events_incomplete.as_deref()
    }

    /// Whether events were lost or could not be followed. Then the tree has to be rescanned once.
    #[must_use]
    pub const fn events_lost(&self) -> bool {
        self.events_lost
    }

    /// The managed cgroups right below the root.
    #[must_use]
    pub fn top_level(&self) -> &[CgroupId] {
        &self.top_level
    }

    /// What children of a cgroup left that were removed lately, at the top level without one.
    #[must_use]
    pub fn departed(&self, parent: Option<CgroupId>, now: Instant) -> Left {
        let departed = match parent {
            None => Some(&self.departed),
            Some(parent) => self.nodes.get(&parent).map(|parent| &parent.departed),
        };
        departed.map_or(Left::default(), |departed| departed.lately(now))
    }

    /// Whether there are cgroups that are no tenants. Reclaim from the root by `memory.reclaim` would take from those, too.
    pub fn has_unmanaged_cgroups(&mut self) -> bool {
        self.excluded.retain(Cgroup::is_alive);
        !self.untracked.is_empty()
            || !self.excluded.is_empty()
            || self.nodes.values().any(Node::has_unmanaged_children)
    }

    /// Whether a cgroup right below the root was added or removed since the last call. The pages of a removed one are
    /// unmanaged from then on.
    pub fn take_top_level_changed(&mut self) -> bool {
        std::mem::take(&mut self.top_level_changed)
    }

    /// The children of `id`, perhaps the root, that are left out.
    pub(crate) fn untracked(&mut self, id: CgroupId) -> Option<&mut BTreeSet<OsString>> {
        if id == self.root.id() {
            return Some(&mut self.untracked);
        }
        self.nodes.get_mut(&id).map(|node| &mut node.untracked)
    }

    /// Which cgroups are not tracked on their own, and why.
    #[must_use]
    pub fn limitations(&self) -> Vec<String> {
        let full = !self.untracked.is_empty()
            || self.nodes.values().any(|node| !node.untracked.is_empty());
        self.quota.limitations(full, |id| self.path(id))
    }

    /// The watcher, to wait for its events.
    #[must_use]
    pub const fn watcher(&self) -> Option<&TreeWatcher> {
        self.watcher.as_ref()
    }

    /// Every managed cgroup, level by level: parents first.
    #[must_use]
    pub fn breadth_first(&self) -> Vec<CgroupId> {
        let mut order = self.top_level.clone();
        let mut next = 0;
        while let Some(id) = order.get(next) {
            if let Some(node) = self.nodes.get(id) {
                order.extend(&node.children);
            }
            next += 1;
        }
        order
    }

    /// A cgroup and all its descendants.
    pub fn subtree(&self, id: CgroupId) -> impl Iterator<Item = CgroupId> {
        let mut next = vec![id];
        std::iter::from_fn(move || {
            let id = next.pop()?;
            if let Some(node) = self.nodes.get(&id) {
                next.extend(&node.children);
            }
            Some(id)
        })
    }

    /// Whether disks are divided among cgroups of which this is one. Its I/O is accounted, and the administrator divides
    /// it no further. The subtree of a delegated cgroup is its owner's to divide: the owner could overwrite limits in
    /// there, or move its processes to another cgroup.
    #[must_use]
    pub fn is_io_domain(&self, node: &Node<M>) -> bool {
        let divides = |child: &CgroupId| {
            let child = self.nodes.get(child);
            child.is_some_and(|child| child.io && !child.is_delegatees())
        };
        node.io && !node.is_delegatees() && !node.children.iter().any(divides)
    }

    /// The cgroups among which disks are divided ([`CgroupTree::is_io_domain`]), in no order.
    pub fn io_domains(&self) -> impl Iterator<Item = &Node<M>> {
        self.nodes.values().filter(|node| self.is_io_domain(node))
    }

    /// The path of a tenant for people; `-` is the root, and without a cgroup what is in no managed one; `#` and the number is
    /// a cgroup that is gone.
    #[must_use]
    pub fn tenant_path(&self, id: Option<CgroupId>) -> String {
        match id {
            Some(id) if id != self.root() => self.nodes.get(&id).map_or_else(
                || format!("#{}", id.0),
                |node| escape::encode(node.cgroup.path().as_os_str()),
            ),
            _ => "-".to_owned(),
        }
    }

    pub(crate) fn path(&self, id: CgroupId) -> String {
        let node = self.nodes.get(&id);
        node.map_or_else(String::new, |n| escape::encode(n.cgroup.path().as_os_str()))
    }

    /// `None` for the root, which has no node.
    pub(crate) fn node_id(&self, id: CgroupId) -> Option<CgroupId> {
        (id != self.root.id()).then_some(id)
    }

    pub(crate) fn cgroup(&self, id: CgroupId) -> Option<Cgroup> {
        match self.node_id(id) {
            None => Some(self.root.clone()),
            Some(id) => self.nodes.get(&id).map(|n| n.cgroup.clone()),
        }
    }
}
