//! The loop's body: one turn of observe, plan, act.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use justitia_api::{Action, Reason, Rule};
use justitia_kernel::cgroup::{CgroupFs, CgroupId};
use justitia_kernel::proc::ProcFs;

use crate::config::Config;
use crate::enforce::credits::Credits;
use crate::enforce::event::TenantEvent;
use crate::enforce::knob_store::log_restored;
use crate::enforce::pressure::Pressure;
use crate::enforce::protection::{ProtectionController, ceded};
use crate::enforce::recharge::Ownership;
use crate::enforce::rest::Rest;
use crate::enforce::worker::{Means, Order, Outcome, Reclaimer};
use crate::monitor::{
    AppIoMonitor, Changes, Monitor, ReclaimFeatures, UnmanagedReclaim, thread_cpu,
};
use crate::plan::{Entitlements, Key, ReclaimIntent, Snapshot, plan_reclaim};
use crate::report::decision_log::DecisionLog;

/// A plan is made at least this often, to keep the protection and the status fresh.
const AT_LEAST: Duration = Duration::from_secs(1);
/// While free memory is short, a plan is made at least this often, whatever the budget says.
const PRESSED: Duration = Duration::from_millis(250);
/// What is known of a victim must not be older than this.
const FRESH: Duration = Duration::from_millis(500);

/// The agent.
#[derive(Debug)]
pub struct Agent {
    pub(crate) config: Config,
    pub(crate) monitor: Monitor,
    pub(crate) protection: ProtectionController,
    pub(crate) credits: Credits,
    pub(crate) ownership: Ownership,
    reclaimer: Option<Reclaimer>,
    features: ReclaimFeatures,
    under_way: HashMap<Key, u64>,
    rests: HashMap<Key, Rest>,
    pub(crate) reclaimed: HashMap<Key, u64>,
    pub(crate) errors: u64,
    pub(crate) decisions: DecisionLog,
    pub(crate) begun: Instant,
    planned: Option<Instant>,
    kept: Option<Instant>,
    /// Reclaimed from cgroups since the memory's counters were last read, bytes.
    freed: u64,
    pub(crate) snapshot: Snapshot,
    pub(crate) entitlements: Entitlements,
}

impl Agent {
    /// Looks at everything once. With a reclaimer it acts, without one it only observes.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn new(
        config: Config,
        fs: &CgroupFs,
        features: ReclaimFeatures,
        protection: ProtectionController,
        reclaimer: Option<Reclaimer>,
        app_io: AppIoMonitor,
    ) -> justitia_kernel::Result<Self> {
        let now = Instant::now();
        let observes = reclaimer.is_none();
        let proc = ProcFs::open(std::path::Path::new("/proc"))?;
        let monitor = Monitor::new(fs, proc, features, &config, app_io, now)?;
        let credits = Credits::open(&config, fs.root());
        let ownership = Ownership::open(&config, fs.root().id(), !observes);
        let mut agent = Self {
            credits,
            ownership,
            config,
            monitor,
            protection,
            reclaimer,
            features,
            under_way: HashMap::new(),
            rests: HashMap::new(),
            reclaimed: HashMap::new(),
            errors: 0,
            decisions: DecisionLog::new(now, observes),
            begun: now,
            planned: None,
            kept: None,
            freed: 0,
            snapshot: Snapshot::default(),
            entitlements: Entitlements::default(),
        };
        for id in agent.monitor.cgroups.breadth_first() {
            agent.protection.on_cgroup_added(&agent.monitor.cgroups, id);
        }
        Ok(agent)
    }

    /// One turn. Says how long the machine can wait for the next.
    ///
    /// # Errors
    /// If `/proc` cannot be read any more.
    pub fn turn(&mut self, now: Instant) -> justitia_kernel::Result<Duration> {
        self.freed += self.take_outcomes(now);
        let mut changes = self.monitor.poll(&self.config, now);
        self.monitor.sample_reuse(self.entitlements.capacity, now);
        let short = self.short();
        let waited = self.planned.map(|at| now - at);
        let due = waited.is_none_or(|w| w >= AT_LEAST);
        let pressed = waited.is_some_and(|w| w >= PRESSED);
        if due || (short && (pressed || self.monitor.budget.allows())) {
            self.monitor
                .sample(now, std::mem::take(&mut self.freed), &mut changes)?;
            self.plan(now);
            let mut intents = self.intents();
            if self.refresh(&intents, now, &mut changes) {
                self.plan(now);
                intents = self.intents();
            }
            for intent in intents {
                if let Some(means) = self.means(intent.key) {
                    let reason = Rule::Excess(intent.reason).into();
                    self.reclaim(intent.key, means, intent.bytes, reason, now);
                }
            }
            if self.kept.is_none_or(|at| now - at >= AT_LEAST) {
                let told = self.protection.protect(
                    &self.monitor.cgroups,
                    &self.snapshot,
                    &self.entitlements,
                );
                for event in told {
                    self.record(event, now);
                }
                log_restored(
                    "it could not be restored before",
                    &self.protection.retry_restores(),
                );
                self.kept = Some(now);
            }
            self.planned = Some(now);
        }
        self.follow(&changes, now);
        let store = self.protection.store_mut();
        self.credits.turn(&self.config, &self.monitor, store, now);
        let moved = self.credits.moved();
        if !moved.is_empty() {
            // What we wrote comes as events, too: taken now, they are no reason for another turn.
            let changes = self.monitor.process_events(&self.config, now);
            self.follow(&changes, now);
        }
        for moved in moved {
            let key = match moved.id {
                id if id == self.monitor.cgroups.root() => Key::Unmanaged,
                id => Key::Cgroup(id),
            };
            let knob = moved.knob.to_string();
            let action = match moved.to {
                Some(to) => Action::Set {
                    knob,
                    from: None,
                    to,
                },
                None => Action::Restore { knob },
            };
            self.record(TenantEvent::new(key, action, Reason::Text(moved.why)), now);
        }
        for surplus in self.credits.surpluses() {
            let key = Key::Cgroup(surplus.id);
            let rests = self.rests.get(&key).and_then(|rest| rest.exempt(now));
            let whole = self
                .monitor
                .cgroups
                .get(surplus.id)
                .map(|node| node.cgroup.clone());
            if rests.is_none()
                && !self.under_way.contains_key(&key)
                && let Some(cgroup) = whole
            {
                let means = Means::Cgroup(cgroup, self.features.file_only());
                let reason = Reason::Text(surplus.why);
                self.reclaim(key, means, surplus.bytes, reason, now);
            }
        }
        let events =
            self.ownership
                .turn(&mut self.monitor, &self.snapshot, &self.entitlements, now);
        for event in events {
            self.record(event, now);
        }
        let wait = self.wait();
        Ok(self.credits.wait(now).map_or(wait, |soon| soon.min(wait)))
    }

    /// Does what somebody has asked for, which is not charged to the monitor's budget.
    pub(crate) fn answer(&mut self, work: impl FnOnce(&mut Self)) {
        let before = thread_cpu();
        work(self);
        let cost = thread_cpu().saturating_sub(before);
        self.monitor.budget.refund(cost);
    }

    /// Whether free memory is short, or will be in a moment.
    fn short(&self) -> bool {
        let memory = self.monitor.memory.memory();
        memory.free < self.config.policy().free_headroom(&memory)
    }

    fn plan(&mut self, now: Instant) {
        let reclaim_in_flight = self.under_way.values().sum();
        let rests = &self.rests;
        let exempt = |key: Key| rests.get(&key)?.exempt(now);
        self.snapshot = self
            .monitor
            .snapshot(&self.config, now, reclaim_in_flight, exempt);
        self.entitlements = Entitlements::of(&self.snapshot, &self.config.policy());
    }

    fn intents(&self) -> Vec<ReclaimIntent> {
        let mut intents = plan_reclaim(&self.snapshot, &self.entitlements);
        intents.retain(|intent| !self.under_way.contains_key(&intent.key));
        intents
    }

    /// Looks again at victims of which little is known. Says whether that taught us anything.
    fn refresh(&mut self, intents: &[ReclaimIntent], now: Instant, changes: &mut Changes) -> bool {
        let mut learnt = false;
        for intent in intents {
            if let Key::Cgroup(id) = intent.key
                && let Some(node) = self.monitor.cgroups.get(id)
                && node.memory.age(now).is_none_or(|age| age > FRESH)
            {
                self.monitor.sample_one(id, now, changes);
                learnt = true;
            }
        }
        learnt
    }

    /// How to reclaim from what a tenant has of its own, if there is a way.
    fn means(&self, key: Key) -> Option<Means> {
        let cgroups = &self.monitor.cgroups;
        let swappiness = self.features.file_only();
        let (cgroup, children) = match key {
            Key::Cgroup(id) => {
                let node = cgroups.get(id)?;
                if node.children.is_empty() {
                    return Some(Means::Cgroup(node.cgroup.clone(), swappiness));
                }
                (&node.cgroup, node.children.as_slice())
            }
            Key::Unmanaged => match self.monitor.unmanaged.reclaim()? {
                UnmanagedReclaim::RootLruGen => return Some(Means::RootList),
                UnmanagedReclaim::RootMemoryReclaim => {
                    (self.monitor.unmanaged.root(), cgroups.top_level())
                }
            },
        };
        let children = children.iter().filter_map(|id| cgroups.get(*id));
        Some(Means::Own {
            cgroup: cgroup.clone(),
            children: children.map(|node| node.cgroup.clone()).collect(),
            swappiness,
        })
    }

    /// Has so many bytes of a tenant's file pages reclaimed.
    fn reclaim(&mut self, key: Key, means: Means, bytes: u64, reason: Reason, now: Instant) {
        let path = self.path(key);
        tracing::debug!(tenant = path, bytes, why = %reason, "reclaim");
        let event = TenantEvent::new(key, Action::Reclaim { bytes }, reason);
        self.decisions.record(&path, event, now);
        if let Some(reclaimer) = &self.reclaimer {
            self.under_way.insert(key, bytes);
            let pressure = self.pressure(key);
            reclaimer.send(Order {
                key,
                means,
                bytes,
                pressure,
            });
        }
    }

    /// What says whether a tenant thrashes.
    fn pressure(&self, key: Key) -> Option<Pressure> {
        let Key::Cgroup(id) = key else { return None };
        let cgroups = &self.monitor.cgroups;
        let unit = cgroups.get(cgroups.delegation_root(id)?)?;
        Some(Pressure {
            unit: unit.cgroup.clone(),
            thrash_full: self.config.pressure.full_avg10_max,
            own_limits: self
                .rests
                .get(&key)
                .map(Rest::own_limits)
                .unwrap_or_default(),
        })
    }

    /// Takes what the reclaimer has done; says how much of it the machine's own counters leave out.
    fn take_outcomes(&mut self, now: Instant) -> u64 {
        let outcomes: Vec<Outcome> = self
            .reclaimer
            .iter()
            .flat_map(Reclaimer::outcomes)
            .collect();
        let mut freed = 0;
        for outcome in outcomes {
            self.under_way.remove(&outcome.key);
            if let (Key::Cgroup(id), Some(stat)) = (outcome.key, &outcome.after) {
                self.monitor.record_memory(id, stat, now);
                freed += outcome.freed + outcome.beside;
            }
            if let Key::Cgroup(id) = outcome.key
                && self.monitor.cgroups.get(id).is_none()
            {
                // It went meanwhile: what was noted of it now, nobody would ever remove.
                continue;
            }
            *self.reclaimed.entry(outcome.key).or_default() += outcome.freed;
            self.judge(&outcome, now);
        }
        freed
    }

    /// A tenant that thrashes, or of which nothing can be had, is left alone for a while.
    fn judge(&mut self, outcome: &Outcome, now: Instant) {
        let path = self.path(outcome.key);
        tracing::trace!(tenant = path, freed = outcome.freed, beside = outcome.beside, took = ?outcome.took, "reclaimed");
        if let Some(error) = &outcome.error {
            self.errors += 1;
            tracing::warn!(tenant = path, %error, "reclaim refused");
            let rule = Rule::KernelError {
                error: error.clone(),
            };
            let event = TenantEvent::new(outcome.key, Action::ReclaimRefused, rule);
            self.decisions.record(&path, event, now);
        }
        let rest = self.rests.entry(outcome.key).or_default();
        if let Some(why) = rest.judge(outcome, now) {
            let event = TenantEvent::new(outcome.key, Action::Exempt, why);
            self.decisions.record(&path, event, now);
        }
    }

    /// Tells who keeps something of cgroups which came and went, whoever found that out; and the protection,
    /// which knobs were written.
    fn follow(&mut self, changes: &Changes, now: Instant) {
        if changes.weights_changed {
            self.credits.stir(now);
        }
        for id in &changes.removed {
            let key = Key::Cgroup(*id);
            self.monitor.app_io.remove(*id);
            self.protection.on_cgroup_removed(*id);
            self.credits.gone(*id);
            self.decisions.forget(key);
            self.rests.remove(&key);
            self.reclaimed.remove(&key);
        }
        for id in &changes.added {
            self.protection.on_cgroup_added(&self.monitor.cgroups, *id);
        }
        for (id, knob) in &changes.knobs_written {
            let left = self.protection.external(*id, *knob);
            let low = self
                .protection
                .on_knob_written(&self.monitor.cgroups, *id, *knob);
            if let (Some(low), Some(node)) = (low, self.monitor.cgroups.get_mut(*id)) {
                node.set_operator_low(low);
            }
            if left.is_none()
                && let Some(found) = self.protection.external(*id, *knob)
            {
                let applied = None;
                let rule = Rule::ForeignWrite { found, applied };
                self.record(ceded(*id, *knob, rule), now);
            }
        }
    }

    /// Writes an event into the decision log.
    fn record(&mut self, event: TenantEvent, now: Instant) {
        let path = self.path(event.key);
        self.decisions.record(&path, event, now);
    }

    /// How a tenant is called.
    pub(crate) fn path(&self, key: Key) -> String {
        match key {
            Key::Unmanaged => "-".to_owned(),
            Key::Cgroup(id) => self.protection.path(&self.monitor.cgroups, id),
        }
    }

    /// The next look has to come before the free memory above the reserve can be gone.
    fn wait(&mut self) -> Duration {
        let memory = self.monitor.memory.memory();
        let reserve = self.config.policy().free_headroom(&memory);
        // Nothing fills memory faster than a quarter of it a second for long.
        let speed = memory.consumption_rate.max(memory.total / 4).max(1);
        let millis = memory.free.saturating_sub(reserve).saturating_mul(500) / speed;
        let shortest = match (memory.consumption_rate > 0, self.monitor.budget.allows()) {
            (true, true) => 50,
            (true, false) => 100,
            (false, _) => 200,
        };
        Duration::from_millis(millis.clamp(shortest, 1000))
    }

    /// The tenants' ids in the order of the snapshot.
    pub(crate) fn ids(&self) -> impl Iterator<Item = Option<CgroupId>> {
        self.snapshot.tenants.values().map(|t| match t.key {
            Key::Cgroup(id) => Some(id),
            Key::Unmanaged => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_kernel::probes::Counters;

    /// Removals are told by events, and where those are late, found by who reads.
    #[test]
    fn what_was_seen_of_a_cgroup_goes_with_it_whoever_finds_it_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("cgroup.controllers"), "memory\n").unwrap();
        std::fs::write(path.join("memory.stat"), "file 4096\n").unwrap();
        let fs = CgroupFs::open_fixture(dir.path(), true).unwrap();
        let (features, app_io) = (
            ReclaimFeatures::default(),
            AppIoMonitor::unavailable("a test"),
        );
        let mut agent = Agent::new(
            Config::default(),
            &fs,
            features,
            ProtectionController::new(None),
            None,
            app_io,
        )
        .unwrap();
        let now = Instant::now();
        let id = agent.monitor.cgroups.breadth_first()[0];
        agent
            .monitor
            .app_io
            .record_counters(id, Counters::default(), now);
        assert!(agent.monitor.app_io.has_counters(id));

        let mut changes = Changes::default();
        agent.monitor.cgroups.remove(id, &mut changes);
        assert_eq!(changes.removed, [id]);
        agent.follow(&changes, now);
        assert!(!agent.monitor.app_io.has_counters(id));
    }
}
