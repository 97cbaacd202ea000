//! The weight tree as the kernel has it: which cgroups there are, their weights and their operators' wishes.
//! Kept up to date by events, not by rescanning.

mod crowd;
mod pace;

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use justitia_kernel::Result;
use justitia_kernel::cgroup::{Authority, Cgroup, CgroupFs, CgroupId};
use justitia_kernel::io::IoWeight;
use justitia_kernel::knob::Knob;
use justitia_kernel::memory::Limit;
use justitia_kernel::watch::{TreeWatcher, WatchEvent, is_exhausted};
use justitia_share::Weight;

use super::meter::Meter;
use crate::config::{Config, Override};
use crate::escape;
use crate::tell::status::WeightFrom;
use crowd::{Crowd, DEEPEST, LONGEST, Room};
use pace::{Again, Pace};

/// A cgroup that takes part.
#[derive(Debug)]
pub struct Node {
    /// The cgroup.
    pub cgroup: Cgroup,
    /// Its parent, unless that is the root.
    pub parent: Option<CgroupId>,
    /// Its children that take part.
    pub children: Vec<CgroupId>,
    /// What the configuration says of it.
    pub says: Override,
    /// Whether its parent is delegated: then others than the administrator may have made this cgroup, and what they
    /// say in its files counts for what the parent gets, not for how much that is.
    pub delegated: bool,
    /// Its own weight, and who has set it; `None` if nobody has.
    pub weight: Option<(Weight, Authority)>,
    /// Whether it has the I/O controller: whether what it does to disks is told, and can be limited.
    pub io: bool,
    /// Whether any process lives in it or below.
    pub populated: bool,
    /// Its `memory.low` as its operator has set it, bytes; 0 if nobody has.
    pub operators_low: u64,
    /// Who that is.
    pub operator: Authority,
    /// Its counters.
    pub meter: Meter,
}

impl Node {
    /// Whether the word of `who`, in one of its files, counts at all. A delegate's does where the parent is
    /// delegated; where it is not, the administrator has given away a file that divides what is everybody's.
    fn heeds(&self, who: Authority) -> bool {
        who == Authority::Administrator || self.delegated
    }

    /// The file pages that it keeps whatever happens, and those that it asks to keep of what its parent gets, bytes.
    /// `other` is its memory beside them, which its operator's `memory.low` counts too.
    #[must_use]
    pub fn floors(&self, other: u64) -> (u64, u64) {
        let low = self.operators_low.saturating_sub(other);
        let configured = self.says.floor.unwrap_or(0);
        // A rule's pattern may match as many cgroups as somebody makes.
        match (self.delegated, self.operator) {
            (false, Authority::Administrator) => (configured.max(low), 0),
            (false, Authority::Delegate) => (configured, 0),
            (true, Authority::Administrator) => (low, configured),
            (true, Authority::Delegate) => (0, configured.max(low)),
        }
    }

    /// Takes what its operator has put into `memory.low`.
    pub fn take_low(&mut self, low: u64) {
        self.operators_low = low;
        self.operator = self
            .cgroup
            .authority_over(Knob::MemoryLow.file())
            .unwrap_or(Authority::Delegate);
    }
}

/// What changed in the tree.
#[derive(Debug, Default)]
pub struct Changes {
    /// Cgroups that have come.
    pub come: Vec<CgroupId>,
    /// Cgroups that are gone.
    pub gone: Vec<CgroupId>,
    /// Knobs that somebody has written, ourselves perhaps.
    pub written: Vec<(CgroupId, Knob)>,
    /// Whether anybody's weight moved.
    pub weighed: bool,
}

/// The tree.
#[derive(Debug)]
pub struct Mirror {
    root: Cgroup,
    nodes: HashMap<CgroupId, Node>,
    top: Vec<CgroupId>,
    watcher: Option<TreeWatcher>,
    /// Whether BFQ schedules any disk: then its weights are the ones that people mean.
    bfq: bool,
    /// Why the tree has to be rescanned now and then, if events do not suffice.
    blind: Option<String>,
    /// Events were lost.
    lost: bool,
    crowd: Crowd,
    pace: Pace,
}

impl Mirror {
    /// An empty mirror of `fs`; [`Mirror::rescan`] fills it.
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
            bfq,
            blind,
            lost: false,
            crowd: Crowd::new(),
            pace: Pace::new(),
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
    pub fn blind(&self) -> Option<&str> {
        self.blind.as_deref()
    }

    /// Whether events were lost, and the tree has to be rescanned once.
    #[must_use]
    pub const fn lost(&self) -> bool {
        self.lost
    }

    /// Which cgroups are not told apart, and why.
    #[must_use]
    pub fn limits(&self) -> Vec<String> {
        self.crowd.limits(|id| self.path(id))
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
    pub fn order(&self) -> Vec<CgroupId> {
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
    pub fn is_unit(&self, node: &Node) -> bool {
        let others = |node: &Node| node.delegated && node.parent.is_some();
        let divides = |child: &CgroupId| {
            let child = self.nodes.get(child);
            child.is_some_and(|child| child.io && !others(child))
        };
        node.io && !others(node) && !node.children.iter().any(divides)
    }

    /// The cgroups among which disks are divided ([`Mirror::is_unit`]), in no order.
    pub fn units(&self) -> impl Iterator<Item = &Node> {
        self.nodes.values().filter(|node| self.is_unit(node))
    }

    /// A node and all below it.
    pub fn within(&self, id: CgroupId) -> impl Iterator<Item = CgroupId> {
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
    pub fn follow(&mut self, config: &Config, now: Instant) -> Changes {
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
                    if self.is_shut(parent) {
                        continue;
                    }
                    if self.is_given(parent) {
                        self.pace.note(parent, Again::Children);
                    } else if let Some(cgroup) = self.cgroup(parent)
                        && let Ok(child) = cgroup.child(&name)
                    {
                        self.admit(child, self.key(parent), config, now, &mut changes);
                    }
                }
                WatchEvent::CgroupRemoved { id: Some(id), .. } => self.remove(id, &mut changes),
                WatchEvent::CgroupRemoved { .. } => {}
                WatchEvent::PopulatedChanged { id } => {
                    self.again(id, Again::Populated, config, now, &mut changes);
                }
                WatchEvent::FileWritten { id, name } => {
                    let what = match name.to_str() {
                        Some("io.weight" | "io.bfq.weight") => Again::Weight,
                        Some("memory.low") => Again::Low,
                        Some("cgroup.subtree_control") => Again::Children,
                        _ => continue,
                    };
                    self.again(id, what, config, now, &mut changes);
                }
                WatchEvent::Overflow => self.lost = true,
            }
        }
        while let Some((id, what)) = self.pace.next(now) {
            // Those that went again meanwhile have cost as much.
            let come = changes.come.len();
            self.look_again(id, what, config, now, &mut changes);
            self.pace.admitted(changes.come.len() - come);
        }
        changes
    }

    /// Looks again at something of a cgroup; if that is not the administrator's own, as fast as is affordable.
    fn again(
        &mut self,
        id: CgroupId,
        what: Again,
        config: &Config,
        now: Instant,
        changes: &mut Changes,
    ) {
        let delegated = match what {
            // Who may make children may also say which controllers they have.
            Again::Children => self.is_given(id),
            _ => self.nodes.get(&id).is_some_and(|n| n.delegated),
        };
        if delegated {
            self.pace.note(id, what);
        } else {
            self.look_again(id, what, config, now, changes);
        }
    }

    fn look_again(
        &mut self,
        id: CgroupId,
        what: Again,
        config: &Config,
        now: Instant,
        changes: &mut Changes,
    ) {
        match what {
            Again::Children => self.scan(id, config, now, changes),
            Again::Populated => self.read_populated(id),
            Again::Weight => changes.weighed |= self.read_weight(id),
            Again::Low => changes.written.push((id, Knob::MemoryLow)),
        }
    }

    /// Whether others than the administrator may make cgroups below `id`.
    fn is_given(&self, id: CgroupId) -> bool {
        let Some(node) = self.nodes.get(&id) else {
            return false;
        };
        node.delegated || !matches!(node.cgroup.authority(), Ok(Authority::Administrator))
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
        let known = self.order();
        self.scan(self.root.id(), config, now, changes);
        for id in known {
            self.scan(id, config, now, changes);
            self.read_populated(id);
            changes.weighed |= self.read_weight(id);
            // Whether anybody has, is looked up.
            changes.written.push((id, Knob::MemoryLow));
        }
    }

    /// What was delegated, at or above `id`: the first whose children somebody else may have made.
    fn top_of(&self, id: CgroupId) -> Option<CgroupId> {
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
    fn is_shut(&self, id: CgroupId) -> bool {
        self.top_of(id).is_some_and(|top| self.crowd.is_shut(top))
    }

    /// Makes one tenant of everything below `top`.
    fn shut(&mut self, top: CgroupId, changes: &mut Changes) {
        tracing::warn!(
            tenant = self.path(top),
            "too many cgroups below what was delegated: it is one tenant from now on"
        );
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
        if too_deep || self.is_shut(id) {
            return;
        }
        let Ok(children) = cgroup.child_entries() else {
            return;
        };
        for child in children {
            if self.is_shut(id) {
                return;
            }
            if !self.nodes.contains_key(&child.id)
                && let Ok(child) = cgroup.child(&child.name)
            {
                self.admit(child, self.key(id), config, now, changes);
            }
        }
    }

    /// Takes a cgroup in, and its descendants, if it has the memory controller and is not excluded.
    fn admit(
        &mut self,
        cgroup: Cgroup,
        parent: Option<CgroupId>,
        config: &Config,
        now: Instant,
        changes: &mut Changes,
    ) {
        let id = cgroup.id();
        let says = config.overrides(cgroup.path());
        let controllers = cgroup.controllers().unwrap_or_default();
        let memory = controllers.has("memory");
        let long = cgroup.path().as_os_str().as_bytes().len() > LONGEST;
        if self.nodes.contains_key(&id) || !memory || long || says.exclude == Some(true) {
            return;
        }
        let ground = match parent {
            None => self.root.authority(),
            Some(parent) => match self.nodes.get(&parent) {
                // Below what is delegated everything is.
                Some(parent) if parent.delegated => Ok(Authority::Delegate),
                Some(parent) => parent.cgroup.authority(),
                None => return, // it went meanwhile
            },
        };
        let delegated = !matches!(ground, Ok(Authority::Administrator));
        let top = parent.filter(|_| delegated).and_then(|p| self.top_of(p));
        match self.crowd.come(top, self.nodes.len()) {
            Room::Yes => {}
            Room::No => return,
            Room::Shut(top) => return self.shut(top, changes),
        }
        let node = Node {
            cgroup,
            parent,
            children: Vec::new(),
            says,
            delegated,
            weight: None,
            io: controllers.has("io"),
            populated: true,
            operators_low: 0,
            operator: Authority::Delegate,
            meter: Meter::new(now),
        };
        match parent.and_then(|parent| self.nodes.get_mut(&parent)) {
            Some(parent) => parent.children.push(id),
            None => self.top.push(id),
        }
        self.nodes.insert(id, node);
        changes.come.push(id);
        self.scan(id, config, now, changes);
        // Only now is it watched: who makes a cgroup writes its knobs right after, and what was written between a look and
        // the watch nobody would tell.
        self.read_populated(id);
        self.read_weight(id);
        self.read_low(id);
    }

    fn remove(&mut self, id: CgroupId, changes: &mut Changes) {
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        for child in node.children.clone() {
            self.remove(child, changes);
        }
        let top = self.top_of(id).filter(|top| *top != id);
        let Some(node) = self.nodes.remove(&id) else {
            return;
        };
        self.crowd.gone(top);
        self.crowd.forget(id);
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
        changes.gone.push(id);
    }

    /// Drops a cgroup that a reader found gone.
    pub fn found_gone(&mut self, id: CgroupId, changes: &mut Changes) {
        self.remove(id, changes);
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
            node.take_low(low);
        }
    }

    /// Reads a weight again; says whether it has moved.
    fn read_weight(&mut self, id: CgroupId) -> bool {
        let bfq = self.bfq;
        let Some(node) = self.nodes.get_mut(&id) else {
            return false;
        };
        let before = node.weight;
        node.weight = weight_of(&node.cgroup, bfq).filter(|(_, who)| node.heeds(*who));
        node.weight != before
    }
}

/// The weight that somebody has set, and who. Where BFQ schedules the disks its weight comes first, else `io.weight`; the
/// other counts where only that has been set: runc writes `io.bfq.weight` alone wherever BFQ is loaded, whether or not it
/// schedules a disk.
fn weight_of(cgroup: &Cgroup, bfq: bool) -> Option<(Weight, Authority)> {
    let set = |found: Result<Option<IoWeight>>, knob: Knob| {
        let weight = found.ok().flatten()?.default;
        let who = cgroup.authority_over(knob.file());
        (weight != Weight::default()).then_some((weight, who.unwrap_or(Authority::Delegate)))
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
