//! The answer to `justitia status`: plain data, the same for people and machines.

use justitia_share::num::to_f64;
use serde::{Deserialize, Serialize};

use crate::plan::{Demand, Evidence};

/// Everything that the agent tells. Amounts in bytes, times in seconds.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Status {
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
    /// Why nothing is known of what applications get, if so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blind: Option<String>,
    /// What of their caches tenants demand.
    #[serde(default)]
    pub demand: Demand,
    /// Proportionality variation of all contending leaves together, over the window: 0 is perfect. `None`
    /// with fewer than two of them; [`PV_INFINITE`] where the lightest got nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pv: Option<f64>,
    /// The same of the tenants right below the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pv_top: Option<f64>,
    /// The machine's memory.
    pub memory: MemoryStatus,
    /// Every tenant, parents first; the one outside any cgroup last.
    pub tenants: Vec<TenantStatus>,
    /// Knobs that belong to others.
    pub yielded: Vec<Yield>,
    /// The last decisions, oldest first: a few of each tenant.
    pub decisions: Vec<Decision>,
    /// What works less well than it could, and the fact that is the cause.
    pub limits: Vec<String>,
    /// What the probes lost since they were attached, by its name: all that they can lose, whether any is
    /// or not. `limits` says in words what is lost and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub losses: Vec<LossStatus>,
    /// What the agent itself costs.
    pub cost: Cost,
}

impl Status {
    /// As JSON, at most `most` bytes long if that can be: decisions, what was yielded and tenants, the last first, are
    /// left out as far as there is no room, and how many is said under the limits.
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
                self.limits.pop();
            }
            self.halve();
            self.limits.push(format!(
                "Status: {} of {whole} tenants, and decisions, do not fit into {} MiB and are left out",
                whole - self.tenants.len(),
                most >> 20
            ));
        }
    }

    /// Leaves out half of what there may be much of.
    fn halve(&mut self) {
        // The one outside any cgroup is the last, and nobody's parent. Parents come first: those that stay are whole.
        let outside = self.tenants.pop();
        self.tenants.truncate(self.tenants.len() / 2);
        self.tenants
            .extend(outside.filter(|_| !self.tenants.is_empty()));
        self.yielded.truncate(self.yielded.len() / 2);
        self.decisions.drain(..self.decisions.len().div_ceil(2));
    }
}

/// Stands for an infinite PV.
pub const PV_INFINITE: f64 = 1e9;

/// The machine's memory.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MemoryStatus {
    /// All of it.
    pub total: u64,
    /// Free now.
    pub free: u64,
    /// Below this, tenants above their entitlement give back.
    pub reserve: u64,
    /// How fast it is being used up, bytes per second.
    pub falling: u64,
    /// What is divided: all file pages, and the free memory above the reserve.
    pub capacity: u64,
}

/// One tenant.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TenantStatus {
    /// Its path below the cgroup mount, bytes outside printable ASCII as `\xNN`; `-` for what is outside.
    pub path: String,
    /// Its cgroup id; 0 for what is outside.
    pub id: u64,
    /// Its parent's position among the tenants; `None` right below the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<usize>,
    /// Its weight among its siblings.
    pub weight: u64,
    /// Who has set that.
    #[serde(default)]
    pub weight_from: WeightFrom,
    /// Whether no tenant is below it.
    pub leaf: bool,
    /// Its file pages, for an inner node those of its leaves and what is charged to none of them.
    pub usage: u64,
    /// What it is entitled to.
    pub entitled: u64,
    /// What of that is protected from the kernel's reclaim.
    pub protected: u64,
    /// What is never taken.
    pub floor: u64,
    /// Seconds since it last used its cache, as far as the kernel's counters tell.
    pub idle: f64,
    /// Whether its cache wants to grow.
    pub growing: bool,
    /// Why nothing is taken from it now, if so.
    pub spared: Option<String>,
    /// What has been taken from it so far.
    pub reclaimed: u64,
    /// File pages that cannot be reclaimed now: dirty or under writeback.
    #[serde(default)]
    pub stuck: u64,
    /// Charged memory that is not file pages.
    #[serde(default)]
    pub other: u64,
    /// File pages that came back after having been reclaimed, since the cgroup was made.
    #[serde(default)]
    pub refaults: u64,
    /// What its applications get; `None` where no probes run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub app: Option<AppStatus>,
    /// Whether it contended over the window: active nearly all the time, and held up by I/O.
    #[serde(default)]
    pub contends: bool,
    /// PV of its children that contend.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pv: Option<f64>,
    /// The cache that it can use, bytes; for an inner node the sum of its leaves.
    #[serde(default)]
    pub useful: u64,
    /// What it demands in all, bytes; `None` for all that it can get, and for inner nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub demand: Option<u64>,
    /// How its use is known.
    #[serde(default)]
    pub useful_by: Evidence,
    /// Seconds for which it has been watched without using more.
    #[serde(default)]
    pub watched: f64,
    /// Its miss-ratio curve; `None` where its accesses are not seen, or there were none lately.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub curve: Option<CurveStatus>,
    /// Its knobs that the agent has moved, or has left to others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub knobs: Vec<KnobStatus>,
}

/// How many of a tenant's accesses to its cache would come from the disk if its cache had another size.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CurveStatus {
    /// Accesses a second, lately: of blocks of 64 KiB, those to the same one in a row once.
    pub accesses: f64,
    /// Sizes of the cache, bytes, ascending from 0, and the part of the accesses that it would miss, 0 to 1. Between two
    /// points a straight line; beyond the last as there.
    pub points: Vec<(u64, f64)>,
}

impl CurveStatus {
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

/// What the probes lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossStatus {
    /// `events` that no probe could count; those for whose cgroup there was no `room`, or that came while
    /// the kernel was `busy`, and are no tenant's; `calls` that were not timed; uses of `shared_files` that
    /// were forgotten; `lock_waits` that were not counted.
    pub what: String,
    /// How many.
    pub count: u64,
}

/// Who has set a weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightFrom {
    /// Nobody: it is the default.
    #[default]
    Nobody,
    /// `io.weight` or `io.bfq.weight` of its own cgroup.
    Cgroup,
    /// The same of its only child.
    OnlyChild,
    /// The agent's configuration.
    Configuration,
}

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
    pub cached_read_bytes: u64,
    /// Bytes that a device had to deliver into the page cache.
    pub fill_bytes: u64,
    /// Reads and faults that found their first page absent.
    pub misses: u64,
    /// Seconds that its requests were held back by `io.max`, summed over them.
    #[serde(default)]
    pub throttled: f64,
    /// Seconds that its writers were held back until dirty pages had been written.
    #[serde(default)]
    pub dirty_wait: f64,
    /// Bytes read per second, over the window.
    pub read_rate: f64,
    /// Bytes written per second.
    pub write_rate: f64,
    /// The misses, per second.
    pub miss_rate: f64,
    /// The part of the bytes read through the page cache that was found there, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hit_ratio: Option<f64>,
    /// The part of the time in which its tasks were held up by I/O, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_up: Option<f64>,
    /// How long its operations took, where that is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<LatencyStatus>,
}

/// How long calls took in the last whole window: upper bounds, seconds; `None` where there were none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyStatus {
    /// Half of the reads took at most this.
    pub read_p50: Option<f64>,
    /// 99 of 100 reads.
    pub read_p99: Option<f64>,
    /// Half of the writes.
    pub write_p50: Option<f64>,
    /// 99 of 100 writes.
    pub write_p99: Option<f64>,
    /// 99 of 100 of `fsync` and its kin.
    pub sync_p99: Option<f64>,
}

/// A knob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnobStatus {
    /// Its file, with the device for `io.max`.
    pub knob: String,
    /// What stands there, or would in observe mode.
    pub stands: String,
    /// Who has put it there.
    pub by: Holder,
    /// What stood there before the agent came, if it holds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// The facts behind the agent's value.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

/// Who has put a value where it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holder {
    /// The agent.
    Agent,
    /// Nobody yet: in observe mode the agent would.
    Would,
    /// Someone else: the agent leaves it alone.
    Other,
}

/// A knob that someone else has written.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Yield {
    /// The cgroup's path.
    pub path: String,
    /// The knob.
    pub knob: String,
    /// What was found there.
    pub found: String,
}

/// Something that was decided; the same in a row is told as one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Decision {
    /// Seconds since the agent started, at the last step.
    pub at: f64,
    /// The same at the first step.
    #[serde(default)]
    pub since: f64,
    /// About whom.
    pub path: String,
    /// What was done, or would be in observe mode.
    pub what: String,
    /// The facts behind it.
    pub why: String,
}

/// What the agent costs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Cost {
    /// CPU time so far, seconds, reclaim included.
    pub cpu: f64,
    /// CPU time of observing and planning alone, seconds.
    pub cpu_loop: f64,
    /// Resident memory.
    pub resident: u64,
    /// Knobs held in the ledger.
    pub knobs: u64,
    /// Bytes reclaimed so far.
    pub reclaimed: u64,
    /// Reclaim orders that the kernel refused.
    pub errors: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

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
            what: "reclaim".to_owned(),
            why: "x".repeat(640),
        };
        let mut status = Status {
            tenants: (0..3000_usize).map(|n| tenant(n.checked_sub(1))).collect(),
            decisions: vec![decision; 100],
            limits: vec!["a limit".to_owned()],
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
        assert_eq!(told.limits.len(), 2);
        let left = 3001 - told.tenants.len();
        let said = format!(
            "Status: {left} of 3001 tenants, and decisions, do not fit into 1 MiB and are left out"
        );
        assert_eq!(told.limits[1], said);

        // There is room for this one.
        let whole: Status = serde_json::from_slice(&status.encode(16 << 20)).unwrap();
        assert_eq!((whole.tenants.len(), whole.limits.len()), (3001, 1));
    }
}
