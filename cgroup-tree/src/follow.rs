//! Following the kernel: adding cgroups to the tree and removing them, by rescans and by the kernel's events.

use std::collections::BTreeSet;
use std::time::Instant;

use justitia_kernel::cgroup::{Cgroup, CgroupId, Ownership};
use justitia_kernel::knob::Knob;
use justitia_kernel::memory::Limit;
use justitia_kernel::watch::{TreeWatcher, WatchEvent, is_watch_limit};
use justitia_kernel::{Error, Result};

use crate::inquiry::Inquiry;
use crate::limits::{Admission, MAX_DEPTH, RefreshKind};
use crate::node::{DelegationCheck, Departed, Left, Node, Standing};
use crate::rules::Rule;
use crate::tree::{CgroupTree, Changes};

/// The most cgroups of which it is asked in one turn what they are. Each costs some ten to some hundred microseconds.
const MAX_IDENTIFIED: usize = 32;

impl<M> CgroupTree<M> {
    /// Compares the whole tree with the kernel's.
    pub fn rescan(&mut self, rules: &[Rule], now: Instant, changes: &mut Changes) {
        let gone: Vec<CgroupId> = self
            .nodes
            .values()
            .filter(|n| !n.cgroup.is_alive())
            .map(|n| n.cgroup.id())
            .collect();
        for id in gone {
            self.remove(id, changes);
        }
        self.events_lost = false;
        let known = self.breadth_first();
        self.scan(self.root.id(), rules, now, changes);
        for id in known {
            self.scan(id, rules, now, changes);
            self.read_populated(id);
            changes.weights_changed |= self.read_weight(id);
            // Perhaps it was; the reader compares.
            changes.knobs_written.push((id, Knob::MemoryLow));
        }
        self.identify(usize::MAX, rules, now, changes);
    }

    /// Adds the children of `id` that are not known yet, and their descendants; removes those that have lost the memory
    /// controller.
    pub(crate) fn scan(
        &mut self,
        id: CgroupId,
        rules: &[Rule],
        now: Instant,
        changes: &mut Changes,
    ) {
        let Some(cgroup) = self.cgroup(id) else {
            return;
        };
        // Watch first, then list: a child that is made in between is seen by both.
        if let Some(watcher) = &mut self.watcher
            && let Err(error) = watcher.add(&cgroup)
        {
            if error.is_gone() {
                // No event will tell, as it is not watched.
                return self.remove(id, changes);
            }
            if is_watch_limit(&error) {
                self.events_incomplete
                    .get_or_insert_with(|| error.to_string());
            }
        }
        let too_deep = cgroup.path().components().count() >= MAX_DEPTH;
        if too_deep || self.is_collapsed(id) {
            return;
        }
        let children = match cgroup.child_entries() {
            Ok(children) => children,
            Err(error) => return self.note_unread(&error),
        };
        #[cfg(test)]
        {
            self.scans += 1;
        }
        // Those that are left out now say so again.
        let had_untracked = self.untracked(id).map(std::mem::take);
        let events_lost = std::mem::take(&mut self.events_lost);
        for child in children {
            if self.is_collapsed(id) {
                break;
            }
            if self.nodes.contains_key(&child.id) {
                self.read_controllers(child.id, changes);
                continue;
            }
            match cgroup.child(&child.name) {
                Ok(child) => self.add(child, self.node_id(id), rules, now, changes),
                Err(error) => self.note_unread(&error),
            }
        }
        // One that could not be read may be one of them.
        if self.events_lost
            && let Some(untracked) = self.untracked(id)
        {
            untracked.extend(had_untracked.into_iter().flatten());
        }
        self.events_lost |= events_lost;
    }

    /// Adds children of `id` that were left out, as long as there is a place for one. The directory is not listed: of ten
    /// thousand cgroups that would take a second, for each one that is removed.
    fn add_untracked(&mut self, id: CgroupId, rules: &[Rule], now: Instant, changes: &mut Changes) {
        let Some(cgroup) = self.cgroup(id) else {
            return;
        };
        while let Some(name) = self.untracked(id).and_then(BTreeSet::pop_first) {
            let lost = std::mem::take(&mut self.events_lost);
            match cgroup.child(&name) {
                Ok(child) => self.add(child, self.node_id(id), rules, now, changes),
                Err(error) => self.note_unread(&error),
            }
            let unread = self.events_lost;
            self.events_lost |= lost;
            let Some(untracked) = self.untracked(id) else {
                return;
            };
            // It is left out again, or could not be read.
            if unread {
                untracked.insert(name);
                return;
            }
            if untracked.contains(&name) {
                return;
            }
        }
    }

    /// Reads again which controllers a known cgroup has. Without the memory controller it is no tenant.
    fn read_controllers(&mut self, id: CgroupId, changes: &mut Changes) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        match node.cgroup.controllers() {
            Ok(controllers) => {
                let io = controllers.has("io");
                let other = std::mem::replace(&mut node.io, io) != io;
                if !controllers.has("memory") {
                    self.remove(id, changes);
                } else if other {
                    // The kernel has dropped what stood in the controller's files. No event tells that.
                    changes.weights_changed |= self.read_weight(id);
                }
            }
            Err(error) => self.note_unread(&error),
        }
    }

    /// Adds a cgroup and its descendants, if it has the memory controller and is not excluded.
    pub(crate) fn add(
        &mut self,
        cgroup: Cgroup,
        parent: Option<CgroupId>,
        rules: &[Rule],
        now: Instant,
        changes: &mut Changes,
    ) {
        let id = cgroup.id();
        let controllers = match cgroup.controllers() {
            Ok(controllers) => controllers,
            Err(error) => return self.note_unread(&error),
        };
        if self.nodes.contains_key(&id) || !controllers.has("memory") {
            return;
        }
        let in_delegation = match parent {
            None => !matches!(self.root.ownership(), Ok(Ownership::Admin)),
            Some(parent) if self.nodes.contains_key(&parent) => self.is_delegated(parent),
            Some(_) => return, // it was removed meanwhile
        };
        let (identity, overrides) = self.rules_of_new(rules, cgroup.path(), in_delegation);
        if overrides.exclude == Some(true) {
            return self.exclude(cgroup, parent);
        }
        if !self.is_admitted(&cgroup, parent, in_delegation, changes) {
            return;
        }
        let owner_is_author = parent
            .and_then(|parent| self.nodes.get(&parent))
            .is_none_or(|parent| parent.child_owner_is_author(false));
        let delegate_xattr = !in_delegation && cgroup.has_delegate_xattr();
        let node = Node {
            cgroup,
            parent,
            children: Vec::new(),
            excluded: Vec::new(),
            excluded_cache: 0,
            departed: Departed::default(),
            held: 0,
            used: 0,
            untracked: BTreeSet::new(),
            overrides,
            in_delegation,
            owner_is_author,
            delegate_xattr,
            namespace_root: false,
            next_check: DelegationCheck::start(now),
            weight: None,
            standing: Standing::default(),
            identity,
            inquiry: Inquiry::default(),
            io: controllers.has("io"),
            populated: true,
            external_low: 0,
            low_author: Ownership::Delegatee,
            memory: (self.new_memory)(now),
        };
        match parent.and_then(|parent| self.nodes.get_mut(&parent)) {
            Some(parent) => parent.children.push(id),
            None => self.top_level.push(id),
        }
        self.nodes.insert(id, node);
        changes.added.push(id);
        self.scan(id, rules, now, changes);
        self.read_all(id, now, changes);
    }

    /// Reads the files of a new cgroup. The scan has begun to watch it; only now are they read. A cgroup's knobs are usually
    /// written right after it was made, and no event would tell of a write between a reading and the watch.
    fn read_all(&mut self, id: CgroupId, now: Instant, changes: &mut Changes) {
        self.read_populated(id);
        self.read_weight(id);
        self.read_low(id);
        self.check_delegation(id, now, changes);
        self.inquire(id, now);
    }

    /// Whether one more cgroup can be tracked on its own. If not, marks or collapses the ancestor that its pages count
    /// for.
    fn is_admitted(
        &mut self,
        cgroup: &Cgroup,
        parent: Option<CgroupId>,
        in_delegation: bool,
        changes: &mut Changes,
    ) -> bool {
        let root = parent
            .filter(|_| in_delegation)
            .and_then(|parent| self.delegation_root(parent));
        if self.quota.is_path_too_long(parent, cgroup.path()) {
            if let Some(parent) = parent {
                self.collapse(parent, changes);
            }
            return false;
        }
        match self.quota.admit(root, self.nodes.len()) {
            Admission::Granted => true,
            Admission::Denied => {
                if root.is_none() {
                    let untracked = self.untracked(parent.unwrap_or(self.root.id()));
                    if let (Some(untracked), Some(name)) = (untracked, cgroup.name()) {
                        untracked.insert(name.to_owned());
                    }
                }
                false
            }
            Admission::Collapse(top) => {
                tracing::warn!(
                    tenant = self.path(top),
                    "too many cgroups below this delegated cgroup: it is one tenant from now on"
                );
                self.collapse(top, changes);
                false
            }
        }
    }

    /// Notes an excluded cgroup in its parent, to subtract what the kernel charges to the parent for it, and not to take
    /// from it with the parent's.
    pub(crate) fn exclude(&mut self, cgroup: Cgroup, parent: Option<CgroupId>) {
        let excluded = match parent {
            None => {
                self.excluded.retain(Cgroup::is_alive);
                Some(&mut self.excluded)
            }
            Some(parent) => self.nodes.get_mut(&parent).map(|p| &mut p.excluded),
        };
        if let Some(excluded) = excluded
            && excluded.iter().all(|c| c.id() != cgroup.id())
        {
            excluded.push(cgroup);
        }
    }

    /// Removes a cgroup and its descendants.
    pub fn remove(&mut self, id: CgroupId, changes: &mut Changes) {
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        for child in node.children.clone() {
            self.remove(child, changes);
        }
        let root = self.delegation_root(id).filter(|root| *root != id);
        let Some(node) = self.nodes.remove(&id) else {
            return;
        };
        self.quota.release(root);
        self.quota.forget(id);
        self.top_level_changed |= node.parent.is_none();
        let above = match node.parent {
            None => Some((&mut self.top_level, &mut self.departed)),
            Some(parent) => {
                let parent = self.nodes.get_mut(&parent);
                parent.map(|parent| (&mut parent.children, &mut parent.departed))
            }
        };
        if let Some((siblings, departed)) = above {
            siblings.retain(|sibling| *sibling != id);
            let (held, used) = (node.held, node.used.min(node.held));
            departed.add(Left { held, used }, Instant::now());
        }
        if let Some(watcher) = &mut self.watcher {
            watcher.remove(id);
        }
        changes.removed.push(id);
    }

    pub(crate) fn read_populated(&mut self, id: CgroupId) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        match node.cgroup.events() {
            Ok(events) => node.populated = events.populated,
            Err(error) => self.note_unread(&error),
        }
    }

    /// A change that could not be read for lack of a file descriptor or of memory is found by a rescan.
    pub(crate) fn note_unread(&mut self, error: &Error) {
        self.events_lost |= error.is_exhausted();
    }

    /// Reads what its operator wrote to `memory.low`.
    pub fn read_low(&mut self, id: CgroupId) {
        if let Some(node) = self.nodes.get(&id) {
            let low = memory_low(&node.cgroup);
            self.record_low(id, low.map(Some));
        }
    }

    /// Takes over what was read of a `memory.low` of its operator's, bytes; `None` if it is not.
    pub fn record_low(&mut self, id: CgroupId, read: Result<Option<u64>>) {
        match (read, self.nodes.get_mut(&id)) {
            (Ok(Some(low)), Some(node)) => node.set_external_low(low),
            (Err(error), _) => self.note_unread(&error),
            _ => {}
        }
    }
}

impl<M> CgroupTree<M> {
    /// Processes the events that have arrived, and refreshes of delegated cgroups as far as the rate limit allows.
    pub fn process_events(&mut self, rules: &[Rule], now: Instant) -> Changes {
        let mut changes = Changes::default();
        let events = match self.watcher.as_mut().map(TreeWatcher::drain) {
            Some(Ok(events)) => events,
            Some(Err(error)) => {
                tracing::warn!(%error, "cgroup events were lost; the tree will be rescanned");
                vec![WatchEvent::Overflow]
            }
            None => Vec::new(),
        };
        for event in events {
            self.process_event(event, rules, now, &mut changes);
        }
        while let Some((id, kind)) = self.limiter.next(now) {
            // Those that were removed again meanwhile have cost as much.
            let before = changes.added.len();
            self.refresh_now(id, kind, rules, now, &mut changes);
            self.limiter.charge(changes.added.len() - before);
        }
        self.identify(MAX_IDENTIFIED, rules, now, &mut changes);
        changes
    }

    fn process_event(
        &mut self,
        event: WatchEvent,
        rules: &[Rule],
        now: Instant,
        changes: &mut Changes,
    ) {
        match event {
            WatchEvent::CgroupCreated { parent, name } => {
                self.top_level_changed |= parent == self.root.id();
                if self.is_collapsed(parent) {
                    return;
                }
                if self.is_delegated(parent) {
                    self.limiter.enqueue(parent, RefreshKind::Children);
                } else if let Some(cgroup) = self.cgroup(parent) {
                    match cgroup.child(&name) {
                        Ok(child) => self.add(child, self.node_id(parent), rules, now, changes),
                        Err(error) => self.note_unread(&error),
                    }
                }
            }
            WatchEvent::CgroupRemoved { parent, name, id } => {
                self.top_level_changed |= parent == self.root.id();
                if let Some(id) = id {
                    self.remove(id, changes);
                }
                // It was left out itself, or there is a place for one that was.
                let untracked = self.untracked(parent);
                let has_more = untracked.is_some_and(|names| {
                    names.remove(&name);
                    !names.is_empty()
                });
                if has_more && self.is_delegated(parent) {
                    self.limiter.enqueue(parent, RefreshKind::Children);
                } else if has_more {
                    self.add_untracked(parent, rules, now, changes);
                }
            }
            WatchEvent::PopulatedChanged { id } => {
                self.refresh(id, RefreshKind::Populated, rules, now, changes);
            }
            WatchEvent::FileWritten { id, name } => {
                let kind = match name.to_str() {
                    Some("io.weight" | "io.bfq.weight" | "io.latency") => RefreshKind::Weight,
                    Some("memory.low") => RefreshKind::Low,
                    Some("cgroup.subtree_control") => RefreshKind::Children,
                    _ => return,
                };
                self.refresh(id, kind, rules, now, changes);
            }
            WatchEvent::Overflow => self.events_lost = true,
        }
    }

    /// Refreshes the administrator's cgroups at once, delegated ones at the limited rate.
    fn refresh(
        &mut self,
        id: CgroupId,
        kind: RefreshKind,
        rules: &[Rule],
        now: Instant,
        changes: &mut Changes,
    ) {
        let limited = match kind {
            // A delegatee may make children, and may enable controllers for them.
            RefreshKind::Children => self.is_delegated(id),
            _ => self.nodes.get(&id).is_some_and(|n| n.in_delegation),
        };
        if limited {
            self.limiter.enqueue(id, kind);
        } else {
            self.refresh_now(id, kind, rules, now, changes);
        }
    }

    fn refresh_now(
        &mut self,
        id: CgroupId,
        kind: RefreshKind,
        rules: &[Rule],
        now: Instant,
        changes: &mut Changes,
    ) {
        match kind {
            RefreshKind::Children => self.scan(id, rules, now, changes),
            RefreshKind::Populated => {
                self.read_populated(id);
                if let Some(node) = self.nodes.get_mut(&id) {
                    node.next_check = DelegationCheck::start(now);
                }
                self.check_delegation(id, now, changes);
            }
            RefreshKind::Weight => {
                changes.weights_changed |= self.read_weight(id);
                self.inquire_anew(id, now);
            }
            RefreshKind::Low => changes.knobs_written.push((id, Knob::MemoryLow)),
        }
    }
}

/// A cgroup's `memory.low` in bytes; `u64::MAX` for `max`.
///
/// # Errors
/// As every reader of a cgroup.
pub fn memory_low(cgroup: &Cgroup) -> Result<u64> {
    cgroup.memory_low().map(|limit| match limit {
        Limit::Bytes(bytes) => bytes,
        Limit::Max => u64::MAX,
    })
}
