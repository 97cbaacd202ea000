//! Restores the weights declared to runtimes and in units where the kernel has others: runc does not tell systemd a container's
//! weight, so a reload of systemd sets it to 100.
//!
//! Only with `[weights] restore`, and only in cgroups that the administrator makes. All writes go through the knob store. As
//! for every knob, the writer of a different number decides whether it is replaced.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use justitia_api::{Action, Reason, Rule, escape};
use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::knob::Knob;
use justitia_share::Weight;

use crate::knobs::{KnobStore, RestoreOutcome, WriteOutcome};
use crate::model::Key;
use crate::page_cache::protection::marked_external;
use crate::page_cache::{CgroupTree, Node};
use crate::status::decision_log::Decided;

#[cfg(test)]
mod tests;

/// The most knobs written in one tick; the others wait for the next. Each takes a synced journal entry.
const MAX_WRITES: usize = 64;

/// Keeps declared weights in the kernel's files.
#[derive(Debug, Default)]
pub(crate) struct DeclaredWeights {
    /// The knobs that have been seen. Writes to them are watched.
    watched: HashSet<(CgroupId, Knob)>,
    /// Why each knob of ours has its value.
    reasons: HashMap<(CgroupId, Knob), Rule>,
}

impl DeclaredWeights {
    /// One tick: writes declared weights that neither file has, and restores knobs without a declared weight. Without `restore`
    /// it restores all. Returns the changes.
    pub(crate) fn tick(
        &mut self,
        store: &mut KnobStore,
        cgroups: &CgroupTree,
        restore: bool,
        now: Instant,
    ) -> Vec<Decided> {
        let mut decided = self.give_back(store, cgroups, restore);
        if !restore {
            self.watched.clear();
            return decided;
        }
        for id in cgroups.breadth_first() {
            let Some(node) = cgroups.get(id).filter(|node| is_ours(node)) else {
                continue;
            };
            let drifts = cgroups.drifts(node);
            for (knob, found) in files(node) {
                if decided.len() >= MAX_WRITES {
                    return decided;
                }
                decided.extend(self.look(store, node, knob, found, drifts, now));
            }
        }
        decided
    }

    /// Handles one file of weights.
    fn look(
        &mut self,
        store: &mut KnobStore,
        node: &Node,
        knob: Knob,
        found: Weight,
        drifts: bool,
        now: Instant,
    ) -> Option<Decided> {
        let id = node.cgroup.id();
        let declared = node.identity().declared.as_ref()?;
        let weight = written(node, knob)?;
        let value = format!("default {weight}");
        let watched = !self.watched.insert((id, knob));
        if !watched {
            store.watch(&node.cgroup, knob);
        }
        let owned = store.applied(id, knob).map(|applied| *applied == value);
        match owned {
            Some(true) if found == weight => {
                store.settle(id, knob);
                return None;
            }
            None if declared.is_met_by(found) => {
                store.settle_declared(id, knob);
                return None;
            }
            None if !drifts || !store.may_write(id, knob) => return None,
            _ => {}
        }
        let rule = Rule::WeightDrift {
            declared: declared.weight.get(),
            file: escape::encode(declared.file.as_os_str()),
            found: found.get(),
        };
        let path = escape::encode(node.cgroup.path().as_os_str());
        match store.put_declared(&node.cgroup, knob, &value, watched, now) {
            Ok(WriteOutcome::Written) => {
                tracing::debug!(tenant = path, %knob, value, why = %rule, "the declared weight was written");
                self.reasons.insert((id, knob), rule.clone());
                let (knob, from, to) = (knob.to_string(), None, value);
                Some(Decided::new(
                    Key::Cgroup(id),
                    Action::Set { knob, from, to },
                    rule,
                ))
            }
            Ok(WriteOutcome::External { applied, found, by }) => {
                tracing::info!(tenant = path, %knob, found, by, "external: another has set it; its weight drifts");
                let applied = Some(applied).filter(|applied| !applied.is_empty());
                let by = Some(by).filter(|by| !by.is_empty());
                let rule = Rule::ExternalWrite { found, applied, by };
                Some(marked_external(id, knob, rule))
            }
            Ok(_) => None,
            Err(error) => {
                tracing::debug!(tenant = path, %knob, %error, "the declared weight could not be written");
                None
            }
        }
    }

    /// Restores a knob that is needed no more.
    fn give_back(
        &mut self,
        store: &mut KnobStore,
        cgroups: &CgroupTree,
        restore: bool,
    ) -> Vec<Decided> {
        let is_over = |id: CgroupId| !restore || cgroups.get(id).is_none_or(|node| !is_ours(node));
        let over: Vec<(CgroupId, Knob)> = store
            .owned()
            .map(|(id, knob, ..)| (id, knob))
            .filter(|(id, knob)| matches!(knob, Knob::IoWeight | Knob::IoBfqWeight) && is_over(*id))
            .collect();
        let mut decided = Vec::new();
        for (id, knob) in over {
            self.reasons.remove(&(id, knob));
            if let Some(RestoreOutcome::Restored) = store.restore(id, knob) {
                let knob = knob.to_string();
                let why = match restore {
                    true => "no weight is declared any more",
                    false => "[weights] restore is off",
                };
                let reason = Reason::Text(why.to_owned());
                decided.push(Decided::new(
                    Key::Cgroup(id),
                    Action::Restore { knob },
                    reason,
                ));
            }
        }
        decided
    }

    /// A cgroup was removed, or is no tenant any more.
    pub(crate) fn on_cgroup_removed(&mut self, id: CgroupId) {
        self.watched.retain(|(of, _)| *of != id);
        self.reasons.retain(|(of, _), _| *of != id);
    }

    /// Why a knob of ours has its value.
    #[must_use]
    pub(crate) fn reason(&self, id: CgroupId, knob: Knob) -> Option<Reason> {
        let rule = self.reasons.get(&(id, knob))?;
        Some(rule.clone().into())
    }
}

/// Whether a cgroup's declared weight is written. In a delegated subtree the owner's weights are left alone.
fn is_ours(node: &Node) -> bool {
    !node.in_delegation && node.identity().declared.is_some() && node.identity().part.is_none()
}

/// The cgroup's weight files, and their current values.
fn files(node: &Node) -> impl Iterator<Item = (Knob, Weight)> + use<> {
    let (io, bfq) = node.default_weights();
    let io = io.map(|weight| (Knob::IoWeight, weight));
    let bfq = bfq.map(|weight| (Knob::IoBfqWeight, weight));
    io.into_iter().chain(bfq)
}

/// The number that the runtime or systemd writes to a file for the declared weight; siblings' files hold such numbers. `None`
/// without one.
fn written(node: &Node, knob: Knob) -> Option<Weight> {
    let declared = node.identity().declared.as_ref()?;
    if knob == Knob::IoBfqWeight {
        return declared.in_bfq_weight();
    }
    let (_, bfq) = node.default_weights();
    declared.in_io_weight(bfq.is_some())
}
