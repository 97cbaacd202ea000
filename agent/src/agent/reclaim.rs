//! Requests reclaim from tenants, and takes the results.

use std::time::{Duration, Instant};

use justitia_api::{Action, Reason, Rule};

use super::tick::Agent;
use crate::enforce::event::TenantEvent;
use crate::enforce::reclaim::{
    Pressure, ReclaimBackoff, ReclaimRequest, ReclaimResult, ReclaimTarget, Reclaimer,
};
use crate::monitor::{Changes, UnmanagedReclaim};
use crate::plan::{Key, ReclaimIntent, plan_reclaim, reclaimable_above_minimums};

/// The sample of a tenant from which pages are reclaimed must not be older than this.
const MAX_SAMPLE_AGE: Duration = Duration::from_millis(500);

impl Agent {
    /// Reclaims from the tenants above their entitlement, if free memory is short.
    pub(super) fn reclaim_excess(&mut self, now: Instant, changes: &mut Changes) {
        let mut intents = self.reclaim_intents();
        if self.sample_targets(&intents, now, changes) {
            self.plan(now);
            intents = self.reclaim_intents();
        }
        for intent in intents {
            if let Some(target) = self.reclaim_target(intent.key) {
                let reason = Rule::Excess(intent.reason).into();
                self.request_reclaim(intent.key, target, intent.bytes, reason, now);
            }
        }
    }

    /// Reclaims the pages that buffered writers hold beyond their dirty budget, down to their minimum.
    pub(super) fn reclaim_excess_of_writers(&mut self, now: Instant) {
        for excess in self.credits.surpluses() {
            let key = Key::Cgroup(excess.id);
            let backoff = self.backoffs.get(&key);
            let exempt = backoff.and_then(|backoff| backoff.exempt(now));
            let node = self.monitor.cgroups.get(excess.id);
            let cgroup = node.map(|node| node.cgroup.clone());
            if exempt.is_none()
                && !self.reclaim_in_flight.contains_key(&key)
                && let Some(cgroup) = cgroup
            {
                let target = ReclaimTarget::Cgroup(cgroup, self.features.file_only());
                let reason = Reason::Text(excess.why);
                let bytes = excess
                    .bytes
                    .min(reclaimable_above_minimums(&self.snapshot, key));
                if bytes > 0 {
                    self.request_reclaim(key, target, bytes, reason, now);
                }
            }
        }
    }

    fn reclaim_intents(&self) -> Vec<ReclaimIntent> {
        let mut intents = plan_reclaim(&self.snapshot, &self.entitlements);
        intents.retain(|intent| !self.reclaim_in_flight.contains_key(&intent.key));
        intents
    }

    /// Samples the targets again whose samples are too old. Returns whether there were any.
    fn sample_targets(
        &mut self,
        intents: &[ReclaimIntent],
        now: Instant,
        changes: &mut Changes,
    ) -> bool {
        let mut sampled = false;
        for intent in intents {
            if let Key::Cgroup(id) = intent.key
                && let Some(node) = self.monitor.cgroups.get(id)
                && node.memory.age(now).is_none_or(|age| age > MAX_SAMPLE_AGE)
            {
                self.monitor.sample_one(id, now, changes);
                sampled = true;
            }
        }
        sampled
    }

    /// How to reclaim a tenant's own pages, if there is a way.
    fn reclaim_target(&self, key: Key) -> Option<ReclaimTarget> {
        let cgroups = &self.monitor.cgroups;
        let swappiness = self.features.file_only();
        let (cgroup, children) = match key {
            Key::Cgroup(id) => {
                let node = cgroups.get(id)?;
                if node.children.is_empty() {
                    return Some(ReclaimTarget::Cgroup(node.cgroup.clone(), swappiness));
                }
                (&node.cgroup, node.children.as_slice())
            }
            Key::Unmanaged => match self.monitor.unmanaged.reclaim()? {
                UnmanagedReclaim::RootLruGen => return Some(ReclaimTarget::RootList),
                UnmanagedReclaim::RootMemoryReclaim => {
                    (self.monitor.unmanaged.root(), cgroups.top_level())
                }
            },
        };
        let children = children.iter().filter_map(|id| cgroups.get(*id));
        Some(ReclaimTarget::OwnPages {
            cgroup: cgroup.clone(),
            children: children.map(|node| node.cgroup.clone()).collect(),
            swappiness,
        })
    }

    /// Requests to reclaim so many bytes of a tenant's file pages. In observe mode it only records that.
    fn request_reclaim(
        &mut self,
        key: Key,
        target: ReclaimTarget,
        bytes: u64,
        reason: Reason,
        now: Instant,
    ) {
        let path = self.path(key);
        tracing::debug!(tenant = path, bytes, why = %reason, "reclaim");
        let event = TenantEvent::new(key, Action::Reclaim { bytes }, reason);
        self.decisions.record(&path, event, now);
        if let Some(reclaimer) = &self.reclaimer {
            self.reclaim_in_flight.insert(key, bytes);
            let pressure = self.pressure(key);
            reclaimer.send(ReclaimRequest {
                key,
                target,
                bytes,
                pressure,
            });
        }
    }

    /// What says whether a tenant thrashes.
    fn pressure(&self, key: Key) -> Option<Pressure> {
        let Key::Cgroup(id) = key else { return None };
        let cgroups = &self.monitor.cgroups;
        let root = cgroups.get(cgroups.delegation_root(id)?)?;
        let backoff = self.backoffs.get(&key);
        Some(Pressure {
            cgroup: root.cgroup.clone(),
            full_avg10_max: self.config.pressure.full_avg10_max,
            own_limits: backoff.map(ReclaimBackoff::own_limits).unwrap_or_default(),
        })
    }

    /// Takes the results of the reclaimer. Returns the bytes freed that the machine's own counters leave out.
    pub(super) fn take_reclaim_results(&mut self, now: Instant) -> u64 {
        let results: Vec<ReclaimResult> =
            self.reclaimer.iter().flat_map(Reclaimer::results).collect();
        let mut freed = 0;
        for result in results {
            self.reclaim_in_flight.remove(&result.key);
            if let (Key::Cgroup(id), Some(stat)) = (result.key, &result.after) {
                self.monitor.record_memory(id, stat, now);
                freed += result.freed + result.freed_from_children;
            }
            if let Key::Cgroup(id) = result.key
                && self.monitor.cgroups.get(id).is_none()
            {
                // It was removed meanwhile: entries made for it now would never be removed.
                continue;
            }
            *self.reclaimed.entry(result.key).or_default() += result.freed;
            self.update_backoff(&result, now);
        }
        freed
    }

    /// Pauses reclaim from a tenant that thrashes, or of which nothing could be freed.
    fn update_backoff(&mut self, result: &ReclaimResult, now: Instant) {
        let path = self.path(result.key);
        tracing::trace!(tenant = path, freed = result.freed, freed_from_children = result.freed_from_children, took = ?result.took, "reclaimed");
        if let Some(error) = &result.error {
            self.reclaim_errors += 1;
            tracing::warn!(tenant = path, %error, "the kernel refused to reclaim");
            let rule = Rule::KernelError {
                error: error.clone(),
            };
            let event = TenantEvent::new(result.key, Action::ReclaimRefused, rule);
            self.decisions.record(&path, event, now);
        }
        let backoff = self.backoffs.entry(result.key).or_default();
        if let Some(why) = backoff.update(result, now) {
            let event = TenantEvent::new(result.key, Action::Exempt, why);
            self.decisions.record(&path, event, now);
        }
    }
}
