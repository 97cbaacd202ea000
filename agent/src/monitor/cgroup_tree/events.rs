//! Following the tree by the kernel's events.

use std::time::Instant;

use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::knob::Knob;
use justitia_kernel::watch::{TreeWatcher, WatchEvent};

use super::node::DelegationCheck;
use super::rate_limit::RefreshKind;
use super::tree::{CgroupTree, Changes};
use crate::config::Config;

impl CgroupTree {
    /// Processes the events that have arrived, and refreshes of delegated cgroups as far as the rate limit allows.
    pub fn process_events(&mut self, config: &Config, now: Instant) -> Changes {
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
            self.process_event(event, config, now, &mut changes);
        }
        while let Some((id, kind)) = self.limiter.next(now) {
            // Those that were removed again meanwhile have cost as much.
            let before = changes.added.len();
            self.refresh_now(id, kind, config, now, &mut changes);
            self.limiter.charge(changes.added.len() - before);
        }
        changes
    }

    fn process_event(
        &mut self,
        event: WatchEvent,
        config: &Config,
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
                        Ok(child) => self.add(child, self.node_id(parent), config, now, changes),
                        Err(error) => self.note_unread(&error),
                    }
                }
            }
            WatchEvent::CgroupRemoved { parent, id, .. } => {
                self.top_level_changed |= parent == self.root.id();
                if let Some(id) = id {
                    self.remove(id, changes);
                }
            }
            WatchEvent::PopulatedChanged { id } => {
                self.refresh(id, RefreshKind::Populated, config, now, changes);
            }
            WatchEvent::FileWritten { id, name } => {
                let kind = match name.to_str() {
                    Some("io.weight" | "io.bfq.weight") => RefreshKind::Weight,
                    Some("memory.low") => RefreshKind::Low,
                    Some("cgroup.subtree_control") => RefreshKind::Children,
                    _ => return,
                };
                self.refresh(id, kind, config, now, changes);
            }
            WatchEvent::Overflow => self.events_lost = true,
        }
    }

    /// Refreshes the administrator's cgroups at once, delegated ones at the limited rate.
    fn refresh(
        &mut self,
        id: CgroupId,
        kind: RefreshKind,
        config: &Config,
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
            self.refresh_now(id, kind, config, now, changes);
        }
    }

    fn refresh_now(
        &mut self,
        id: CgroupId,
        kind: RefreshKind,
        config: &Config,
        now: Instant,
        changes: &mut Changes,
    ) {
        match kind {
            RefreshKind::Children => self.scan(id, config, now, changes),
            RefreshKind::Populated => {
                self.read_populated(id);
                if let Some(node) = self.nodes.get_mut(&id) {
                    node.next_check = DelegationCheck::start(now);
                }
                self.check_delegation(id, now, changes);
            }
            RefreshKind::Weight => changes.weights_changed |= self.read_weight(id),
            RefreshKind::Low => changes.knobs_written.push((id, Knob::MemoryLow)),
        }
    }
}
