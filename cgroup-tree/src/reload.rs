//! Other rules for the tree that is followed: what a reload of the configuration changes, and nothing else.

use std::collections::HashMap;
use std::time::Instant;

use justitia_kernel::cgroup::{Cgroup, CgroupId};

use crate::limits::Admission;
use crate::node::Node;
use crate::rules::{Rule, Subject, overrides};
use crate::tree::{CgroupTree, Changes};

impl<M> CgroupTree<M> {
    /// Goes on with other rules. A cgroup that they exclude now goes with everything below it, one that they exclude no
    /// more comes; all others stay, with what is known of them.
    pub fn apply_rules(&mut self, rules: &[Rule], now: Instant, changes: &mut Changes) {
        self.override_anew(rules, now, changes);
        for id in self.breadth_first() {
            // What lay below an excluded one went with it.
            let Some(node) = self.nodes.get(&id) else {
                continue;
            };
            if node.overrides.exclude == Some(true) {
                let (cgroup, parent) = (node.cgroup.clone(), node.parent);
                self.remove(id, changes);
                self.exclude(cgroup, parent);
            }
        }
        let top_level = std::mem::take(&mut self.excluded);
        let mut excluded: Vec<(Cgroup, Option<CgroupId>)> =
            top_level.into_iter().map(|cgroup| (cgroup, None)).collect();
        for (id, node) in &mut self.nodes {
            let below = std::mem::take(&mut node.excluded);
            excluded.extend(below.into_iter().map(|cgroup| (cgroup, Some(*id))));
        }
        // Those that are still excluded are noted again.
        for (cgroup, parent) in excluded {
            self.top_level_changed |= parent.is_none();
            self.add(cgroup, parent, rules, now, changes);
        }
        changes.weights_changed = true;
    }

    /// Reads the rules anew for each cgroup, and decides anew which settings count in it, parents first.
    fn override_anew(&mut self, rules: &[Rule], now: Instant, changes: &mut Changes) {
        let ids = self.breadth_first();
        let before: HashMap<CgroupId, Option<CgroupId>> =
            ids.iter().map(|id| (*id, self.counted_for(*id))).collect();
        for id in &ids {
            let Some(node) = self.nodes.get(id) else {
                continue;
            };
            let parent = node.parent.and_then(|parent| self.nodes.get(&parent));
            let in_delegation = parent.map_or(node.in_delegation, Node::is_delegated);
            let owner_is_author = self.is_owner_author(node);
            let subject = Subject {
                path: node.cgroup.path(),
                identity: &node.identity,
                made: in_delegation,
            };
            let says = overrides(rules, &subject);
            let Some(node) = self.nodes.get_mut(id) else {
                continue;
            };
            node.overrides = says;
            if (node.in_delegation, node.owner_is_author) != (in_delegation, owner_is_author) {
                node.in_delegation = in_delegation;
                node.owner_is_author = owner_is_author;
                node.set_external_low(node.external_low);
                self.read_weight(*id);
                // Which answers are believed depends on whether a delegatee may have made the cgroup.
                self.inquire(*id, now);
            }
        }
        let mut collapsed = Vec::new();
        for id in &ids {
            let (before, now) = (before.get(id).copied().flatten(), self.counted_for(*id));
            if before == now {
                continue;
            }
            self.quota.release(before);
            if now.is_some()
                && let Admission::Collapse(top) = self.quota.admit(now, self.nodes.len())
            {
                collapsed.push(top);
            }
        }
        for top in collapsed {
            self.collapse(top, changes);
        }
    }

    /// The delegated cgroup whose cgroups are counted, this one among them.
    fn counted_for(&self, id: CgroupId) -> Option<CgroupId> {
        self.delegation_root(id).filter(|root| *root != id)
    }
}
