//! Requests reclaim from tenants, takes the results, and pauses after failed requests.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use justitia_api::{Action, Reason, ReclaimExemption, Rule, SlabReason};
use justitia_kernel::cgroup::CgroupId;

use super::plan::{
    AnonymousIntent, ReclaimIntent, plan_anonymous, plan_reclaim, reclaimable_above_minimums,
};
use super::reclaimer::{Reclaimer, has_hung};
use super::request::{OwnLimits, Pressure, ReclaimRequest, ReclaimResult, ReclaimTarget};
use crate::config::Config;
use crate::device::credits::Surplus;
use crate::model::{Key, Snapshot};
use crate::monitor::Monitor;
use crate::page_cache::entitlements::Entitlements;
use crate::page_cache::slab::NUDGE;
use crate::page_cache::unmanaged::{ReclaimFeatures, UnmanagedReclaim};
use crate::status::decision_log::Decided;

#[cfg(test)]
mod tests;

/// The limit for the age of a tenant's sample when pages are reclaimed from it.
const MAX_SAMPLE_AGE: Duration = Duration::from_millis(500);

/// The planned reclaim.
#[derive(Debug, Default)]
pub struct ReclaimIntents {
    /// Cache above entitlements.
    pub excess: Vec<ReclaimIntent>,
    /// Cold anonymous memory.
    pub anonymous: Option<AnonymousIntent>,
}

impl ReclaimIntents {
    /// The cgroups whose samples are too old for reclaim.
    #[must_use]
    pub fn outdated(&self, monitor: &Monitor, now: Instant) -> Vec<CgroupId> {
        let excess = self.excess.iter().map(|intent| intent.key);
        let anonymous = self.anonymous.iter().map(|intent| intent.key);
        let outdated = excess
            .chain(anonymous)
            .filter(|key| is_outdated(monitor, *key, now));
        outdated.filter_map(Key::cgroup).collect()
    }

    /// Drops the intents for these cgroups.
    pub fn leave_out_outdated(&mut self, monitor: &Monitor, now: Instant) {
        let stays = |key: Key| !is_outdated(monitor, key, now);
        self.excess.retain(|intent| stays(intent.key));
        self.anonymous = self.anonymous.take().filter(|intent| stays(intent.key));
    }
}

/// Whether a tenant's sample is too old for reclaim.
fn is_outdated(monitor: &Monitor, key: Key, now: Instant) -> bool {
    let node = key.cgroup().and_then(|id| monitor.cgroups.get(id));
    node.is_some_and(|node| {
        let age = node.memory.age(now);
        age.is_none_or(|age| age > MAX_SAMPLE_AGE)
    })
}

/// A request without a result yet.
#[derive(Clone, Copy, Debug)]
struct InFlight {
    bytes: u64,
    sent: Instant,
    /// The last time before it when a shortage of free memory could have been answered; `None` if it answers none.
    since: Option<Instant>,
    /// Whether it is for anonymous memory.
    anonymous: bool,
}

/// Reclaims from tenants. In observe mode it only returns the decisions.
#[derive(Debug)]
pub struct ReclaimController {
    /// `None` in observe mode.
    reclaimer: Option<Reclaimer>,
    features: ReclaimFeatures,
    /// Requests in the reclaimer.
    in_flight: HashMap<Key, InFlight>,
    backoffs: HashMap<Key, ReclaimBackoff>,
    /// The same for anonymous memory: a lack of it says nothing about files.
    anonymous_backoffs: HashMap<Key, ReclaimBackoff>,
    /// Bytes reclaimed from each tenant.
    reclaimed: HashMap<Key, u64>,
    /// Bytes reclaimed from cgroups since they were last taken.
    freed: u64,
    errors: u64,
}

impl ReclaimController {
    /// With a reclaimer it reclaims; without one it only returns the decisions.
    #[must_use]
    pub fn new(reclaimer: Option<Reclaimer>, features: ReclaimFeatures) -> Self {
        Self {
            reclaimer,
            features,
            in_flight: HashMap::new(),
            backoffs: HashMap::new(),
            anonymous_backoffs: HashMap::new(),
            reclaimed: HashMap::new(),
            freed: 0,
            errors: 0,
        }
    }

    /// Requested bytes whose result can be expected soon: without hung requests.
    #[must_use]
    pub fn in_flight(&self, now: Instant) -> u64 {
        let sent = self.in_flight.values();
        let soon = sent.filter(|request| !has_hung(request.sent, now));
        soon.map(|request| request.bytes).sum()
    }

    /// Why nothing is reclaimed from a tenant for now, if so.
    #[must_use]
    pub fn exempt(&self, key: Key, now: Instant) -> Option<ReclaimExemption> {
        if self.hangs(key, now) {
            return Some(ReclaimExemption::NoProgress);
        }
        self.backoffs.get(&key)?.exempt(now)
    }

    /// Excludes anonymous memory that is not swapped out for now.
    pub fn leave_out_anonymous(&self, snapshot: &mut Snapshot, now: Instant) {
        for tenant in snapshot.tenants.values_mut() {
            let backoff = self.anonymous_backoffs.get(&tenant.key);
            if backoff.is_some_and(|backoff| backoff.exempt(now).is_some()) {
                tenant.anon = 0;
            }
        }
    }

    /// Whether a request for a tenant has waited for its result so long that it hangs.
    fn hangs(&self, key: Key, now: Instant) -> bool {
        let sent = self.in_flight.get(&key);
        sent.is_some_and(|request| has_hung(request.sent, now))
    }

    /// Bytes reclaimed from a tenant.
    #[must_use]
    pub fn reclaimed_from(&self, key: Key) -> u64 {
        self.reclaimed.get(&key).copied().unwrap_or(0)
    }

    /// Bytes reclaimed from all existing tenants.
    #[must_use]
    pub fn reclaimed(&self) -> u64 {
        self.reclaimed.values().sum()
    }

    /// Requests that the kernel refused.
    #[must_use]
    pub const fn errors(&self) -> u64 {
        self.errors
    }

    /// Bytes freed since the last call that the machine's own counters do not include.
    pub const fn take_freed(&mut self) -> u64 {
        std::mem::replace(&mut self.freed, 0)
    }

    /// A cgroup was removed: its state is dropped.
    pub fn on_cgroup_removed(&mut self, id: CgroupId) {
        let key = Key::Cgroup(id);
        self.backoffs.remove(&key);
        self.anonymous_backoffs.remove(&key);
        self.reclaimed.remove(&key);
    }

    /// One tick: requests the planned reclaim. `since`: the last time when a shortage of free memory could have been answered.
    /// Returns the requests.
    pub fn tick(
        &mut self,
        monitor: &Monitor,
        config: &Config,
        intents: ReclaimIntents,
        since: Instant,
    ) -> Vec<Decided> {
        let mut decided = Vec::new();
        for intent in intents.excess {
            if let Some(target) = self.target(monitor, intent.key) {
                let request = self.prepare(monitor, config, intent.key, target, intent.bytes);
                let reason = Rule::Excess(intent.reason).into();
                decided.push(self.request(monitor, request, reason, Some(since)));
            }
        }
        if let Some(intent) = intents.anonymous
            && let Key::Cgroup(id) = intent.key
            && let Some(node) = monitor.cgroups.get(id)
        {
            let target = ReclaimTarget::Anonymous(node.cgroup.clone());
            let request = self.prepare(monitor, config, intent.key, target, intent.bytes);
            let reason = Rule::Anonymous(intent.reason).into();
            decided.push(self.request(monitor, request, reason, Some(since)));
        }
        decided
    }

    /// A request, with the minimums and the pressure to read again right before it is carried out.
    fn prepare(
        &self,
        monitor: &Monitor,
        config: &Config,
        key: Key,
        target: ReclaimTarget,
        bytes: u64,
    ) -> ReclaimRequest {
        let id = match key {
            Key::Cgroup(id) => Some(id),
            Key::Unmanaged => None,
        };
        let chain = std::iter::successors(id, |id| monitor.cgroups.get(*id)?.parent);
        let cgroups = chain.filter_map(|id| monitor.cgroups.get(id));
        ReclaimRequest {
            key,
            target,
            bytes,
            minimums: cgroups.map(|node| node.cgroup.clone()).collect(),
            pressure: self.pressure(monitor, config, key),
        }
    }

    /// Reclaims the pages of a buffered writer beyond its dirty budget, down to its minimum. Returns the request.
    pub fn reclaim_from_writer(
        &mut self,
        monitor: &Monitor,
        config: &Config,
        snapshot: &Snapshot,
        excess: Surplus,
    ) -> Option<Decided> {
        let key = Key::Cgroup(excess.id);
        let cgroup = monitor.cgroups.get(excess.id)?.cgroup.clone();
        if self.in_flight.contains_key(&key) {
            return None;
        }
        let bytes = excess.bytes.min(reclaimable_above_minimums(snapshot, key));
        let target = ReclaimTarget::Cgroup(cgroup, self.features.file_only());
        let request = self.prepare(monitor, config, key, target, bytes);
        (bytes > 0).then(|| self.request(monitor, request, Reason::Text(excess.why), None))
    }

    /// Reclaims a little from a tenant whose slab is above its share of the cap: slab shrinks with it. Returns the request.
    pub fn shrink_slab(
        &mut self,
        monitor: &Monitor,
        config: &Config,
        key: Key,
        reason: SlabReason,
    ) -> Option<Decided> {
        let cgroup = monitor.cgroups.get(key.cgroup()?)?.cgroup.clone();
        if self.in_flight.contains_key(&key) {
            return None;
        }
        let target = ReclaimTarget::Cgroup(cgroup, self.features.file_only());
        let request = self.prepare(monitor, config, key, target, NUDGE);
        Some(self.request(monitor, request, Rule::Slab(reason).into(), None))
    }

    /// The intents if free memory is short, without tenants that have a request in flight. Each tenant has one request at a
    /// time, so anonymous memory and files of the same tenant take turns.
    #[must_use]
    pub fn intents(&self, snapshot: &Snapshot, entitlements: &Entitlements) -> ReclaimIntents {
        let idle = |key: &Key| !self.in_flight.contains_key(key);
        let mut anonymous =
            plan_anonymous(snapshot, entitlements).filter(|intent| idle(&intent.key));
        let swapped_out = anonymous.as_ref().map_or(0, |intent| intent.bytes);
        let mut excess = plan_reclaim(snapshot, entitlements, swapped_out);
        excess.retain(|intent| idle(&intent.key));
        if let Some(key) = anonymous.as_ref().map(|intent| intent.key) {
            let has_excess = excess.iter().any(|intent| intent.key == key);
            let last = self.backoffs.get(&key);
            if has_excess && last.is_some_and(|last| last.was_anonymous) {
                anonymous = None;
            } else {
                excess.retain(|intent| intent.key != key);
            }
        }
        ReclaimIntents { excess, anonymous }
    }

    /// How to reclaim a tenant's own pages, if possible.
    fn target(&self, monitor: &Monitor, key: Key) -> Option<ReclaimTarget> {
        let cgroups = &monitor.cgroups;
        let swappiness = self.features.file_only();
        let (cgroup, children) = match key {
            Key::Cgroup(id) => {
                let node = cgroups.get(id)?;
                if node.children.is_empty() {
                    return Some(ReclaimTarget::Cgroup(node.cgroup.clone(), swappiness));
                }
                (&node.cgroup, node.children.as_slice())
            }
            Key::Unmanaged => match monitor.unmanaged.reclaim()? {
                UnmanagedReclaim::RootLruGen => return Some(ReclaimTarget::RootList),
                UnmanagedReclaim::RootMemoryReclaim => {
                    (monitor.unmanaged.root(), cgroups.top_level())
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

    /// The pressure that shows whether a tenant thrashes.
    fn pressure(&self, monitor: &Monitor, config: &Config, key: Key) -> Option<Pressure> {
        let Key::Cgroup(id) = key else { return None };
        let cgroups = &monitor.cgroups;
        let root = cgroups.get(cgroups.delegation_root(id)?)?;
        let backoff = self.backoffs.get(&key);
        Some(Pressure {
            cgroup: root.cgroup.clone(),
            full_avg10_max: config.pressure.full_avg10_max,
            own_limits: backoff.map(ReclaimBackoff::own_limits).unwrap_or_default(),
        })
    }

    /// Sends a request to the reclaimer, if there is one. Returns the request and its reason.
    fn request(
        &mut self,
        monitor: &Monitor,
        request: ReclaimRequest,
        reason: Reason,
        since: Option<Instant>,
    ) -> Decided {
        let (key, bytes) = (request.key, request.bytes);
        let path = monitor.cgroups.tenant_path(key.cgroup());
        tracing::debug!(tenant = path, bytes, why = %reason, "reclaim");
        if let Some(reclaimer) = &self.reclaimer {
            let sent = Instant::now();
            let request_sent = InFlight {
                bytes,
                sent,
                since,
                anonymous: matches!(request.target, ReclaimTarget::Anonymous(_)),
            };
            self.in_flight.insert(key, request_sent);
            reclaimer.send(request);
        }
        Decided::new(key, Action::Reclaim { bytes }, reason)
    }

    /// Takes the results of the reclaimer. Returns the decisions that follow.
    pub fn take_results(&mut self, monitor: &mut Monitor, now: Instant) -> Vec<Decided> {
        let results: Vec<ReclaimResult> =
            self.reclaimer.iter().flat_map(Reclaimer::results).collect();
        for key in self.reclaimer.iter().flat_map(|r| r.replace_hung(now)) {
            let tenant = monitor.cgroups.tenant_path(key.cgroup());
            tracing::warn!(
                tenant,
                "reclaim hangs in the kernel; it goes on with the others"
            );
        }
        let mut decided = Vec::new();
        for result in results {
            let request = self.in_flight.remove(&result.key);
            if let Some(since) = request.and_then(|request| request.since) {
                monitor.memory.note_reaction(now - since, now);
            }
            if let (Key::Cgroup(id), Some(stat)) = (result.key, &result.after) {
                monitor.record_memory(id, stat, now);
                self.freed += result.freed + result.freed_from_children;
            }
            if let Key::Cgroup(id) = result.key
                && monitor.cgroups.get(id).is_none()
            {
                // It was removed meanwhile: new entries for it would never be removed.
                continue;
            }
            *self.reclaimed.entry(result.key).or_default() += result.freed;
            let path = monitor.cgroups.tenant_path(result.key.cgroup());
            let anonymous = request.is_some_and(|request| request.anonymous);
            decided.extend(self.update_backoff(&result, &path, anonymous, now));
        }
        decided
    }

    /// Pauses reclaim from a tenant that thrashes, or that yields nothing.
    fn update_backoff(
        &mut self,
        result: &ReclaimResult,
        path: &str,
        anonymous: bool,
        now: Instant,
    ) -> impl Iterator<Item = Decided> + use<> {
        tracing::trace!(tenant = path, freed = result.freed, freed_from_children = result.freed_from_children, took = ?result.took, "reclaimed");
        let refused = result.error.as_ref().map(|error| {
            self.errors += 1;
            tracing::warn!(tenant = path, %error, "the kernel refused to reclaim");
            let rule = Rule::KernelError {
                error: error.clone(),
            };
            Decided::new(result.key, Action::ReclaimRefused, rule)
        });
        let backoff = self.backoffs.entry(result.key).or_default();
        backoff.was_anonymous = anonymous;
        let exempt = match anonymous {
            true => {
                backoff.own_limits = result.own_limits;
                let backoff = self.anonymous_backoffs.entry(result.key).or_default();
                backoff.update_anonymous(result, now);
                None
            }
            false => backoff.update(result, now),
        };
        let exempt = exempt.map(|why| Decided::new(result.key, Action::Exempt, why));
        refused.into_iter().chain(exempt)
    }
}

/// A pause begins after this number of requests in a row that freed next to nothing.
const MAX_FRUITLESS: u32 = 3;
/// The longest pause is 2 to this power, seconds.
const MAX_EXPONENT: u32 = 4;
/// The pause of a thrashing tenant. Then its pressure is read again.
const THRASHING_PAUSE: Duration = Duration::from_secs(1);

/// The backoff of one tenant.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReclaimBackoff {
    fruitless: u32,
    until: Option<(Instant, ReclaimExemption)>,
    own_limits: OwnLimits,
    /// Whether the last request was for anonymous memory.
    was_anonymous: bool,
}

impl ReclaimBackoff {
    /// Records a result. A thrashing tenant pauses for a second. If less than an eighth of the requested bytes could be freed
    /// three times in a row, a tenant pauses for 1 s, then 2 s, at most 16 s. Returns the reason of a pause that begins.
    pub fn update(&mut self, result: &ReclaimResult, now: Instant) -> Option<ReclaimExemption> {
        self.own_limits = result.own_limits;
        if let Some(exempt) = result.exempt {
            self.until = Some((now + THRASHING_PAUSE, exempt));
            return Some(exempt);
        }
        if result.requested == 0 {
            return None;
        }
        if result.freed < result.requested / 8 {
            self.fruitless = (self.fruitless + 1).min(MAX_FRUITLESS + MAX_EXPONENT);
            if self.fruitless >= MAX_FRUITLESS {
                let pause = Duration::from_secs(1 << (self.fruitless - MAX_FRUITLESS));
                self.until = Some((now + pause, ReclaimExemption::NoProgress));
                return Some(ReclaimExemption::NoProgress);
            }
        } else {
            self.fruitless = 0;
            self.until = None;
        }
        None
    }

    /// The same for anonymous memory. It pauses after the first request that swapped out next to nothing. With the classic LRU
    /// the kernel takes files instead if it finds many inactive ones, whatever the swappiness (`cache_trim_mode` in
    /// mm/vmscan.c).
    pub fn update_anonymous(&mut self, result: &ReclaimResult, now: Instant) {
        self.fruitless = self.fruitless.max(MAX_FRUITLESS - 1);
        self.update(result, now);
    }

    /// The tenant's own limits as of the last request.
    #[must_use]
    pub const fn own_limits(&self) -> OwnLimits {
        self.own_limits
    }

    /// The reason of the current pause, if any.
    #[must_use]
    pub fn exempt(&self, now: Instant) -> Option<ReclaimExemption> {
        self.until.filter(|(at, _)| *at > now).map(|(_, why)| why)
    }
}
