//! The agent: the stages of one tick, and the handling of cgroups that appear and disappear.

mod reload;
mod requests;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::{Duration, Instant};

use justitia_api::{Action, Reason, ReclaimExemption, Rule};
use justitia_cgroup_tree::Changes;
use justitia_kernel::cgroup::{CgroupFs, CgroupId};
use justitia_kernel::knob::Knob;
use justitia_kernel::proc::ProcFs;

use crate::config::Config;
use crate::device::credits::Credits;
use crate::knobs::{KnobStore, log_restored};
use crate::model::{Key, Snapshot};
use crate::monitor::{AppIoMonitor, Monitor, Switches, thread_cpu};
use crate::page_cache::protection::{marked_external, written_by};
use crate::page_cache::reclaim::{ReclaimController, Reclaimer};
use crate::page_cache::slab::{SlabController, plan_slab};
use crate::page_cache::{Entitlements, ProtectionController, ReclaimFeatures, UnmanagedReclaim};
use crate::recharge::RechargeController;
use crate::status::decision_log::{Decided, DecisionLog};
use crate::weights::DeclaredWeights;

/// Memory and tenants are sampled at least this often, to keep the protection and the status current.
const SAMPLE_PERIOD: Duration = Duration::from_secs(1);
/// The same while free memory is short, even if the CPU budget is used up.
const SAMPLE_PERIOD_WHEN_SHORT: Duration = Duration::from_millis(250);
/// The same while unmapped page cache is above its cap, which the kernel does not enforce.
const SAMPLE_PERIOD_WHEN_OVER: Duration = Duration::from_millis(100);
/// The shortest time between ticks while cgroups are identified, some in each tick.
const INQUIRY_PERIOD: Duration = Duration::from_millis(100);
/// The next tick comes after half of the time in which free memory could fall to the headroom: milliseconds for each second of
/// it.
const WAIT_MS_PER_SECOND: u64 = 500;

/// The agent.
#[derive(Debug)]
pub struct Agent {
    pub(crate) config: Config,
    pub(crate) monitor: Monitor,
    /// The knobs that the agent writes; `None` if it only observes.
    pub(crate) knobs: Option<KnobStore>,
    pub(crate) protection: ProtectionController,
    pub(crate) credits: Credits,
    pub(crate) recharge: RechargeController,
    pub(crate) reclaim: ReclaimController,
    pub(crate) slab: SlabController,
    pub(crate) weights: DeclaredWeights,
    pub(crate) features: ReclaimFeatures,
    pub(super) switches: Switches,
    pub(crate) decisions: DecisionLog,
    /// Decisions that an observing agent would make and has not logged yet; `None` if it acts.
    pub(super) dry: Option<DecisionLog>,
    pub(crate) started: Instant,
    last_sample: Option<Instant>,
    /// When free memory last sufficed, or reclaim was last planned.
    answered: Instant,
    last_protection: Option<Instant>,
    pub(crate) snapshot: Snapshot,
    pub(crate) entitlements: Entitlements,
}

impl Agent {
    /// Samples everything once. With a knob store and a reclaimer the agent acts; without them it only observes.
    ///
    /// # Errors
    /// If `/proc` cannot be read.
    pub fn new(
        config: Config,
        fs: &CgroupFs,
        features: ReclaimFeatures,
        knobs: Option<KnobStore>,
        reclaimer: Option<Reclaimer>,
        app_io: AppIoMonitor,
    ) -> justitia_kernel::Result<Self> {
        let now = Instant::now();
        let observe = reclaimer.is_none();
        let proc = ProcFs::open(Path::new("/proc"))?;
        let monitor = Monitor::new(fs, proc, features, &config, app_io, now)?;
        let credits = Credits::open(&config, fs.root());
        let recharge = RechargeController::open(&config, fs.root().id(), !observe);
        let mut agent = Self {
            credits,
            recharge,
            config,
            monitor,
            knobs,
            protection: ProtectionController::default(),
            reclaim: ReclaimController::new(reclaimer, features),
            slab: SlabController::new(fs.root().clone()),
            weights: DeclaredWeights::default(),
            features,
            switches: Switches::new(Path::new("/sys"), now),
            decisions: DecisionLog::new(now, observe),
            dry: observe.then(|| DecisionLog::new(now, true)),
            started: now,
            last_sample: None,
            answered: now,
            last_protection: None,
            snapshot: Snapshot::default(),
            entitlements: Entitlements::default(),
        };
        if let Some(knobs) = &mut agent.knobs {
            for id in agent.monitor.cgroups.breadth_first() {
                ProtectionController::on_cgroup_added(knobs, &mut agent.monitor.cgroups, id);
            }
        }
        Ok(agent)
    }

    /// One tick of the loop. Returns the longest time until the next.
    ///
    /// # Errors
    /// If `/proc` cannot be read any more.
    pub fn tick(&mut self, now: Instant) -> justitia_kernel::Result<Duration> {
        let decided = self.reclaim.take_results(&mut self.monitor, now);
        self.record_all(decided, now);
        if let Some(knobs) = &mut self.knobs {
            knobs.note_writers();
        }
        let mut changes = self.monitor.poll(&self.config, now);
        self.follow_switches(now, &mut changes);
        self.monitor.sample_reuse(self.entitlements.capacity, now);
        let short = self.is_memory_short(now);
        if self.is_sample_due(short, now) {
            self.sample(now, &mut changes)?;
            self.update_entitlements(now);
            self.reclaim_excess(now, &mut changes);
            self.cap_slab(now);
            self.protect(now);
            self.last_sample = Some(now);
            self.answered = now;
        } else if !short {
            self.answered = now;
        }
        self.apply_changes(&changes, now);
        self.restore_weights(now);
        self.update_device_bandwidth(now);
        self.reclaim_excess_of_writers(now);
        self.recharge_shared_files(now);
        self.log_dry(now);
        Ok(self.next_wait(now))
    }

    /// Adopts another LRU or other I/O schedulers, if an operator has switched them.
    fn follow_switches(&mut self, now: Instant, changes: &mut Changes) {
        if let Some(features) = self.switches.poll(self.features, now) {
            let (multi_gen, bfq) = (features.multi_gen, features.bfq);
            tracing::info!(multi_gen, bfq, "the LRU or a disk's scheduler was switched");
            self.features = features;
            self.monitor.set_features(features, changes);
        }
    }

    /// Whether a sample is due: each [`SAMPLE_PERIOD`], and earlier while free memory is short.
    fn is_sample_due(&mut self, short: bool, now: Instant) -> bool {
        let elapsed = self.last_sample.map(|at| now - at);
        if elapsed.is_none_or(|elapsed| elapsed >= SAMPLE_PERIOD) {
            return true;
        }
        let period = match self.unmapped_room(now) {
            Some(0) => SAMPLE_PERIOD_WHEN_OVER,
            _ => SAMPLE_PERIOD_WHEN_SHORT,
        };
        let overdue = elapsed.is_some_and(|elapsed| elapsed >= period);
        short && (overdue || self.monitor.budget.allows())
    }

    /// Samples the memory and the tenants.
    fn sample(&mut self, now: Instant, changes: &mut Changes) -> justitia_kernel::Result<()> {
        let freed = self.reclaim.take_freed();
        self.monitor.sample(now, freed, changes)
    }

    /// Takes a snapshot of the samples, and computes the tenants' entitlements.
    pub(super) fn update_entitlements(&mut self, now: Instant) {
        let reclaim = &self.reclaim;
        // The kernel's reclaim from the root spares only protected cgroups.
        let unmanaged = (self.monitor.unmanaged.reclaim()
            == Some(UnmanagedReclaim::RootMemoryReclaim)
            && self.monitor.cgroups.has_unmanaged_cgroups())
        .then_some(ReclaimExemption::UnmanagedChild);
        let exempt = |key: Key| {
            let unmanaged = unmanaged.filter(|_| key == Key::Unmanaged);
            unmanaged.or_else(|| reclaim.exempt(key, now))
        };
        self.snapshot = self
            .monitor
            .snapshot(&self.config, now, reclaim.in_flight(now), exempt);
        reclaim.leave_out_anonymous(&mut self.snapshot, now);
        self.entitlements = Entitlements::of(&self.snapshot, &self.config.policy());
    }

    /// Reclaims from the tenants above their entitlement, if free memory is short.
    fn reclaim_excess(&mut self, now: Instant, changes: &mut Changes) {
        let mut intents = self.reclaim.intents(&self.snapshot, &self.entitlements);
        let outdated = intents.outdated(&self.monitor, now);
        if !outdated.is_empty() {
            for id in outdated {
                self.monitor.sample_one(id, now, changes);
            }
            self.update_entitlements(now);
            intents = self.reclaim.intents(&self.snapshot, &self.entitlements);
            // The new samples may select other tenants, whose samples are old: the next tick samples those.
            intents.leave_out_outdated(&self.monitor, now);
        }
        let since = self.answered;
        let decided = self
            .reclaim
            .tick(&self.monitor, &self.config, intents, since);
        self.record_all(decided, now);
    }

    /// Shrinks reclaimable slab, if it is above its cap.
    fn cap_slab(&mut self, now: Instant) {
        let plan = plan_slab(&self.snapshot, &self.config.policy());
        let decided = self.slab.tick(self.knobs.as_mut(), plan.as_ref());
        self.record_all(decided, now);
        let plan = plan.filter(|_| self.slab.is_over());
        let above = plan.map_or_else(Vec::new, |plan| plan.above);
        for (key, reason) in self.slab.due(above, now) {
            let (monitor, config) = (&self.monitor, &self.config);
            let decided = self.reclaim.shrink_slab(monitor, config, key, reason);
            self.record_all(decided.into_iter().collect(), now);
        }
    }

    /// Reclaims the pages that buffered writers hold beyond their dirty budget.
    fn reclaim_excess_of_writers(&mut self, now: Instant) {
        for excess in self.credits.surpluses() {
            let (config, snapshot) = (&self.config, &self.snapshot);
            let decided = self
                .reclaim
                .reclaim_from_writer(&self.monitor, config, snapshot, excess);
            self.record_all(decided.into_iter().collect(), now);
        }
    }

    /// Takes back knobs that systemd or the kubelet has reset.
    fn take_back(&mut self, now: Instant) {
        let (Some(knobs), cgroups) = (&mut self.knobs, &self.monitor.cgroups) else {
            return;
        };
        let root = cgroups.root_cgroup();
        let cgroup = |id| match id {
            id if id == root.id() => Some(root),
            id => cgroups.get(id).map(|node| &node.cgroup),
        };
        for back in knobs.take_back(cgroup, now) {
            let (key, knob) = (Key::Cgroup(back.id), back.knob.to_string());
            tracing::info!(
                tenant = self.path(key),
                knob,
                found = back.found,
                by = back.by,
                "no longer external: it was set back"
            );
            if back.knob == Knob::MemoryLow {
                let low = back.value.parse().unwrap_or(0);
                self.monitor.cgroups.record_low(back.id, Ok(Some(low)));
            }
            let (found, by) = (back.found, Some(back.by).filter(|by| !by.is_empty()));
            let rule = Rule::SetBack { found, by };
            self.record(Decided::new(key, Action::TakeBack { knob }, rule), now);
        }
    }

    /// Writes `memory.low` as planned, and retries failed restores, at most each [`SAMPLE_PERIOD`].
    fn protect(&mut self, now: Instant) {
        if self
            .last_protection
            .is_some_and(|at| now - at < SAMPLE_PERIOD)
        {
            return;
        }
        self.take_back(now);
        let decided = self.protection.tick(
            self.knobs.as_mut(),
            &self.monitor.cgroups,
            &self.snapshot,
            &self.entitlements,
        );
        for one in &decided {
            // It counts at once: the event of that write may have been lost.
            if let (Key::Cgroup(id), Action::MarkExternal { .. }) = (one.key, &one.action) {
                self.monitor.cgroups.read_low(id);
            }
        }
        self.record_all(decided, now);
        if let Some(knobs) = &mut self.knobs {
            log_restored("it could not be restored before", &knobs.retry_restores());
        }
        self.last_protection = Some(now);
    }

    /// Writes declared weights that the kernel's files lack, if configured.
    pub(super) fn restore_weights(&mut self, now: Instant) {
        let Some(knobs) = &mut self.knobs else {
            return;
        };
        let restore = self.config.weights.restore;
        let decided = self
            .weights
            .tick(knobs, &self.monitor.cgroups, restore, now);
        if decided.is_empty() {
            return;
        }
        self.record_all(decided, now);
        // As after our own writes of limits.
        let changes = self.monitor.process_events(&self.config, now);
        self.apply_changes(&changes, now);
    }

    /// Sets the limits of contended disks.
    fn update_device_bandwidth(&mut self, now: Instant) {
        self.credits
            .turn(&self.config, &self.monitor, self.knobs.as_mut(), now);
        if self.record_moved(now) {
            // Our own writes cause events, too. Handled now, they do not cause another tick.
            let changes = self.monitor.process_events(&self.config, now);
            self.apply_changes(&changes, now);
        }
    }

    /// Adds changed limits of disks to the decision log; returns whether there are any.
    fn record_moved(&mut self, now: Instant) -> bool {
        let changed = self.credits.moved();
        let any = !changed.is_empty();
        for change in changed {
            let key = match change.id {
                id if id == self.monitor.cgroups.root() => Key::Unmanaged,
                id => Key::Cgroup(id),
            };
            if change.knob == Knob::MemoryHigh
                && let Some(node) = self.monitor.cgroups.get_mut(change.id)
            {
                node.memory.note_high(change.to.is_some());
            }
            let knob = change.knob.to_string();
            let action = match change.to {
                Some(to) => Action::Set {
                    knob,
                    from: None,
                    to,
                },
                None => Action::Restore { knob },
            };
            self.record(Decided::new(key, action, Reason::Text(change.why)), now);
        }
        any
    }

    /// Moves the charge of shared files to the planned tenants.
    fn recharge_shared_files(&mut self, now: Instant) {
        let (snapshot, entitlements) = (&self.snapshot, &self.entitlements);
        let decided = self
            .recharge
            .tick(&mut self.monitor, snapshot, entitlements, now);
        self.record_all(decided, now);
    }

    /// The time until the next tick. It ends before the free memory above the headroom, or the room below the cap of unmapped
    /// page cache, can be used up.
    fn next_wait(&mut self, now: Instant) -> Duration {
        let memory = self.monitor.memory.memory(now);
        let policy = self.config.policy();
        let headroom = policy.free_headroom(&memory);
        // Memory never fills faster than a quarter of it a second for long.
        let speed = memory.consumption_rate().max(memory.total / 4).max(1);
        let above = memory.free.saturating_sub(headroom);
        let above = above.min(self.unmapped_room(now).unwrap_or(u64::MAX));
        let millis = above.saturating_mul(WAIT_MS_PER_SECOND) / speed;
        let shortest = match (memory.consumption_rate() > 0, self.monitor.budget.allows()) {
            (true, true) => 50,
            (true, false) => 100,
            (false, _) => 200,
        };
        let longest = if self.slab.is_over() {
            SAMPLE_PERIOD_WHEN_SHORT
        } else {
            SAMPLE_PERIOD
        };
        let wait = Duration::from_millis(millis.max(shortest)).min(longest);
        let inquiry = self.monitor.cgroups.next_inquiry();
        let inquiry = inquiry.map(|at| at.saturating_duration_since(now).max(INQUIRY_PERIOD));
        let wait = inquiry.map_or(wait, |soon| soon.min(wait));
        self.credits.wait(now).map_or(wait, |soon| soon.min(wait))
    }

    /// Whether free memory is short, or unmapped page cache or slab may be above its cap.
    fn is_memory_short(&self, now: Instant) -> bool {
        let memory = self.monitor.memory.memory(now);
        memory.free < self.config.policy().free_headroom(&memory)
            || self.unmapped_room(now) == Some(0)
            || self.slab.is_over()
    }

    /// The bytes that may be read before unmapped page cache reaches its cap; `None` without a cap.
    fn unmapped_room(&self, now: Instant) -> Option<u64> {
        let memory = self.monitor.memory.memory(now);
        self.config.policy().unmapped_room(&memory)
    }

    /// Does a client's request, without charging it to the monitor's CPU budget.
    pub(crate) fn answer(&mut self, work: impl FnOnce(&mut Self)) {
        let before = thread_cpu();
        work(self);
        let cost = thread_cpu().saturating_sub(before);
        self.monitor.budget.refund(cost);
    }

    /// The tenants' ids in the order of the snapshot.
    pub(crate) fn ids(&self) -> impl Iterator<Item = Option<CgroupId>> {
        self.snapshot.tenants.values().map(|t| match t.key {
            Key::Cgroup(id) => Some(id),
            Key::Unmanaged => None,
        })
    }
}

// Added and removed cgroups, written knobs, and the decision log.

impl Agent {
    /// Passes added and removed cgroups and written knobs to all parts with state of cgroups.
    pub(super) fn apply_changes(&mut self, changes: &Changes, now: Instant) {
        if changes.weights_changed {
            self.credits.stir(now);
        }
        for id in &changes.removed {
            let key = Key::Cgroup(*id);
            self.monitor.app_io.remove(*id);
            if let Some(knobs) = &mut self.knobs {
                knobs.on_cgroup_removed(*id);
            }
            self.protection.on_cgroup_removed(*id);
            self.weights.on_cgroup_removed(*id);
            self.credits.gone(*id);
            self.decisions.forget(key);
            self.reclaim.on_cgroup_removed(*id);
        }
        if let Some(knobs) = &mut self.knobs {
            for id in &changes.added {
                ProtectionController::on_cgroup_added(knobs, &mut self.monitor.cgroups, *id);
            }
        }
        for (id, knob) in &changes.knobs_written {
            let external = self.found_external(*id, *knob);
            let low = self.protection.on_knob_written(
                self.knobs.as_mut(),
                &self.monitor.cgroups,
                *id,
                *knob,
            );
            self.monitor.cgroups.record_low(*id, low);
            if external.is_none()
                && let Some(found) = self.found_external(*id, *knob)
            {
                let knobs = self.knobs.as_ref();
                let by = knobs.and_then(|knobs| written_by(knobs, *id, *knob));
                let applied = None;
                let rule = Rule::ExternalWrite { found, applied, by };
                self.record(marked_external(*id, *knob, rule), now);
            }
        }
    }

    /// The value that another writer has set in a knob.
    fn found_external(&self, id: CgroupId, knob: Knob) -> Option<String> {
        let found = self.knobs.as_ref()?.found_external(id, knob)?;
        Some(found.to_owned())
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
        if let Some(dry) = self.dry.as_mut().filter(|_| decided.is_deed()) {
            dry.record(&path, decided.clone(), now);
        }
        self.decisions.record(&path, decided, now);
    }

    /// Logs the decisions that an observing agent would have made.
    fn log_dry(&mut self, now: Instant) {
        let Some((would, left_out)) = self.dry.as_mut().map(|dry| dry.take_due(now)) else {
            return;
        };
        for one in would {
            tracing::info!(tenant = one.path, why = %one.reason, "{}", one.what());
        }
        if left_out > 0 {
            tracing::info!("and {left_out} decisions more: `justitia status` shows all tenants");
        }
    }

    /// The name of a tenant for people.
    pub(crate) fn path(&self, key: Key) -> String {
        self.monitor.cgroups.tenant_path(key.cgroup())
    }
}
