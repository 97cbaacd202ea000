//! The answer to `justitia status --json`, as a whole.

use crate::{
    Decision, DeclaredWeight, ExternalKnob, GivenUpKnob, KnobStatus, Reason, TenantKind,
    WeightSource,
};
use justitia_share::num::to_f64;
use serde::{Deserialize, Serialize};

/// The version of [`Status`]. It is raised when a field changes its meaning, or is renamed or removed; not when one is
/// added.
pub const STATUS_VERSION: u32 = 2;

/// Everything that the agent tells. Amounts in bytes, times in seconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
    /// The version of this document: [`STATUS_VERSION`] of the agent.
    pub status_version: u32,
    /// The agent's version.
    pub version: String,
    /// Whether it only observes.
    pub observe: bool,
    /// For how long it has run.
    pub uptime: f64,
    /// When this was told, seconds since 1970.
    #[serde(default)]
    pub time: f64,
    /// What applications get is taken over this many seconds, at most.
    #[serde(default)]
    pub window: f64,
    /// Why nothing is known of the I/O of applications, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app_io_unavailable: Option<String>,
    /// The constants by which the agent decides.
    #[serde(default)]
    pub policy: PolicyStatus,
    /// What of their caches tenants demand.
    #[serde(default)]
    pub demand_model: DemandModel,
    /// Proportionality variation of all backlogged leaves together, over the window: 0 is perfect. `None`
    /// with fewer than two of them; [`PV_INFINITE`] where the lightest got nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pv: Option<f64>,
    /// The same of the tenants right below the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pv_top: Option<f64>,
    /// The machine's memory.
    pub memory: MemoryStatus,
    /// Every tenant, parents first; the unmanaged one last.
    pub tenants: Vec<TenantStatus>,
    /// Knobs that the agent leaves alone: another process has set them.
    pub external: Vec<ExternalKnob>,
    /// Knobs that the agent does not write any more: the kernel refused its write, or took too long for it.
    #[serde(default)]
    pub given_up: Vec<GivenUpKnob>,
    /// The last decisions, oldest first: a few of each tenant.
    pub decisions: Vec<Decision>,
    /// What works less well than it could, and the fact that is the cause.
    pub limitations: Vec<String>,
    /// What the probes lost since they were attached, by its name: all that they can lose, whether any is
    /// or not. `limitations` says in words what is lost and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probe_drops: Vec<ProbeDrops>,
    /// What the agent itself uses.
    pub agent_usage: AgentUsage,
}

impl Status {
    /// As JSON, at most `most` bytes long if that can be: decisions, external knobs and tenants, the last first, are
    /// left out as far as there is no room, and how many is said under the limitations.
    #[must_use]
    pub fn encode(mut self, most: usize) -> Vec<u8> {
        let whole = self.tenants.len();
        loop {
            // Plain data always serialises.
            let text = serde_json::to_vec(&self).unwrap_or_default();
            if text.len() <= most || self.tenants.is_empty() {
                return text;
            }
            if self.tenants.len() < whole {
                self.limitations.pop();
            }
            self.halve();
            self.limitations.push(format!(
                "Status: {} of {whole} tenants, and decisions, do not fit into {} MiB and are left out",
                whole - self.tenants.len(),
                most >> 20
            ));
        }
    }

    /// Leaves out half of what there may be much of.
    fn halve(&mut self) {
        // The unmanaged tenant is the last, and no tenant's parent. Parents come first: those that stay are whole.
        let unmanaged = self.tenants.pop();
        self.tenants.truncate(self.tenants.len() / 2);
        self.tenants
            .extend(unmanaged.filter(|_| !self.tenants.is_empty()));
        self.external.truncate(self.external.len() / 2);
        self.given_up.truncate(self.given_up.len() / 2);
        self.decisions.drain(..self.decisions.len().div_ceil(2));
    }
}

/// Stands for an infinite PV.
pub const PV_INFINITE: f64 = 1e9;

/// What a tenant's applications get; for an inner node, the sums of its leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AppStatus {
    /// Bytes read from regular files since the probes were attached.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Read operations.
    pub reads: u64,
    /// Write operations.
    pub writes: u64,
    /// Bytes read through the page cache.
    pub cache_read_bytes: u64,
    /// Bytes that a device had to deliver into the page cache.
    pub cache_miss_bytes: u64,
    /// Reads and faults that found their first page absent.
    pub misses: u64,
    /// Seconds that its requests were held back by `io.max`, summed over them.
    #[serde(default)]
    pub io_throttled: f64,
    /// Seconds that its writers were held back until dirty pages had been written.
    #[serde(default)]
    pub dirty_throttled: f64,
    /// Bytes read per second, over the window.
    pub read_rate: f64,
    /// Bytes written per second.
    pub write_rate: f64,
    /// The misses, per second.
    pub miss_rate: f64,
    /// The part of the bytes read through the page cache that was found there, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hit_ratio: Option<f64>,
    /// The part of the time in which its tasks were stalled on I/O, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io_stalled: Option<f64>,
}

/// How many of a tenant's accesses to its cache would come from the disk if its cache had another size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CurveStatus {
    /// Accesses a second, lately, in the blocks that the cache's accesses are counted in: of the page cache 64 KiB, those
    /// to the same one in a row once; of a pool of the hypervisor cache 4 KiB.
    pub accesses: f64,
    /// Sizes of the cache, bytes, ascending from 0, and the part of the accesses that it would miss, 0 to 1. Between two
    /// points a straight line; beyond the last as there.
    pub points: Vec<(u64, f64)>,
}

impl CurveStatus {
    /// The curve of what a cache holds beyond `bytes`.
    #[must_use]
    pub fn beyond(&self, bytes: u64) -> Self {
        let later = self.points.iter().filter(|(size, _)| *size > bytes);
        let later = later.map(|(size, misses)| (size - bytes, *misses));
        Self {
            accesses: self.accesses,
            points: std::iter::once((0, self.miss_ratio(bytes)))
                .chain(later)
                .collect(),
        }
    }

    /// The part of the accesses that a cache of `size` bytes misses, 0 to 1; 1 without any point.
    #[must_use]
    pub fn miss_ratio(&self, size: u64) -> f64 {
        let next = self.points.partition_point(|point| point.0 < size);
        let before = next.checked_sub(1).and_then(|i| self.points.get(i));
        match (before, self.points.get(next)) {
            (Some(low), Some(high)) => {
                let part = to_f64(size - low.0) / to_f64((high.0 - low.0).max(1));
                part.mul_add(high.1 - low.1, low.1)
            }
            (Some(point), None) | (None, Some(point)) => point.1,
            (None, None) => 1.0,
        }
    }
}

/// What of its cache a tenant demands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DemandModel {
    /// What it uses again and again first; what it takes in once, of what is left.
    #[default]
    Use,
    /// Whatever it holds, and all that it can get while it grows (Justitia, section III-B3).
    Usage,
}

/// How a tenant's use of its cache is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EstimateBasis {
    /// From its accesses: their miss-ratio curve (`MissRatioCurve::working_set` of `justitia-share`).
    Accesses,
    /// From the kernel's lists: what was used twice while it lay there is on the active one. The multi-gen LRU does not say.
    #[default]
    Lists,
}

/// The machine's memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// All of it.
    pub total: u64,
    /// Free now.
    pub free: u64,
    /// The free memory that the agent keeps available: below it, file pages above an entitlement are reclaimed.
    pub free_headroom: u64,
    /// How fast it is being used up, bytes per second.
    pub consumption_rate: u64,
    /// What is divided: all file pages, and the free memory above the headroom; with a cap of unmapped page cache at most that
    /// cap, and what is mapped or slab.
    pub cache_divisible: u64,
    /// File pages that no process has mapped.
    #[serde(default)]
    pub unmapped: u64,
    /// The most of that there may be, where `[unmapped] max_ratio` says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmapped_cap: Option<u64>,
    /// Reclaimable slab.
    #[serde(default)]
    pub slab: u64,
    /// The most of that there may be, where `[slab] max_ratio` says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slab_cap: Option<u64>,
}

/// What the probes lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeDrops {
    /// `events` that no probe could count; those for whose cgroup there was no `room`, or that came while
    /// the kernel was `busy`, and are no tenant's; uses of `shared_files` that
    /// were forgotten.
    pub what: String,
    /// How many.
    pub count: u64,
}

/// What the agent uses.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AgentUsage {
    /// CPU time so far, seconds, reclaim included.
    pub cpu: f64,
    /// CPU time of observing and planning alone, seconds.
    pub cpu_loop: f64,
    /// Resident memory.
    pub resident: u64,
    /// Knobs owned by the knob store.
    pub knobs: u64,
    /// Bytes reclaimed so far.
    pub reclaimed: u64,
    /// Requests of reclaim that the kernel refused.
    pub errors: u64,
    /// Reads of the probes' counters that failed. Not in recordings.
    #[serde(default)]
    pub probe_read_errors: u64,
    /// Files of runtimes and units that were there and could not be used.
    #[serde(default)]
    pub identity_errors: u64,
}

/// The constants by which the agent decides, as far as an explanation needs them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolicyStatus {
    /// For how long a tenant is observed before cache that it did not use counts as unused, seconds.
    pub min_observation: f64,
    /// A backlogged tenant reads or writes in at least this fraction of the window's seconds, or is stalled on I/O for at
    /// least this fraction of its time, 0 to 1.
    pub backlogged_active: f64,
    /// It is stalled on I/O for at least this fraction of the time, 0 to 1.
    pub backlogged_stalled: f64,
    /// `memory.low` is written again when it is off by more than its value divided by this …
    pub low_deadband: u64,
    /// … and by more than this many bytes.
    pub low_min_deadband: u64,
    /// Those of device bandwidth; `None` of agents that do not tell them, and in recordings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub io: Option<IoPolicyStatus>,
}

/// The constants by which `memory.high` is decided. Amounts in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct IoPolicyStatus {
    /// No buffered writer has a smaller dirty budget.
    pub min_dirty_budget: u64,
    /// At most a writer's bytes divided by this are reclaimed in one step.
    pub reclaim_step: u64,
    /// `memory.high` is written again when it is off by more than its value divided by this.
    pub high_deadband: u64,
    /// While more than the divided bytes divided by this are free, a writer keeps more than its budget …
    pub ample_free: u64,
    /// … up to this many times the budget.
    pub ample_budget: f64,
}

impl Default for PolicyStatus {
    /// The constants of agents that do not tell them: status version 1, and recordings.
    fn default() -> Self {
        Self {
            min_observation: 120.0,
            backlogged_active: 0.8,
            backlogged_stalled: 0.1,
            low_deadband: 32,
            low_min_deadband: 1 << 20,
            io: None,
        }
    }
}

impl PolicyStatus {
    /// By how much `memory.low` may be off before it is written again, bytes.
    #[must_use]
    pub fn low_deadband(&self, goal: u64) -> u64 {
        (goal / self.low_deadband.max(1)).max(self.low_min_deadband)
    }
}

/// Seconds without use of its working set after which a tenant rests: the working sets that other tenants use come before
/// its own. The window in which tenants count as backlogged is as long.
pub const RESTS_AFTER: f64 = 10.0;

/// One tenant.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TenantStatus {
    /// Its path below the cgroup mount, bytes outside printable ASCII as `\xNN`; `-` for what is in no managed cgroup, the
    /// unmanaged tenant.
    pub path: String,
    /// Its cgroup id; 0 for the unmanaged tenant.
    pub id: u64,
    /// What its cgroup belongs to.
    #[serde(default, skip_serializing_if = "is_default")]
    pub kind: TenantKind,
    /// The name of that, as its owner chose it: a container's, `NAMESPACE/NAME` of a pod, `NAMESPACE/POD/CONTAINER` of a
    /// container in one, a virtual machine's, a unit's. Empty for any other cgroup.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The name of a cgroup that the runtime makes inside for itself, as crun's `container` and libvirt's `emulator`: kind and
    /// name are those of the container or machine then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<String>,
    /// The image that a container runs, as it was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Labels, `KEY=VALUE`, as far as its runtime's files have them: the first 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// Whether no process lives in it or below.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub no_processes: bool,
    /// Its parent's position among the tenants; `None` right below the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<usize>,
    /// Its weight among its siblings.
    pub weight: u64,
    /// Where that comes from.
    #[serde(default)]
    pub weight_source: WeightSource,
    /// The weight that was declared to its runtime or in its unit, if any, and what the kernel has instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub declared: Option<DeclaredWeight>,
    /// Whether its children compete for cache with its siblings, each by its own weight, since it has no weight of its
    /// own. If a limit of it may bind, or it has a minimum, it competes as one, with the sum of its children's weights.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sums_weights: bool,
    /// Whether no tenant is below it.
    pub leaf: bool,
    /// Its file pages, for an inner node those of its leaves and what is charged to none of them.
    pub usage: u64,
    /// The file pages that it is entitled to.
    pub entitlement: u64,
    /// What of that is protected from the kernel's reclaim; of an inner node the sum of its leaves', of the unmanaged tenant,
    /// which has no `memory.low`, 0.
    pub protected: u64,
    /// File pages that the agent never reclaims. The kernel may.
    pub minimum: u64,
    /// File pages that it asks to keep before its siblings, as a cgroup of a delegated subtree. It does not raise what the
    /// subtree gets. Not in recordings.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub requested_protection: u64,
    /// Seconds since it last used its working set or grew its cache; where its accesses are not sampled, since it last used CPU.
    pub idle: f64,
    /// Whether its cache wants to grow.
    pub growing: bool,
    /// Why nothing is reclaimed from it now, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exempt: Option<Reason>,
    /// What has been taken from it so far.
    pub reclaimed: u64,
    /// File pages that cannot be reclaimed now: dirty or under writeback.
    #[serde(default)]
    pub unreclaimable: u64,
    /// Charged memory that is not file pages.
    #[serde(default)]
    pub other: u64,
    /// Of `usage`: reclaimable slab.
    #[serde(default)]
    pub slab: u64,
    /// Of `usage`: file pages that its processes have mapped, at most.
    #[serde(default)]
    pub mapped: u64,
    /// File pages that came back after having been reclaimed, since the cgroup was made.
    #[serde(default)]
    pub refaults: u64,
    /// What its applications get; `None` where no probes run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<AppStatus>,
    /// Whether it was backlogged over the window ([`justitia_share::fairness_window::is_backlogged`]). Of an inner node: whether
    /// a leaf below it was.
    #[serde(default)]
    pub backlogged: bool,
    /// PV of its backlogged children.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pv: Option<f64>,
    /// The cache that it can use, bytes; for an inner node the sum of its leaves.
    #[serde(default)]
    pub working_set: u64,
    /// Whether nothing shows what it uses: `working_set` is then what its processes have mapped, or 0. Of an inner node:
    /// whether that is so of a tenant below it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub working_set_unknown: bool,
    /// What it demands in all, bytes; `None` for all that it can get, and for inner nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demand: Option<u64>,
    /// How its use is known.
    #[serde(default)]
    pub evidence: EstimateBasis,
    /// Seconds for which it was seen to use no more than its working set: with [`EstimateBasis::Accesses`], since when its
    /// accesses have been sampled; with [`EstimateBasis::Lists`], since when it has been idle.
    #[serde(default)]
    pub observed_for: f64,
    /// Its miss-ratio curve; `None` where its accesses are not seen, or there were none lately.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub curve: Option<CurveStatus>,
    /// Its knobs that the agent has moved, or has left to others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub knobs: Vec<KnobStatus>,
}

impl TenantStatus {
    /// Its working set, bytes; `None` where nothing shows it.
    #[must_use]
    pub fn known_working_set(&self) -> Option<u64> {
        (!self.working_set_unknown).then_some(self.working_set)
    }

    /// Whether it rests: see [`RESTS_AFTER`].
    #[must_use]
    pub fn rests(&self) -> bool {
        self.idle >= RESTS_AFTER
    }

    /// The part of its working set that is in use now, bytes.
    #[must_use]
    pub fn in_use(&self) -> u64 {
        if self.rests() { 0 } else { self.working_set }
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
const fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Action, Reason};

    #[test]
    fn an_answer_is_bounded_and_says_what_is_left_out() {
        let tenant = |parent| TenantStatus {
            path: "x".repeat(640),
            parent,
            ..TenantStatus::default()
        };
        let decision = Decision {
            at: 0.0,
            since: 0.0,
            path: "x".repeat(640),
            action: Action::Reclaim { bytes: 1 },
            steps: 1,
            dry_run: false,
            reason: Reason::Text("x".repeat(640)),
        };
        let mut status = Status {
            tenants: (0..3000_usize).map(|n| tenant(n.checked_sub(1))).collect(),
            decisions: vec![decision; 100],
            limitations: vec!["a limitation".to_owned()],
            ..Status::default()
        };
        let outside = TenantStatus {
            path: "-".to_owned(),
            ..TenantStatus::default()
        };
        status.tenants.push(outside);
        let text = status.clone().encode(1 << 20);
        assert!(
            text.len() <= 1 << 20 && text.len() > 1 << 18,
            "{}",
            text.len()
        );
        let told: Status = serde_json::from_slice(&text).unwrap();
        assert_eq!(told.tenants.last().unwrap().path, "-");
        let parents = told.tenants.iter().filter_map(|t| t.parent);
        assert!(parents.max().unwrap() < told.tenants.len() - 1);
        assert_eq!(told.limitations.len(), 2);
        let left = 3001 - told.tenants.len();
        let said = format!(
            "Status: {left} of 3001 tenants, and decisions, do not fit into 1 MiB and are left out"
        );
        assert_eq!(told.limitations[1], said);

        // There is room for this one.
        let whole: Status = serde_json::from_slice(&status.encode(16 << 20)).unwrap();
        assert_eq!((whole.tenants.len(), whole.limitations.len()), (3001, 1));
    }
}
