//! Changes the whole configuration while the agent runs, or nothing of it.

use std::time::Instant;

use justitia_cgroup_tree::Changes;

use super::Agent;
use crate::config::Config;
use crate::device::credits::Credits;

impl Agent {
    /// Adopts `config`. Owned knobs stay. Knobs of cgroups that `config` excludes, and limits of disks that it does not divide
    /// any more, are restored at once. State of tenants stays.
    ///
    /// The caller must have checked [`Config::fixed`] and all else that may forbid the configuration.
    pub fn reconfigure(&mut self, config: Config, now: Instant) {
        let old = std::mem::replace(&mut self.config, config);
        self.monitor.budget.set_rate(self.config.cpu_budget / 100.0);
        if old.io.enabled != self.config.io.enabled {
            if let Some(knobs) = &mut self.knobs {
                self.credits.switch_off(knobs);
            }
            self.record_moved(now);
            self.credits = Credits::open(&self.config, self.monitor.cgroups.root_cgroup());
        }
        let acts = self.knobs.is_some();
        self.recharge
            .reconfigure(&self.config, &mut self.monitor.app_io, acts);
        let mut changes = Changes::default();
        self.monitor
            .apply_rules(&self.config.rules, now, &mut changes);
        self.apply_changes(&changes, now);
        self.restore_weights(now);
        // The next tick plans anew, and writes the differences.
        self.last_sample = None;
        self.last_protection = None;
    }
}
