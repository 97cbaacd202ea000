//! `memory.low` of every tenant: planned, and written through the knob store, unless another writer has set it.

use std::collections::{HashMap, HashSet};

use justitia_api::{Action, ProtectionReason, Reason, Rule, escape};
use justitia_cgroup_tree::memory_low;
use justitia_kernel::Result;
use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::knob::{Knob, read_raw};

use super::entitlements::Entitlements;
use super::memory_sampler::{CgroupTree, Node};
use crate::knobs::{KnobStore, KnobStoreError, WriteOutcome};
use crate::model::{Key, Snapshot};
use crate::status::decision_log::Decided;

#[cfg(test)]
mod tests;

// `memory.low` for what tenants use of their entitlements. The kernel's own reclaim then respects them between two ticks of the
// agent (Justitia, section III-B3).

/// Set `memory.low` of one cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LowIntent {
    /// The tenant.
    pub key: Key,
    /// The new value in bytes, a multiple of the page size.
    pub low: u64,
    /// Its reason.
    pub reason: ProtectionReason,
}

/// A `memory.low` that the agent may write, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Low {
    /// Its value now.
    pub now: u64,
    /// Its lower bound: the value that its operator has set; 0 without one.
    pub least: u64,
}

/// The least change that is written, bytes.
pub(crate) const MIN_DEADBAND: u64 = 1 << 20;
/// The value divided by this is its deadband.
pub(crate) const DEADBAND: u64 = 32;

/// The intents for all tenants whose `memory.low` is further from its goal than the deadband, parents first, since a child's
/// protection only counts under its parent's. `lows` are the knobs, indexed like the tenants; `None` for one that the agent
/// must not write.
///
/// The kernel caps a child's protection by every ancestor's (Documentation/admin-guide/cgroup-v2.rst, "Memory Interface
/// Files"). So an inner node gets the sum of its children's, or its operator's value if that is more.
#[must_use]
pub fn plan_protection(
    snapshot: &Snapshot,
    entitlements: &Entitlements,
    lows: &[Option<Low>],
) -> Vec<LowIntent> {
    let tenants = &snapshot.tenants;
    let goals = tenants.fold_up(
        |sum: &mut ProtectionReason, child| {
            sum.protected += child.protected;
            sum.other += child.other;
        },
        |id, tenant, mut sum| {
            if !tenants.is_leaf(id) {
                // The kernel gives the part that no child claims to the node's own pages (cgroup-v2.rst, memory_recursiveprot).
                sum.protected += entitlements.orphaned[id.index()];
                return sum;
            }
            ProtectionReason::of_leaf(entitlements.protected[id.index()], tenant.other)
        },
    );
    let intents = tenants
        .values()
        .zip(lows)
        .zip(goals)
        .filter_map(|((tenant, knob), reason)| {
            let Low { now, least } = (*knob)?;
            let low = reason.memory_low().max(least);
            let deadband = (low / DEADBAND).max(MIN_DEADBAND);
            let moved = low.abs_diff(now) > deadband || (low == 0 && now != 0);
            (moved && tenant.key != Key::Unmanaged).then_some(LowIntent {
                key: tenant.key,
                low,
                reason,
            })
        });
    intents.collect()
}

/// The most knobs written in one tick; the others wait for the next. Each takes a journal entry, a read and a write of the
/// knob.
const MAX_WRITES: usize = 64;

/// Writes `memory.low`. In observe mode it records the values instead.
#[derive(Debug, Default)]
pub struct ProtectionController {
    /// In observe mode: the values that it would have written, bytes.
    pub(super) would_apply: HashMap<CgroupId, u64>,
    /// Why each `memory.low` of ours has its value.
    pub(super) reasons: HashMap<CgroupId, ProtectionReason>,
    /// Cgroups whose operator's value was raised once. A value that another writer sets after that stays.
    pub(super) raised: HashSet<CgroupId>,
    /// The number of ticks.
    ticks: u64,
    /// The tick of the last write of each `memory.low`.
    written: HashMap<CgroupId, u64>,
}

impl ProtectionController {
    /// One tick: writes each `memory.low` that should change, at most `MAX_WRITES`, those with the longest wait first. Returns
    /// the changes. Without a store it only records them.
    pub fn tick(
        &mut self,
        mut store: Option<&mut KnobStore>,
        cgroups: &CgroupTree,
        snapshot: &Snapshot,
        entitlements: &Entitlements,
    ) -> Vec<Decided> {
        let lows: Vec<Option<Low>> = snapshot
            .tenants
            .values()
            .map(|tenant| self.low(store.as_deref(), cgroups, tenant.key))
            .collect();
        // A delegatee may create any number of cgroups: its knobs are written after the others. Parents are still written
        // before their children: below a delegated cgroup all cgroups are delegated.
        let mut intents = plan_protection(snapshot, entitlements, &lows);
        intents.sort_by_cached_key(|intent| {
            let id = intent.key.cgroup();
            let node = id.and_then(|id| cgroups.get(id));
            let written = id.and_then(|id| self.written.get(&id));
            (
                node.is_some_and(|node| node.in_delegation),
                written.copied(),
            )
        });
        intents.truncate(MAX_WRITES);
        self.ticks += 1;
        let ids = intents.iter().filter_map(|intent| intent.key.cgroup());
        self.written.extend(ids.map(|id| (id, self.ticks)));
        intents
            .into_iter()
            .filter_map(|intent| self.write(store.as_deref_mut(), cgroups, intent))
            .collect()
    }

    /// A tenant's `memory.low`; `None` if it may not be written. An operator's value stays, except on an inner cgroup: it caps
    /// the children's protection, so it may have to be raised.
    fn low(&self, store: Option<&KnobStore>, cgroups: &CgroupTree, key: Key) -> Option<Low> {
        let Key::Cgroup(id) = key else { return None };
        let node = cgroups.get(id)?;
        let least = match self.raised.contains(&id) {
            true => node.external_low,
            false => node.caps_children().unwrap_or(0),
        };
        let ours = match store {
            None => self.would_apply.get(&id).copied(),
            Some(store) => {
                let applied = store.applied(id, Knob::MemoryLow);
                applied.and_then(|low| low.parse().ok())
            }
        };
        let may_write = match store {
            // It would be external.
            None => least > 0 || node.external_low == 0,
            Some(store) => store.may_write(id, Knob::MemoryLow) || self.may_raise(node),
        };
        may_write.then(|| Low {
            now: ours.unwrap_or(least),
            least,
        })
    }

    fn may_raise(&self, node: &Node) -> bool {
        node.caps_children().is_some() && !self.raised.contains(&node.cgroup.id())
    }

    pub(super) fn write(
        &mut self,
        store: Option<&mut KnobStore>,
        cgroups: &CgroupTree,
        intent: LowIntent,
    ) -> Option<Decided> {
        let Key::Cgroup(id) = intent.key else {
            return None;
        };
        let node = cgroups.get(id)?;
        let path = escape::encode(node.cgroup.path().as_os_str());
        tracing::debug!(tenant = path, low = intent.low, why = %intent.reason, "memory.low");
        let Low { now: from, least } = self
            .low(store.as_deref(), cgroups, intent.key)
            .unwrap_or_default();
        let Some(store) = store else {
            self.would_apply.insert(id, intent.low);
            self.reasons.insert(id, intent.reason);
            return Some(changed(from, &intent));
        };
        let knob = Knob::MemoryLow;
        let marked = |rule: Rule| Some(marked_external(id, knob, rule));
        if store.applied(id, knob).is_none() {
            match mark_external_unless(store, node, &path, least) {
                Ok(None) if least > 0 => {
                    log_raised(&path, least, intent.low);
                    store.take_over(id, knob);
                    self.raised.insert(id);
                }
                Ok(None) => {}
                // It was written after the last events were read, and before our first write.
                Ok(Some(found)) => {
                    let (applied, by) = (None, written_by(store, id, knob));
                    return marked(Rule::ExternalWrite { found, applied, by });
                }
                Err(error) => {
                    tracing::debug!(tenant = path, %error, "memory.low could not be read; it is tried again");
                    return None;
                }
            }
        }
        let low = intent.low.to_string();
        let written = match node.in_delegation {
            true => store.set(&node.cgroup, knob, &low),
            false => store.hold(&node.cgroup, knob, &low),
        };
        match written {
            Ok(WriteOutcome::External { applied, found, by }) => {
                log_external(node, &path, knob, [&applied, &found, &by]);
                marked(Rule::ExternalWrite {
                    found,
                    applied: Some(applied),
                    by: Some(by).filter(|by| !by.is_empty()),
                })
            }
            Ok(WriteOutcome::Gone | WriteOutcome::GivenUp | WriteOutcome::Deferred) => None,
            Ok(
                WriteOutcome::Written | WriteOutcome::Unchanged | WriteOutcome::Reapplied { .. },
            ) => {
                self.reasons.insert(id, intent.reason);
                Some(changed(from, &intent))
            }
            Err(error) => not_written(store, intent.key, &path, &error.to_string()),
        }
    }

    /// The reason of our value in a knob, or of the value that we would write; `None` if the knob is not ours.
    #[must_use]
    pub fn reason(&self, id: CgroupId, knob: Knob) -> Option<Reason> {
        let reason = self.reasons.get(&id).filter(|_| knob == Knob::MemoryLow)?;
        Some(Rule::Protection(*reason).into())
    }

    /// In observe mode: the values that knobs would have.
    pub fn would_apply(&self) -> impl Iterator<Item = (CgroupId, Knob, u64)> {
        self.would_apply
            .iter()
            .map(|(id, low)| (*id, Knob::MemoryLow, *low))
    }
}

/// The decision after a failed write of `memory.low`: it is retried, or was given up.
fn not_written(store: &KnobStore, key: Key, tenant: &str, error: &str) -> Option<Decided> {
    let knob = Knob::MemoryLow;
    let Key::Cgroup(id) = key else { return None };
    if store.may_write(id, knob) {
        tracing::debug!(
            tenant,
            error,
            "memory.low could not be written; it is tried again"
        );
        return None;
    }
    tracing::warn!(tenant, error, "given up: memory.low could not be written");
    let knob = knob.to_string();
    let error = error.to_owned();
    let rule = Rule::KernelError { error };
    Some(Decided::new(key, Action::GiveUp { knob }, rule))
}

fn log_raised(tenant: &str, operators: u64, low: u64) {
    tracing::info!(
        tenant,
        operators,
        low,
        "memory.low is raised: it caps what the children have; the operator's value is restored at the end"
    );
}

/// The decision to change a `memory.low`, written or not.
fn changed(from: u64, intent: &LowIntent) -> Decided {
    let action = Action::Set {
        knob: Knob::MemoryLow.to_string(),
        from: Some(from.to_string()),
        to: intent.low.to_string(),
    };
    Decided::new(intent.key, action, Rule::Protection(intent.reason))
}

/// The decision that a knob is external from now on.
pub fn marked_external(id: CgroupId, knob: Knob, rule: Rule) -> Decided {
    let knob = knob.to_string();
    Decided::new(Key::Cgroup(id), Action::MarkExternal { knob }, rule)
}

/// Marks a `memory.low` that we have not written as external, and returns its value. Exceptions are `expected` bytes, 0, an
/// earlier agent's value, and a value that its operator had us take.
///
/// # Errors
/// If it cannot be read.
pub(super) fn mark_external_unless(
    store: &mut KnobStore,
    node: &Node,
    tenant: &str,
    expected: u64,
) -> justitia_kernel::Result<Option<String>> {
    let found = match memory_low(&node.cgroup)? {
        0 => return Ok(None),
        low if low == expected => return Ok(None),
        low => low.to_string(),
    };
    let (id, knob) = (node.cgroup.id(), Knob::MemoryLow);
    if store.original_of_left(id, knob, &found).is_some() || store.is_taken(id, knob, &found) {
        return Ok(None);
    }
    log_external(node, tenant, Knob::MemoryLow, ["", &found, ""]);
    store.mark_external(node.cgroup.id(), Knob::MemoryLow, &found);
    Ok(Some(found))
}

/// Logs that a knob is external. A delegatee can create cgroups and write their knobs without end, so its knobs are logged at
/// debug level. `what`: our value, the found value, and its writer.
pub(super) fn log_external(node: &Node, tenant: &str, knob: Knob, what: [&str; 3]) {
    let message = "external: another writer has set it";
    let [applied, found, by] = what;
    if node.in_delegation {
        tracing::debug!(tenant, %knob, applied, found, by, "{message}");
    } else {
        tracing::warn!(tenant, %knob, applied, found, by, "{message}");
    }
}

/// The writer of an external knob, if known.
pub fn written_by(store: &KnobStore, id: CgroupId, knob: Knob) -> Option<String> {
    let by = store.external_by(id, knob);
    (!by.is_empty()).then(|| by.to_owned())
}

// Created and removed cgroups, and written knobs.

impl ProtectionController {
    /// A cgroup was created. A `memory.low` that it already has is its operator's, its delegatee's or an earlier agent's. For
    /// the latter the value before that agent's first write counts, and is restored as soon as possible.
    pub fn on_cgroup_added(store: &mut KnobStore, cgroups: &mut CgroupTree, id: CgroupId) {
        let Some(node) = cgroups.get_mut(id) else {
            return;
        };
        let found = node.external_low.to_string();
        if let Some(original) = store.original_of_left(id, Knob::MemoryLow, &found) {
            node.set_external_low(original.parse().unwrap_or(0));
        }
        if node.external_low > 0 {
            let low = node.external_low.to_string();
            let tenant = escape::encode(node.cgroup.path().as_os_str());
            if node.in_delegation {
                tracing::debug!(
                    tenant,
                    low,
                    "memory.low is set by the delegatee: it is not written"
                );
            } else {
                tracing::info!(
                    tenant,
                    low,
                    "memory.low is set by the operator: it counts as a minimum and is not written"
                );
            }
            store.mark_external(id, Knob::MemoryLow, &low);
        }
    }

    /// A cgroup was removed, or is no tenant any more.
    pub fn on_cgroup_removed(&mut self, id: CgroupId) {
        self.would_apply.remove(&id);
        self.reasons.remove(&id);
        self.raised.remove(&id);
        self.written.remove(&id);
    }

    /// A knob was written, possibly by us. If another writer has set it, it is external from now on, and its `memory.low` is
    /// returned, bytes.
    ///
    /// # Errors
    /// If it cannot be read. Without a free file descriptor or memory nothing is known then: it must be read again.
    pub fn on_knob_written(
        &mut self,
        store: Option<&mut KnobStore>,
        cgroups: &CgroupTree,
        id: CgroupId,
        knob: Knob,
    ) -> Result<Option<u64>> {
        let Some(node) = cgroups.get(id) else {
            return Ok(None);
        };
        let path = escape::encode(node.cgroup.path().as_os_str());
        let Some(store) = store else {
            let low = memory_low(&node.cgroup)?;
            if low > 0 {
                self.would_apply.remove(&id);
                self.reasons.remove(&id);
            }
            return Ok(Some(low));
        };
        if store.applied(id, knob).is_some() {
            let read = read_raw(&node.cgroup, knob)?;
            match store.audit_value(id, knob, &read) {
                Ok(Some(WriteOutcome::External { applied, found, by })) => {
                    log_external(node, &path, knob, [&applied, &found, &by]);
                }
                Ok(_) => return Ok(None),
                Err(KnobStoreError::Kernel(error)) if error.is_exhausted() => return Err(error),
                Err(error) => {
                    tracing::debug!(tenant = path, %knob, %error, "could not be written again");
                    return Ok(None);
                }
            }
        } else if store.may_write(id, knob)
            && mark_external_unless(store, node, &path, 0)?.is_none()
        {
            return Ok(None);
        }
        memory_low(&node.cgroup).map(Some)
    }
}
