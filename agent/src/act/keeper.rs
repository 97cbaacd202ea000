//! Keeping the standing protection: `memory.low`, through the ledger, never against another writer.

use std::collections::HashMap;

use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::knob::Knob;

use super::ledger::{Ledger, Returned, Written};
use crate::escape;
use crate::observe::{Mirror, low_of};
use crate::plan::{Key, LowIntent, Shares, Snapshot, plan_protection};

/// Knobs written in one turn at most: the rest waits for the next (a write is a journal entry, a read and a
/// write of the knob).
const MOST_WRITES: usize = 64;

/// Writes `memory.low`, or, in observe mode, remembers what it would have written.
#[derive(Debug)]
pub struct Keeper {
    ledger: Option<Ledger>,
    would: HashMap<CgroupId, u64>,
}

impl Keeper {
    /// With a ledger it writes; without one it only says what it would.
    #[must_use]
    pub fn new(ledger: Option<Ledger>) -> Self {
        Self {
            ledger,
            would: HashMap::new(),
        }
    }

    /// A cgroup has come. A protection that stands there already is its operator's.
    pub fn met(&mut self, mirror: &Mirror, id: CgroupId) {
        let (Some(ledger), Some(node)) = (&mut self.ledger, mirror.get(id)) else {
            return;
        };
        if node.operators_low > 0 {
            let low = node.operators_low.to_string();
            tracing::info!(
                tenant = escape::encode(node.cgroup.path().as_os_str()),
                low,
                "memory.low is set by its operator: it is a floor, and theirs"
            );
            ledger.leave(id, Knob::MemoryLow, &low);
        }
    }

    /// A cgroup is gone.
    pub fn gone(&mut self, id: CgroupId) {
        if let Some(ledger) = &mut self.ledger {
            ledger.cgroup_gone(id);
        }
        self.would.remove(&id);
    }

    /// Somebody has written a knob, ourselves perhaps. If it was someone else, the knob is theirs from now
    /// on, and what they have set is returned.
    pub fn written(&mut self, mirror: &Mirror, id: CgroupId, knob: Knob) -> Option<u64> {
        let node = mirror.get(id)?;
        let path = escape::encode(node.cgroup.path().as_os_str());
        let Some(ledger) = &mut self.ledger else {
            return low_of(&node.cgroup).ok();
        };
        if ledger.ours(id, knob).is_some() {
            let Some(Written::Yielded { ours, found }) = ledger.audit(id, knob) else {
                return None;
            };
            tracing::warn!(tenant = path, %knob, ours, found, "someone else wrote it: yielded");
        } else if ledger.may_write(id, knob) {
            let found = low_of(&node.cgroup).ok().filter(|low| *low > 0)?;
            tracing::warn!(tenant = path, %knob, found, "someone else wrote it: yielded");
            ledger.leave(id, knob, &found.to_string());
        }
        low_of(&node.cgroup).ok()
    }

    /// Moves every protection to where it should be, at most [`MOST_WRITES`] at once.
    pub fn protect(&mut self, mirror: &Mirror, snapshot: &Snapshot, shares: &Shares) {
        let standing: Vec<Option<u64>> = snapshot
            .tenants
            .iter()
            .map(|tenant| self.standing(tenant.key))
            .collect();
        let intents = plan_protection(snapshot, shares, &standing);
        for intent in intents.into_iter().take(MOST_WRITES) {
            self.write(mirror, &intent);
        }
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

    fn write(&mut self, mirror: &Mirror, intent: &LowIntent) {
        let Key::Cgroup(id) = intent.key else { return };
        let Some(node) = mirror.get(id) else { return };
        let path = escape::encode(node.cgroup.path().as_os_str());
        tracing::debug!(tenant = path, low = intent.low, why = %intent.reason, "memory.low");
        let Some(ledger) = &mut self.ledger else {
            self.would.insert(id, intent.low);
            return;
        };
        match ledger.set(&node.cgroup, Knob::MemoryLow, &intent.low.to_string()) {
            Ok(Written::Yielded { ours, found }) => {
                tracing::warn!(
                    tenant = path,
                    ours,
                    found,
                    "someone else wrote memory.low: yielded"
                );
            }
            Ok(_) => {}
            Err(error) => {
                tracing::warn!(tenant = path, %error, "memory.low could not be set; left alone");
                ledger.leave(id, Knob::MemoryLow, "");
            }
        }
    }

    /// How a cgroup is called.
    #[must_use]
    pub fn path(&self, mirror: &Mirror, id: CgroupId) -> String {
        mirror.get(id).map_or_else(
            || format!("#{}", id.0),
            |node| escape::encode(node.cgroup.path().as_os_str()),
        )
    }

    /// The knobs held, and those left to others.
    #[must_use]
    pub const fn ledger(&self) -> Option<&Ledger> {
        self.ledger.as_ref()
    }

    /// Gives everything back.
    pub fn restore(&mut self) -> Vec<Returned> {
        self.ledger
            .as_mut()
            .map(Ledger::restore)
            .unwrap_or_default()
    }
}
