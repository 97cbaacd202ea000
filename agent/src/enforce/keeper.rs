//! Keeping the standing protection: `memory.low`, through the ledger, never against another writer.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use justitia_api::{Action, ProtectionReason, Reason, Rule};
use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::knob::Knob;

use super::event::TenantEvent;
use super::ledger::{Back, Ledger, Returned, Written};
use crate::escape;
use crate::monitor::{CgroupTree, Node, low_of};
use crate::plan::{Entitlements, Key, LowIntent, Snapshot, plan_protection};

/// Knobs written in one turn at most: the rest waits for the next (a write is a journal entry, a read and a
/// write of the knob).
const MOST_WRITES: usize = 64;

/// What could not be given back at the end is tried again after so long.
const AGAIN: Duration = Duration::from_millis(100);

/// Writes `memory.low`, or, in observe mode, remembers what it would have written.
#[derive(Debug)]
pub struct Keeper {
    ledger: Option<Ledger>,
    would: HashMap<CgroupId, u64>,
    /// Why `memory.low` stands where we have put it.
    why: HashMap<CgroupId, ProtectionReason>,
}

impl Keeper {
    /// With a ledger it writes; without one it only says what it would.
    #[must_use]
    pub fn new(ledger: Option<Ledger>) -> Self {
        Self {
            ledger,
            would: HashMap::new(),
            why: HashMap::new(),
        }
    }

    /// A cgroup has come. A protection that stands there already is its operator's.
    pub fn met(&mut self, cgroups: &CgroupTree, id: CgroupId) {
        let (Some(ledger), Some(node)) = (&mut self.ledger, cgroups.get(id)) else {
            return;
        };
        if node.operator_low > 0 {
            let low = node.operator_low.to_string();
            let tenant = escape::encode(node.cgroup.path().as_os_str());
            if node.delegated {
                tracing::debug!(
                    tenant,
                    low,
                    "memory.low is set by its delegate: it is theirs"
                );
            } else {
                tracing::info!(
                    tenant,
                    low,
                    "memory.low is set by its operator: it is a floor, and theirs"
                );
            }
            ledger.leave(id, Knob::MemoryLow, &low);
        }
    }

    /// A cgroup is gone.
    pub fn gone(&mut self, id: CgroupId) {
        if let Some(ledger) = &mut self.ledger {
            ledger.cgroup_gone(id);
        }
        self.would.remove(&id);
        self.why.remove(&id);
    }

    /// Somebody has written a knob, ourselves perhaps. If it was someone else, the knob is theirs from now
    /// on, and what they have set is returned.
    pub fn written(&mut self, cgroups: &CgroupTree, id: CgroupId, knob: Knob) -> Option<u64> {
        let node = cgroups.get(id)?;
        let path = escape::encode(node.cgroup.path().as_os_str());
        let Some(ledger) = &mut self.ledger else {
            return low_of(&node.cgroup).ok();
        };
        if ledger.ours(id, knob).is_some() {
            match ledger.audit(id, knob) {
                Ok(Some(Written::Yielded { ours, found })) => {
                    yielded(node, &path, knob, &ours, &found);
                }
                Ok(Some(Written::Reapplied { found })) => {
                    tracing::debug!(tenant = path, %knob, found, "was applied again: ours is written over it");
                    return None;
                }
                Ok(_) => return None,
                Err(error) => {
                    tracing::debug!(tenant = path, %knob, %error, "could not be written again");
                    return None;
                }
            }
        } else if ledger.may_write(id, knob) {
            leave_to_its_writer(ledger, node, &path)?;
        }
        low_of(&node.cgroup).ok()
    }

    /// Moves every protection to where it should be, at most [`MOST_WRITES`] at once; says what was done.
    pub fn protect(
        &mut self,
        cgroups: &CgroupTree,
        snapshot: &Snapshot,
        entitlements: &Entitlements,
    ) -> Vec<TenantEvent> {
        let standing: Vec<Option<u64>> = snapshot
            .tenants
            .iter()
            .map(|tenant| self.standing(tenant.key))
            .collect();
        // A delegate may have as many cgroups as he likes: his wait for the others'. Parents stay first, since below what
        // was delegated everything is.
        let intents = plan_protection(snapshot, entitlements, &standing);
        let (last, first): (Vec<_>, Vec<_>) = intents.into_iter().partition(|intent| {
            let Key::Cgroup(id) = intent.key else {
                return false;
            };
            cgroups.get(id).is_some_and(|node| node.delegated)
        });
        first
            .into_iter()
            .chain(last)
            .take(MOST_WRITES)
            .filter_map(|intent| self.write(cgroups, intent))
            .collect()
    }

    /// What stands in a tenant's `memory.low`, if it is ours to write.
    fn standing(&self, key: Key) -> Option<u64> {
        let Key::Cgroup(id) = key else { return None };
        match &self.ledger {
            None => Some(self.would.get(&id).copied().unwrap_or(0)),
            Some(ledger) if ledger.may_write(id, Knob::MemoryLow) => {
                let ours = ledger.ours(id, Knob::MemoryLow);
                Some(ours.and_then(|low| low.parse().ok()).unwrap_or(0))
            }
            Some(_) => None,
        }
    }

    fn write(&mut self, cgroups: &CgroupTree, intent: LowIntent) -> Option<TenantEvent> {
        let Key::Cgroup(id) = intent.key else {
            return None;
        };
        let node = cgroups.get(id)?;
        let path = escape::encode(node.cgroup.path().as_os_str());
        tracing::debug!(tenant = path, low = intent.low, why = %intent.reason, "memory.low");
        let from = self.standing(intent.key).unwrap_or(0);
        let ceded = |rule: Rule| Some(ceded(id, Knob::MemoryLow, rule));
        let Some(ledger) = &mut self.ledger else {
            self.would.insert(id, intent.low);
            self.why.insert(id, intent.reason);
            return Some(moved(from, &intent));
        };
        // Written since the last events were taken, before we ever did.
        if ledger.ours(id, Knob::MemoryLow).is_none()
            && let Some(found) = leave_to_its_writer(ledger, node, &path)
        {
            return ceded(Rule::ForeignWrite {
                found,
                applied: None,
            });
        }
        match ledger.set(&node.cgroup, Knob::MemoryLow, &intent.low.to_string()) {
            Ok(Written::Yielded { ours, found }) => {
                yielded(node, &path, Knob::MemoryLow, &ours, &found);
                let applied = Some(ours);
                ceded(Rule::ForeignWrite { found, applied })
            }
            Ok(Written::Gone) => None,
            Ok(Written::Yes | Written::Already | Written::Reapplied { .. }) => {
                self.why.insert(id, intent.reason);
                Some(moved(from, &intent))
            }
            Err(error) if ledger.may_write(id, Knob::MemoryLow) => {
                tracing::debug!(tenant = path, %error, "memory.low could not be set; it is tried again");
                None
            }
            Err(error) => {
                tracing::warn!(tenant = path, %error, "memory.low could not be set; left alone");
                let error = error.to_string();
                ceded(Rule::KernelError { error })
            }
        }
    }

    /// What someone else has put into a knob that was yielded to them.
    #[must_use]
    pub fn left(&self, id: CgroupId, knob: Knob) -> Option<String> {
        let mut yielded = self.ledger.as_ref()?.yielded();
        let found = yielded.find(|(i, k, _)| (*i, *k) == (id, knob))?;
        Some(found.2.to_owned())
    }

    /// Why a knob has the value that we wrote, or would write; `None` if it is not ours.
    #[must_use]
    pub fn reason(&self, id: CgroupId, knob: Knob) -> Option<Reason> {
        let reason = self.why.get(&id).filter(|_| knob == Knob::MemoryLow)?;
        Some(Rule::Protection(*reason).into())
    }

    /// What would stand in knobs, in observe mode.
    pub fn would(&self) -> impl Iterator<Item = (CgroupId, Knob, u64)> {
        self.would
            .iter()
            .map(|(id, low)| (*id, Knob::MemoryLow, *low))
    }

    /// How a cgroup is called; `-` is the root, as what is outside any.
    #[must_use]
    pub fn path(&self, cgroups: &CgroupTree, id: CgroupId) -> String {
        if id == cgroups.root() {
            return "-".to_owned();
        }
        cgroups.get(id).map_or_else(
            || format!("#{}", id.0),
            |node| escape::encode(node.cgroup.path().as_os_str()),
        )
    }

    /// The knobs held, and those left to others.
    #[must_use]
    pub const fn ledger(&self) -> Option<&Ledger> {
        self.ledger.as_ref()
    }

    /// The same, to write other knobs through it.
    pub const fn ledger_mut(&mut self) -> Option<&mut Ledger> {
        self.ledger.as_mut()
    }

    /// Tries again to give back what could not be so far; returns what was.
    pub fn retry(&mut self) -> Vec<Returned> {
        self.ledger.as_mut().map(Ledger::retry).unwrap_or_default()
    }

    /// Gives everything back, tried for up to `patience`. Returns every knob, with the last word on each.
    pub fn restore(&mut self, patience: Duration) -> Vec<Returned> {
        let Some(ledger) = &mut self.ledger else {
            return Vec::new();
        };
        let begun = Instant::now();
        let mut returned = ledger.restore();
        while !ledger.is_empty() && begun.elapsed() < patience {
            std::thread::sleep(AGAIN);
            returned.retain(|one| !matches!(one.back, Back::Failed { .. }));
            returned.extend(ledger.restore());
        }
        returned
    }
}

/// A protection was moved, or would have been.
fn moved(from: u64, intent: &LowIntent) -> TenantEvent {
    let action = Action::Set {
        knob: Knob::MemoryLow.to_string(),
        from: Some(from.to_string()),
        to: intent.low.to_string(),
    };
    TenantEvent::new(intent.key, action, Rule::Protection(intent.reason))
}

/// A knob was ceded to another process that wrote it.
pub fn ceded(id: CgroupId, knob: Knob, rule: Rule) -> TenantEvent {
    let knob = knob.to_string();
    TenantEvent::new(Key::Cgroup(id), Action::Cede { knob }, rule)
}

/// Leaves a `memory.low` that we have not written to whoever has; says what they have put there, if anything.
fn leave_to_its_writer(ledger: &mut Ledger, node: &Node, tenant: &str) -> Option<String> {
    let found = low_of(&node.cgroup)
        .ok()
        .filter(|low| *low > 0)?
        .to_string();
    yielded(node, tenant, Knob::MemoryLow, "", &found);
    ledger.leave(node.cgroup.id(), Knob::MemoryLow, &found);
    Some(found)
}

/// Says that a knob was yielded. A delegate can make cgroups and write their knobs for ever: his are told more quietly.
fn yielded(node: &Node, tenant: &str, knob: Knob, ours: &str, found: &str) {
    let told = "someone else wrote it: yielded";
    if node.delegated {
        tracing::debug!(tenant, %knob, ours, found, "{told}");
    } else {
        tracing::warn!(tenant, %knob, ours, found, "{told}");
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use justitia_kernel::cgroup::CgroupFs;

    use super::*;
    use crate::config::Config;
    use crate::monitor::Changes;

    #[test]
    fn what_someone_wrote_before_our_first_write_is_theirs() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("cgroup");
        for name in ["a", "b"] {
            let path = root.join(name);
            std::fs::create_dir_all(&path).unwrap();
            for (file, text) in [
                ("cgroup.controllers", "io memory\n"),
                ("cgroup.events", "populated 1\nfrozen 0\n"),
                ("memory.low", "0\n"),
            ] {
                std::fs::write(path.join(file), text).unwrap();
            }
        }
        let fs = CgroupFs::open_fixture(&root, true).unwrap();
        let mut cgroups = CgroupTree::new(&fs, false);
        let mut changes = Changes::default();
        cgroups.rescan(&Config::default(), Instant::now(), &mut changes);
        let (ledger, _) = Ledger::open(&fs, &dir.path().join("state")).unwrap();
        let mut keeper = Keeper::new(Some(ledger));
        for id in &changes.added {
            keeper.met(&cgroups, *id);
        }
        // No event has told of it yet.
        let low = |name: &str| std::fs::read_to_string(root.join(name).join("memory.low")).unwrap();
        std::fs::write(root.join("a/memory.low"), "5242880\n").unwrap();
        let mut write = |name: &str, low| {
            let of = |id: &CgroupId| cgroups.get(*id).unwrap().cgroup.path() == Path::new(name);
            let id = *changes.added.iter().find(|id| of(id)).unwrap();
            let (protected, other) = (low, 0);
            let intent = LowIntent {
                key: Key::Cgroup(id),
                low,
                reason: ProtectionReason { protected, other },
            };
            keeper.write(&cgroups, intent)
        };
        for _ in 0..2 {
            let told = write("a", 4096);
            let action = told.map(|event| event.action);
            assert!(matches!(action, Some(Action::Cede { .. })), "{action:?}");
            assert_eq!(low("a").trim(), "5242880");
        }
        for bytes in [4096, 8192] {
            let told = write("b", bytes);
            let action = told.map(|event| event.action);
            assert!(matches!(action, Some(Action::Set { .. })), "{action:?}");
            assert_eq!(low("b").trim(), bytes.to_string());
        }
    }

    /// The agent looks at them no more, but they live.
    #[test]
    fn what_is_told_apart_no_more_gets_back_what_stood_there() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("cgroup");
        let make = |path: &Path| {
            std::fs::create_dir_all(path).unwrap();
            for (file, text) in [
                ("cgroup.controllers", "io memory\n"),
                ("cgroup.events", "populated 1\nfrozen 0\n"),
                ("memory.low", "0\n"),
            ] {
                std::fs::write(path.join(file), text).unwrap();
            }
        };
        make(&root.join("user"));
        let everybody = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(root.join("user"), everybody).unwrap();
        for n in 0..10 {
            make(&root.join(format!("user/{n}")));
        }
        let fs = CgroupFs::open_fixture(&root, true).unwrap();
        let mut cgroups = CgroupTree::new(&fs, false);
        let mut changes = Changes::default();
        cgroups.rescan(&Config::default(), Instant::now(), &mut changes);
        let (ledger, _) = Ledger::open(&fs, &dir.path().join("state")).unwrap();
        let mut keeper = Keeper::new(Some(ledger));
        for id in &changes.added {
            keeper.met(&cgroups, *id);
            let (low, protected, other) = (4096, 4096, 0);
            let intent = LowIntent {
                key: Key::Cgroup(*id),
                low,
                reason: ProtectionReason { protected, other },
            };
            let told = keeper.write(&cgroups, intent);
            let action = told.map(|event| event.action);
            assert!(matches!(action, Some(Action::Set { .. })), "{action:?}");
        }
        for n in 10..=500 {
            make(&root.join(format!("user/{n}")));
        }
        let mut shut = Changes::default();
        cgroups.rescan(&Config::default(), Instant::now(), &mut shut);
        assert!(shut.removed.len() >= 10 && cgroups.len() == 1);
        for id in shut.removed {
            keeper.gone(id);
        }
        for n in 0..10 {
            let low = std::fs::read_to_string(root.join(format!("user/{n}/memory.low"))).unwrap();
            // 0 where 4096 stood: a plain file is not cut.
            assert_eq!(low.trim(), "0096", "user/{n}");
        }
    }
}
