//! The weights of one disk: decided by the law, written through the knob store.

use std::collections::HashMap;

use justitia_kernel::cgroup::{Cgroup, CgroupId};
use justitia_kernel::io::DevId;
use justitia_kernel::knob::{Knob, read_raw};
use justitia_share::{Demand, NodeId, Tree};

use super::actuator::Controller;
use super::law::{Contention, Corrected, Law, Looked, Used};
use crate::device::ours::{ours_to_write, still_stands, told};
use crate::knobs::{KnobStore, WriteOutcome};

/// A changed or restored weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its cgroup.
    pub id: CgroupId,
    /// The new value; `None` for the original one.
    pub to: Option<String>,
    /// The reason.
    pub why: String,
}

/// Why weights are restored.
const OVER: &str = "it does not contend for the disk any more: its own weight counts again";

/// A disk that is divided by weight.
#[derive(Debug)]
pub struct Weighted {
    controller: Controller,
    device: DevId,
    law: Law,
    /// The cgroups of the last interval's tree, by node.
    ids: Vec<CgroupId>,
    standing: HashMap<CgroupId, u64>,
}

impl Weighted {
    /// A disk without samples.
    #[must_use]
    pub fn new(controller: Controller, device: DevId) -> Self {
        Self {
            controller,
            device,
            law: Law::new(controller.is_exact()),
            ids: Vec::new(),
            standing: HashMap::new(),
        }
    }

    /// The controller that divides the disk.
    #[must_use]
    pub const fn controller(&self) -> Controller {
        self.controller
    }

    const fn knob(&self) -> Knob {
        self.controller.knob(self.device)
    }

    /// Whether weights are corrected.
    #[must_use]
    pub fn engaged(&self) -> bool {
        self.law.engaged()
    }

    /// See [`Law::contention`].
    #[must_use]
    pub fn contention(&self) -> Contention {
        self.law.contention()
    }

    /// See [`Law::part`].
    #[must_use]
    pub fn part(&self, id: CgroupId) -> Option<f64> {
        self.law.part(id.0)
    }

    /// See [`Law::forget`].
    pub fn forget(&mut self) {
        self.law.forget();
    }

    /// A cgroup was removed.
    pub fn gone(&mut self, id: CgroupId) {
        self.standing.remove(&id);
    }

    /// Handles an interval; returns the weights of all contending tenants. `nodes` has each cgroup's node in the tree.
    pub fn step(
        &mut self,
        tree: &Tree<Demand>,
        nodes: &HashMap<CgroupId, NodeId>,
        looked: Looked,
        used: &[Used],
    ) -> Vec<Corrected> {
        self.ids = vec![CgroupId(0); tree.len()];
        for (id, node) in nodes {
            if let Some(of) = self.ids.get_mut(node.index()) {
                *of = *id;
            }
        }
        let ids: Vec<u64> = self.ids.iter().map(|id| id.0).collect();
        self.law
            .step(tree, &ids, looked, used, self.controller.most())
    }

    /// Writes the weights of the last interval. `find` finds a cgroup, if it still exists.
    pub fn apply<'a>(
        &mut self,
        corrected: &[Corrected],
        find: impl Fn(CgroupId) -> Option<&'a Cgroup>,
        store: &mut KnobStore,
    ) -> Vec<Change> {
        let knob = self.knob();
        let mut changes = Vec::new();
        let contends = |id: &CgroupId| corrected.iter().any(|c| self.ids[c.node.index()] == *id);
        let standing = self.standing.keys().copied();
        let over: Vec<CgroupId> = standing.filter(|id| !contends(id)).collect();
        for id in over {
            self.standing.remove(&id);
            store.restore(id, knob);
            changes.push(Change {
                id,
                to: None,
                why: OVER.to_owned(),
            });
        }
        for one in corrected {
            let id = self.ids[one.node.index()];
            let Some(cgroup) = find(id) else {
                continue;
            };
            if self.standing.get(&id) == Some(&one.weight)
                || !ours_to_write(store, cgroup, knob, &knob.default_value())
            {
                continue;
            }
            let value = format!("{} {}", self.device, one.weight);
            let written = hold(store, cgroup, knob, &value);
            if told(cgroup, knob, written, store) {
                self.standing.insert(id, one.weight);
                changes.push(Change {
                    id,
                    to: Some(value),
                    why: one.to_string(),
                });
            } else {
                self.standing.remove(&id);
            }
        }
        changes
    }

    /// Checks whether our lines are still there. With BFQ a write of a cgroup's own weight removes all lines: that is a new
    /// weight, and no decision about our lines. A write of the line is one.
    pub fn audit<'a>(
        &mut self,
        find: impl Fn(CgroupId) -> Option<&'a Cgroup>,
        store: &mut KnobStore,
    ) {
        let knob = self.knob();
        let ids: Vec<CgroupId> = self.standing.keys().copied().collect();
        for id in ids {
            let removed = find(id).is_some_and(|cgroup| removed(cgroup, knob));
            if removed {
                store.restore(id, knob);
                self.standing.remove(&id);
                continue;
            }
            if !still_stands(store, id, knob) {
                self.standing.remove(&id);
            }
        }
    }
}

/// Whether BFQ has removed a line of ours, as it does on a write of a cgroup's own weight. io.cost keeps its lines.
fn removed(cgroup: &Cgroup, knob: Knob) -> bool {
    matches!(knob, Knob::IoBfqWeightOn(_))
        && read_raw(cgroup, knob).is_ok_and(|found| knob.is_default(&found))
}

/// As [`KnobStore::hold`], but rewrites a line that BFQ has removed.
fn hold(
    store: &mut KnobStore,
    cgroup: &Cgroup,
    knob: Knob,
    value: &str,
) -> Result<WriteOutcome, crate::knobs::KnobStoreError> {
    let ours = store.applied(cgroup.id(), knob).is_some();
    if ours && removed(cgroup, knob) {
        store.restore(cgroup.id(), knob);
    }
    store.hold(cgroup, knob, value)
}

impl std::fmt::Display for Corrected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "siblings contend for the disk, which is divided by weight; by weight {:.1} % of what their applications \
             get are its applications', lately they got {:.1} %; so its weight there is {}, its own times the correction of {:.2}",
            self.target * 100.0,
            self.got * 100.0,
            self.weight,
            self.correction,
        )
    }
}

#[cfg(test)]
pub(in crate::device) mod tests;
