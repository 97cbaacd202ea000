//! What the agent does when cgroups come and go, and when knobs are written; and its decision log.

use std::time::Instant;

use justitia_api::Rule;

use super::tick::Agent;
use crate::enforce::decided::Decided;
use crate::enforce::protection::marked_external;
use crate::monitor::Changes;
use crate::plan::Key;

impl Agent {
    /// Tells all parts that keep state of cgroups which cgroups were added and removed, and which knobs were written.
    pub(super) fn apply_changes(&mut self, changes: &Changes, now: Instant) {
        if changes.weights_changed {
            self.credits.stir(now);
        }
        for id in &changes.removed {
            let key = Key::Cgroup(*id);
            self.monitor.app_io.remove(*id);
            self.protection.on_cgroup_removed(*id);
            self.credits.gone(*id);
            self.decisions.forget(key);
            self.reclaim.on_cgroup_removed(*id);
        }
        for id in &changes.added {
            self.protection.on_cgroup_added(&self.monitor.cgroups, *id);
        }
        for (id, knob) in &changes.knobs_written {
            let external = self.protection.external(*id, *knob);
            let low = self
                .protection
                .on_knob_written(&self.monitor.cgroups, *id, *knob);
            self.monitor.cgroups.record_low(*id, low);
            if external.is_none()
                && let Some(found) = self.protection.external(*id, *knob)
            {
                let applied = None;
                let rule = Rule::ExternalWrite { found, applied };
                self.record(marked_external(*id, *knob, rule), now);
            }
        }
    }

    /// Adds decisions to the decision log.
    pub(super) fn record_all(&mut self, all: Vec<Decided>, now: Instant) {
        for decided in all {
            self.record(decided, now);
        }
    }

    /// Adds a decision to the decision log.
    pub(super) fn record(&mut self, decided: Decided, now: Instant) {
        let path = self.path(decided.key);
        self.decisions.record(&path, decided, now);
    }

    /// The name of a tenant for people.
    pub(crate) fn path(&self, key: Key) -> String {
        self.monitor.cgroups.tenant_path(key.cgroup())
    }
}
