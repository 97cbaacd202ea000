//! Another configuration while the agent runs: all of it, or nothing.

use std::time::Instant;

use justitia_cgroup_tree::Changes;

use super::Agent;
use crate::config::Config;
use crate::device::credits::Credits;

impl Agent {
    /// Goes on with `config`. Knobs that are held stay; what `config` excludes, and limits of disks that it does not divide
    /// any more, are given back at once. Everything that is known of tenants stays.
    ///
    /// [`Config::fixed`] and what else may keep a configuration from being used has to be asked before.
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
        // The next tick divides anew, and writes what has changed by that.
        self.last_sample = None;
        self.last_protection = None;
    }
}
