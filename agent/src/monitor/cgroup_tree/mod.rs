//! The weight tree as the kernel has it: which cgroups there are, their weights and their operators' wishes.
//! Kept up to date by events, not by rescanning.

mod quota;
mod rate_limit;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use justitia_kernel::Result;
use justitia_kernel::cgroup::{Cgroup, CgroupFs, CgroupId, Ownership};
use justitia_kernel::io::IoWeight;
use justitia_kernel::knob::Knob;
use justitia_kernel::memory::Limit;
use justitia_kernel::watch::{TreeWatcher, WatchEvent, is_exhausted};
use justitia_share::Weight;

use super::memory_sampler::MemorySampler;
use crate::config::{Config, Override};
use justitia_api::{WeightFrom, escape};
use quota::{Admission, CgroupQuota, DEEPEST};
use rate_limit::{RateLimiter, RefreshKind};

/// A new cgroup, or one in which processes begin to live, is looked at for a delegation again after this time, then after
/// twice as much each time, until that is more than [`LAST_INSPECTION`].
const FIRST_INSPECTION: Duration = Duration::from_millis(250);
/// See [`FIRST_INSPECTION`].
const LAST_INSPECTION: Duration = Duration::from_secs(64);

/// A cgroup that takes part.
#[derive(Debug)]
pub struct Node {
    /// The cgroup.
    pub cgroup: Cgroup,
    /// Its parent, unless that is the root.
    pub parent: Option<CgroupId>,
    /// Its children that take part.
    pub children: Vec<CgroupId>,
    /// Its children that are excluded: their pages are outside, though the kernel counts them for this cgroup too.
    pub excluded: Vec<Cgroup>,
    /// File pages of those, bytes.
    pub excluded_file: u64,
    /// Whether it has had a child that is not told apart, for want of descriptors.
    pub untold: bool,
    /// What the configuration says of it.
    pub says: Override,
    /// Whether its parent is delegated: then others than the administrator may have made this cgroup, and what they
    /// say in its files counts for what the parent gets, not for how much that is.
    pub delegated: bool,
    /// Whether the owners of its files tell whose word they are: not where it is below what was delegated to a process of
    /// root's own.
    pub owners_tell: bool,
    /// Whether systemd has marked it as delegated.
    marked: bool,
    /// Whether a container's cgroup namespace has it as its root.
    namespace_root: bool,
    /// When it is looked at for that again, and how long after that; never once it is delegated.
    inspection: (Instant, Duration),
    /// Its own weight, and who has set it; `None` if nobody has.
    pub weight: Option<(Weight, Ownership)>,
    /// Whether it has the I/O controller: whether what it does to disks is told, and can be limited.
    pub io: bool,
    /// Whether any process lives in it or below.
    pub populated: bool,
    /// Its `memory.low` as its operator has set it, bytes; 0 if nobody has.
    pub operator_low: u64,
    /// Who that is.
    pub operator: Ownership,
    /// Its counters.
    pub memory: MemorySampler,
}

impl Node {
    /// Whether it has children that are no tenants: a reclaim from it would take from those, too.
    #[must_use]
    pub fn has_unmanaged_children(&self) -> bool {
        self.untold || !self.excluded.is_empty()
    }

    /// Reads its counters, and those of its excluded children.
    ///
    /// # Errors
    /// As every reader of a cgroup; that it is gone is one.
    pub fn sample(&mut self, now: Instant) -> Result<()> {
        self.memory.read(&self.cgroup, now)?;
        let mut file = 0;
        self.excluded.retain(|child| match child.memory_stat() {
            Ok(stat) => {
                file += stat.file_lru();
                true
            }
            Err(error) => !error.is_gone(),
        });
        self.excluded_file = file;
        Ok(())
    }

    /// Whether the word of `who`, in one of its files, counts at all. A delegate's does where the parent is
    /// delegated; where it is not, the administrator has given away a file that divides what is everybody's.
    fn heeds(&self, who: Ownership) -> bool {
        who == Ownership::Admin || self.delegated
    }

    /// The file pages that it keeps whatever happens, and those that it asks to keep of what its parent gets, bytes.
    /// `other` is its memory beside them, which its operator's `memory.low` counts too.
    #[must_use]
    pub fn floors(&self, other: u64) -> (u64, u64) {
        let low = self.operator_low.saturating_sub(other);
        let configured = self.says.min_cache.unwrap_or(0);
        // A rule's pattern may match as many cgroups as somebody makes.
        match (self.delegated, self.operator) {
            (false, Ownership::Admin) => (configured.max(low), 0),
            (false, Ownership::Delegatee) => (configured, 0),
            (true, Ownership::Admin) => (low, configured),
            (true, Ownership::Delegatee) => (0, configured.max(low)),
        }
    }

    /// Takes what its operator has put into `memory.low`.
    pub fn set_operator_low(&mut self, low: u64) {
        self.operator_low = low;
        self.operator = self.file_ownership(Knob::MemoryLow.file());
    }

    /// Whose word stands in one of its files.
    fn file_ownership(&self, file: &str) -> Ownership {
        if !self.owners_tell {
            return Ownership::Delegatee;
        }
        self.cgroup
            .file_ownership(file)
            .unwrap_or(Ownership::Delegatee)
    }

    /// Whether its children are made by a process of root's own that is not the administrator.
    fn is_delegated_to_root_process(&self) -> bool {
        let seen = self.marked || self.namespace_root;
        self.says.delegated.unwrap_or(seen)
    }

    /// Whether others than the administrator may make cgroups below it.
    fn is_delegated(&self) -> bool {
        self.delegated
            || self.is_delegated_to_root_process()
            || !matches!(self.cgroup.ownership(), Ok(Ownership::Admin))
    }

    /// Whether owners tell of the files of a child, which is the root of a cgroup namespace or is not. Where `self` is
    /// delegated to a container's runtime and the container lives in the child, the kernel has the child's files written
    /// from outside only: the runtime's word is the administrator's.
    fn owners_tell_below(&self, namespace_root: bool) -> bool {
        let runtime = namespace_root && !self.namespace_root && self.says.delegated != Some(true);
        self.owners_tell && (!self.is_delegated_to_root_process() || runtime)
    }
}

/// What changed in the tree.
#[derive(Debug, Default)]
pub struct Changes {
    /// Cgroups that have come.
    pub added: Vec<CgroupId>,
    /// Cgroups that are gone.
    pub removed: Vec<CgroupId>,
    /// Knobs that somebody has written, ourselves perhaps.
    pub knobs_written: Vec<(CgroupId, Knob)>,
    /// Whether anybody's weight moved.
    pub weights_changed: bool,
}

/// The tree.
#[derive(Debug)]
pub struct CgroupTree {
    root: Cgroup,
    nodes: HashMap<CgroupId, Node>,
    top: Vec<CgroupId>,
    watcher: Option<TreeWatcher>,
    /// Whether a cgroup namespace's root can be written from outside only.
    nsdelegate: bool,
    /// Whether BFQ schedules any disk: then its weights are the ones that people mean.
    bfq: bool,
    /// Why the tree has to be rescanned now and then, if events do not suffice.
    blind: Option<String>,
    /// Events were lost.
    lost: bool,
    /// Whether a cgroup right below the root has come or gone since somebody asked.
    top_level_changed: bool,
    quota: CgroupQuota,
    limiter: RateLimiter,
}

impl CgroupTree {
    /// An empty cgroups of `fs`; [`CgroupTree::rescan`] fills it.
    #[must_use]
    pub fn new(fs: &CgroupFs, bfq: bool) -> Self {
        let (watcher, blind) = match TreeWatcher::new() {
            Ok(watcher) => (Some(watcher), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Self {
            root: fs.root().clone(),
            nodes: HashMap::new(),
            top: Vec::new(),
            watcher,
            nsdelegate: fs.nsdelegate(),
            bfq,
            blind,
            lost: false,
            top_level_changed: false,
            quota: CgroupQuota::new(),
            limiter: RateLimiter::new(),
        }
    }

    /// The root, which is no tenant: what runs in no managed cgroup, and the machine as a whole.
    #[must_use]
    pub fn root(&self) -> CgroupId {
        self.root.id()
    }

    /// The cgroup that takes part under this id.
    #[must_use]
    pub fn get(&self, id: CgroupId) -> Option<&Node> {
        self.nodes.get(&id)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, id: CgroupId) -> Option<&mut Node> {
        self.nodes.get_mut(&id)
    }

    /// How many cgroups take part.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether no cgroup takes part.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Why events do not suffice to follow the tree, if so.
    #[must_use]
    pub fn events_unavailable(&self) -> Option<&str> {
        self.blind.as_deref()
    }

    /// Whether events were lost, and the tree has to be rescanned once.
    #[must_use]
    pub const fn events_lost(&self) -> bool {
        self.lost
    }

    /// The cgroups right below the root that take part.
    #[must_use]
    pub fn top_level(&self) -> &[CgroupId] {
        &self.top
    }

    /// What the cgroups right below the root have taken in, as far as was looked: see [`super::meter::taken_in`].
    #[must_use]
    pub fn taken_in(&self) -> u64 {
        let top = self.top.iter().filter_map(|id| self.nodes.get(id));
        top.map(|node| node.memory.taken_in).sum()
    }

    /// Whether any cgroup right below the root has come or gone since the last call: the pages of one that has gone are
    /// outside from then on.
    pub fn take_top_level_changed(&mut self) -> bool {
        std::mem::take(&mut self.top_level_changed)
    }

    /// Which cgroups are not told apart, and why.
    #[must_use]
    pub fn limitations(&self) -> Vec<String> {
        self.quota.limitations(|id| self.path(id))
    }

    fn path(&self, id: CgroupId) -> String {
        let node = self.nodes.get(&id);
        node.map_or_else(String::new, |n| escape::encode(n.cgroup.path().as_os_str()))
    }

    /// The watcher, to wait for its events.
    #[must_use]
    pub const fn watcher(&self) -> Option<&TreeWatcher> {
        self.watcher.as_ref()
    }

    /// Every cgroup that takes part, parents first.
    #[must_use]
    pub fn preorder(&self) -> Vec<CgroupId> {
        let mut order = self.top.clone();
        let mut next = 0;
        while let Some(id) = order.get(next) {
            if let Some(node) = self.nodes.get(id) {
                order.extend(&node.children);
            }
            next += 1;
        }
        order
    }

    /// Whether disks are divided among cgroups of which this is one: its I/O is told apart, and no further by the
    /// administrator. Who was given a subtree divides it himself: limits in there he could write over, or leave for
    /// another cgroup.
    #[must_use]
    pub fn is_io_domain(&self, node: &Node) -> bool {
        let others = |node: &Node| node.delegated && node.parent.is_some();
        let divides = |child: &CgroupId| {
            let child = self.nodes.get(child);
            child.is_some_and(|child| child.io && !others(child))
        };
        node.io && !others(node) && !node.children.iter().any(divides)
    }

    /// The cgroups among which disks are divided ([`CgroupTree::is_unit`]), in no order.
    pub fn io_domains(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values().filter(|node| self.is_io_domain(node))
    }

    /// A node and all below it.
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

    /// The weight that counts for a node, and who has set it: its own, or, where nobody has set that, what is
    /// set on its only child (podman with crun sets the weight on a `container` cgroup inside the scope, where
    /// it has no sibling to weigh against). But not what somebody has set there who may not weigh the node itself: in
    /// his only cgroup he would set how much everything of his gets.
    #[must_use]
    pub fn weight(&self, node: &Node) -> (Weight, WeightFrom) {
        if let Some(weight) = node.says.weight {
            return (weight, WeightFrom::Configuration);
        }
        if let Some((weight, _)) = node.weight {
            return (weight, WeightFrom::Cgroup);
        }
        let only = match node.children.as_slice() {
            [only] => self.nodes.get(only).and_then(|child| child.weight),
            _ => None,
        };
        match only {
            Some((weight, who)) if node.heeds(who) => (weight, WeightFrom::OnlyChild),
            _ => (Weight::default(), WeightFrom::Nobody),
        }
    }

    /// Takes the events that have come.
    pub fn process_events(&mut self, config: &Config, now: Instant) -> Changes {
        let mut changes = Changes::default();
        let events = match self.watcher.as_mut().map(TreeWatcher::drain) {
            Some(Ok(events)) => events,
            Some(Err(error)) => {
                tracing::warn!(%error, "cgroup events are lost; rescanning");
                vec![WatchEvent::Overflow]
            }
            None => Vec::new(),
        };
        for event in events {
            match event {
                WatchEvent::CgroupCreated { parent, name } => {
                    self.top_level_changed |= parent == self.root.id();
                    if self.is_collapsed(parent) {
                        continue;
                    }
                    if self.is_delegated(parent) {
                        self.limiter.enqueue(parent, RefreshKind::Children);
                    } else if let Some(cgroup) = self.cgroup(parent)
                        && let Ok(child) = cgroup.child(&name)
                    {
                        self.add(child, self.key(parent), config, now, &mut changes);
                    }
                }
                WatchEvent::CgroupRemoved { parent, id, .. } => {
                    self.top_level_changed |= parent == self.root.id();
                    if let Some(id) = id {
                        self.remove(id, &mut changes);
                    }
                }
                WatchEvent::PopulatedChanged { id } => {
                    self.again(id, RefreshKind::Populated, config, now, &mut changes);
                }
                WatchEvent::FileWritten { id, name } => {
                    let what = match name.to_str() {
                        Some("io.weight" | "io.bfq.weight") => RefreshKind::Weight,
                        Some("memory.low") => RefreshKind::Low,
                        Some("cgroup.subtree_control") => RefreshKind::Children,
                        _ => continue,
                    };
                    self.again(id, what, config, now, &mut changes);
                }
                WatchEvent::Overflow => self.lost = true,
            }
        }
        while let Some((id, what)) = self.limiter.next(now) {
            // Those that went again meanwhile have cost as much.
            let come = changes.added.len();
            self.look_again(id, what, config, now, &mut changes);
            self.limiter.charge(changes.added.len() - come);
        }
        changes
    }

    /// Looks again at something of a cgroup; if that is not the administrator's own, as fast as is affordable.
    fn again(
        &mut self,
        id: CgroupId,
        what: RefreshKind,
        config: &Config,
        now: Instant,
        changes: &mut Changes,
    ) {
        let delegated = match what {
            // Who may make children may also say which controllers they have.
            RefreshKind::Children => self.is_delegated(id),
            _ => self.nodes.get(&id).is_some_and(|n| n.delegated),
        };
        if delegated {
            self.limiter.enqueue(id, what);
        } else {
            self.look_again(id, what, config, now, changes);
        }
    }

    fn look_again(
        &mut self,
        id: CgroupId,
        what: RefreshKind,
        config: &Config,
        now: Instant,
        changes: &mut Changes,
    ) {
        match what {
            RefreshKind::Children => self.scan(id, config, now, changes),
            RefreshKind::Populated => {
                self.read_populated(id);
                if let Some(node) = self.nodes.get_mut(&id) {
                    node.inspection = (now, FIRST_INSPECTION);
                }
                self.check_delegation(id, now, changes);
            }
            RefreshKind::Weight => changes.weights_changed |= self.read_weight(id),
            RefreshKind::Low => changes.knobs_written.push((id, Knob::MemoryLow)),
        }
    }

    /// Whether others than the administrator may make cgroups below `id`.
    fn is_delegated(&self, id: CgroupId) -> bool {
        self.nodes.get(&id).is_some_and(Node::is_delegated)
    }

    /// Looks whether a cgroup is delegated to a process of root's own, if it is time to: a runtime first makes the cgroup,
    /// and then the namespace. Not below what is delegated, but for the runtime's container.
    pub fn check_delegation(&mut self, id: CgroupId, now: Instant, changes: &mut Changes) {
        let parent_inside = |node: &Node| {
            let parent = node.parent.and_then(|parent| self.nodes.get(&parent));
            parent.is_some_and(|parent| parent.delegated || !parent.marked)
        };
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        let (due, pause) = node.inspection;
        if now < due || pause > LAST_INSPECTION || (node.delegated && parent_inside(node)) {
            return;
        }
        let marked = node.cgroup.has_delegate_xattr();
        let root = node.cgroup.namespace_root();
        // The root is this cgroup, or one above it.
        let above = std::iter::successors(Some(id), |id| self.nodes.get(id)?.parent);
        let root = root.and_then(|root| {
            above
                .filter_map(|id| self.nodes.get(&id))
                .find(|node| node.cgroup.path() == root)
                .map(|node| node.cgroup.id())
        });
        let mut news = false;
        if let Some(node) = self.nodes.get_mut(&id) {
            node.inspection = (now + pause, pause * 2);
            news = marked && !node.marked;
            node.marked |= marked;
        }
        if let Some(node) = root.and_then(|root| self.nodes.get_mut(&root)) {
            news |= !node.namespace_root;
            node.namespace_root = true;
        }
        if news {
            self.reclassify(root.unwrap_or(id), changes);
        }
    }

    /// Finds out anew whose word counts in `top` and below, where something has been found to be delegated.
    fn reclassify(&mut self, top: CgroupId, changes: &mut Changes) {
        for id in self.subtree(top).collect::<Vec<_>>() {
            let Some(node) = self.nodes.get(&id) else {
                return; // beyond what is told apart
            };
            let parent = node.parent.and_then(|parent| self.nodes.get(&parent));
            let namespace_root = node.namespace_root && self.nsdelegate;
            let tell = parent.is_none_or(|parent| parent.owners_tell_below(namespace_root));
            let given = parent.is_some_and(Node::is_delegated);
            let parent = node.parent.filter(|_| given && !node.delegated);
            if let Some(node) = self.nodes.get_mut(&id) {
                (node.owners_tell, node.delegated) = (tell, node.delegated || given);
                node.set_operator_low(node.operator_low);
            }
            self.read_weight(id);
            let delegation = parent.and_then(|parent| self.delegation_root(parent));
            if delegation.is_some()
                && let Admission::Collapse(top) = self.quota.admit(delegation, self.nodes.len())
            {
                return self.collapse(top, changes);
            }
        }
        changes.weights_changed = true;
    }

    /// Compares the whole tree with the kernel's.
    pub fn rescan(&mut self, config: &Config, now: Instant, changes: &mut Changes) {
        let dead: Vec<CgroupId> = self
            .nodes
            .values()
            .filter(|n| !n.cgroup.is_alive())
            .map(|n| n.cgroup.id())
            .collect();
        for id in dead {
            self.remove(id, changes);
        }
        self.lost = false;
        let known = self.preorder();
        self.scan(self.root.id(), config, now, changes);
        for id in known {
            self.scan(id, config, now, changes);
            self.read_populated(id);
            changes.weights_changed |= self.read_weight(id);
            // Whether anybody has, is looked up.
            changes.knobs_written.push((id, Knob::MemoryLow));
        }
    }

    /// What was delegated, at or above `id`: the first whose children somebody else may have made.
    #[must_use]
    pub fn delegation_root(&self, id: CgroupId) -> Option<CgroupId> {
        let mut top = None;
        let mut at = Some(id);
        while let Some(node) = at.and_then(|id| self.nodes.get(&id)) {
            top = Some(node.cgroup.id());
            if !node.delegated {
                break;
            }
            at = node.parent;
        }
        top
    }

    /// Whether what is below `id` is told apart no more.
    fn is_collapsed(&self, id: CgroupId) -> bool {
        self.quota.has_long(id)
            || self
                .delegation_root(id)
                .is_some_and(|top| self.quota.is_collapsed(top))
    }

    /// Makes one tenant of everything below `top`.
    fn collapse(&mut self, top: CgroupId, changes: &mut Changes) {
        let children = self.nodes.get(&top).map(|n| n.children.clone());
        for child in children.unwrap_or_default() {
            self.remove(child, changes);
        }
    }

    fn key(&self, id: CgroupId) -> Option<CgroupId> {
        (id != self.root.id()).then_some(id)
    }

    fn cgroup(&self, id: CgroupId) -> Option<Cgroup> {
        match self.key(id) {
            None => Some(self.root.clone()),
            Some(id) => self.nodes.get(&id).map(|n| n.cgroup.clone()),
        }
    }

    /// Looks for children of `id` that are not known yet, and theirs.
    fn scan(&mut self, id: CgroupId, config: &Config, now: Instant, changes: &mut Changes) {
        let Some(cgroup) = self.cgroup(id) else {
            return;
        };
        // Watch first, then list: what is made in between is seen by both.
        if let Some(watcher) = &mut self.watcher
            && let Err(error) = watcher.add(&cgroup)
        {
            if error.is_gone() {
                // Nobody will say so later.
                return self.remove(id, changes);
            }
            if is_exhausted(&error) {
                self.blind.get_or_insert_with(|| error.to_string());
            }
        }
        let too_deep = cgroup.path().components().count() >= DEEPEST;
        if too_deep || self.is_collapsed(id) {
            return;
        }
        let Ok(children) = cgroup.child_entries() else {
            return;
        };
        for child in children {
            if self.is_collapsed(id) {
                return;
            }
            if !self.nodes.contains_key(&child.id)
                && let Ok(child) = cgroup.child(&child.name)
            {
                self.add(child, self.key(id), config, now, changes);
            }
        }
    }

    /// Takes a cgroup in, and its descendants, if it has the memory controller and is not excluded.
    fn add(
        &mut self,
        cgroup: Cgroup,
        parent: Option<CgroupId>,
        config: &Config,
        now: Instant,
        changes: &mut Changes,
    ) {
        let id = cgroup.id();
        let controllers = cgroup.controllers().unwrap_or_default();
        let memory = controllers.has("memory");
        if self.nodes.contains_key(&id) || !memory {
            return;
        }
        let delegated = match parent {
            None => !matches!(self.root.ownership(), Ok(Ownership::Admin)),
            Some(parent) if self.nodes.contains_key(&parent) => self.is_delegated(parent),
            Some(_) => return, // it went meanwhile
        };
        let top = parent
            .filter(|_| delegated)
            .and_then(|p| self.delegation_root(p));
        let says = config.overrides(cgroup.path(), delegated);
        if says.exclude == Some(true) {
            return self.exclude(cgroup, parent);
        }
        if self.quota.is_too_long(parent, cgroup.path()) {
            if let Some(parent) = parent {
                self.collapse(parent, changes);
            }
            return;
        }
        match self.quota.admit(top, self.nodes.len()) {
            Admission::Granted => {}
            Admission::Denied => {
                let parent = parent.filter(|_| top.is_none());
                if let Some(parent) = parent.and_then(|p| self.nodes.get_mut(&p)) {
                    parent.untold = true;
                }
                return;
            }
            Admission::Collapse(top) => {
                tracing::warn!(
                    tenant = self.path(top),
                    "too many cgroups below what was delegated: it is one tenant from now on"
                );
                return self.collapse(top, changes);
            }
        }
        let owners_tell = match parent.and_then(|parent| self.nodes.get(&parent)) {
            Some(parent) => parent.owners_tell_below(false),
            None => true,
        };
        let marked = !delegated && cgroup.has_delegate_xattr();
        let node = Node {
            cgroup,
            parent,
            children: Vec::new(),
            excluded: Vec::new(),
            excluded_file: 0,
            untold: false,
            says,
            delegated,
            owners_tell,
            marked,
            namespace_root: false,
            inspection: (now, FIRST_INSPECTION),
            weight: None,
            io: controllers.has("io"),
            populated: true,
            operator_low: 0,
            operator: Ownership::Delegatee,
            memory: MemorySampler::new(now),
        };
        match parent.and_then(|parent| self.nodes.get_mut(&parent)) {
            Some(parent) => parent.children.push(id),
            None => self.top.push(id),
        }
        self.nodes.insert(id, node);
        changes.added.push(id);
        self.scan(id, config, now, changes);
        // Only now is it watched: who makes a cgroup writes its knobs right after, and what was written between a look and
        // the watch nobody would tell.
        self.read_populated(id);
        self.read_weight(id);
        self.read_low(id);
        self.check_delegation(id, now, changes);
    }

    /// Takes no part. What the kernel counts of it for its parent is known apart.
    fn exclude(&mut self, cgroup: Cgroup, parent: Option<CgroupId>) {
        if let Some(parent) = parent.and_then(|parent| self.nodes.get_mut(&parent))
            && parent.excluded.iter().all(|c| c.id() != cgroup.id())
        {
            parent.excluded.push(cgroup);
        }
    }

    /// Removes a cgroup that is gone, and its descendants.
    pub fn remove(&mut self, id: CgroupId, changes: &mut Changes) {
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        for child in node.children.clone() {
            self.remove(child, changes);
        }
        let top = self.delegation_root(id).filter(|top| *top != id);
        let Some(node) = self.nodes.remove(&id) else {
            return;
        };
        self.quota.release(top);
        self.quota.forget(id);
        self.top_level_changed |= node.parent.is_none();
        let siblings = match node.parent {
            None => Some(&mut self.top),
            Some(parent) => self.nodes.get_mut(&parent).map(|p| &mut p.children),
        };
        if let Some(siblings) = siblings {
            siblings.retain(|sibling| *sibling != id);
        }
        if let Some(watcher) = &mut self.watcher {
            watcher.remove(id);
        }
        changes.removed.push(id);
    }

    fn read_populated(&mut self, id: CgroupId) {
        if let Some(node) = self.nodes.get_mut(&id)
            && let Ok(events) = node.cgroup.events()
        {
            node.populated = events.populated;
        }
    }

    fn read_low(&mut self, id: CgroupId) {
        if let Some(node) = self.nodes.get_mut(&id)
            && let Ok(low) = low_of(&node.cgroup)
        {
            node.set_operator_low(low);
        }
    }

    /// Reads a weight again; says whether it has moved.
    fn read_weight(&mut self, id: CgroupId) -> bool {
        let bfq = self.bfq;
        let Some(node) = self.nodes.get_mut(&id) else {
            return false;
        };
        let before = node.weight;
        node.weight = weight_of(node, bfq).filter(|(_, who)| node.heeds(*who));
        node.weight != before
    }
}

/// The weight that somebody has set, and who. Where BFQ schedules the disks its weight comes first, else `io.weight`; the
/// other counts where only that has been set: runc writes `io.bfq.weight` alone wherever BFQ is loaded, whether or not it
/// schedules a disk.
fn weight_of(node: &Node, bfq: bool) -> Option<(Weight, Ownership)> {
    let cgroup = &node.cgroup;
    let set = |found: Result<Option<IoWeight>>, knob: Knob| {
        let weight = found.ok().flatten()?.default;
        (weight != Weight::default()).then(|| (weight, node.file_ownership(knob.file())))
    };
    let of_io = || set(cgroup.io_weight(), Knob::IoWeight);
    let of_bfq = || set(cgroup.io_bfq_weight(), Knob::IoBfqWeight);
    if bfq {
        of_bfq().or_else(of_io)
    } else {
        of_io().or_else(of_bfq)
    }
}

/// A cgroup's `memory.low` in bytes; `max` is more than there is.
///
/// # Errors
/// As every reader of a cgroup.
pub fn low_of(cgroup: &Cgroup) -> Result<u64> {
    cgroup.memory_low().map(|limit| match limit {
        Limit::Bytes(bytes) => bytes,
        Limit::Max => u64::MAX,
    })
}

#[cfg(test)]
mod tests;
