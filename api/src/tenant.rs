//! One tenant.

use serde::{Deserialize, Serialize};

use crate::{AppStatus, CurveStatus, EstimateBasis, KnobStatus, Reason};

/// Seconds without use of CPU or cache after which a tenant rests: the working sets of others that use theirs come before
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
    /// Its parent's position among the tenants; `None` right below the root.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<usize>,
    /// Its weight among its siblings.
    pub weight: u64,
    /// Where that comes from.
    #[serde(default)]
    pub weight_source: WeightSource,
    /// Whether it competes for cache with the sum of its children's weights, as nobody has set its own.
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
    /// Seconds since it last used CPU or grew its cache, as far as the kernel's counters tell.
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

/// The path that stands for the unmanaged tenant.
const UNMANAGED: &str = "-";

/// A tenant's name for people, by its path: as it is, but for the unmanaged tenant, which is `(unmanaged)`.
#[must_use]
pub fn display_name(path: &str) -> &str {
    if path == UNMANAGED {
        "(unmanaged)"
    } else {
        path
    }
}

impl TenantStatus {
    /// Whether it is the unmanaged tenant.
    #[must_use]
    pub fn is_unmanaged(&self) -> bool {
        self.path == UNMANAGED
    }

    /// Its name for people: see [`display_name`].
    #[must_use]
    pub fn display_name(&self) -> &str {
        display_name(&self.path)
    }

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

#[expect(
    clippy::trivially_copy_pass_by_ref,
    reason = "serde calls it with a reference"
)]
const fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

/// Where a weight comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightSource {
    /// Nobody set one: it is the default.
    #[default]
    Default,
    /// `io.weight` or `io.bfq.weight` of its own cgroup.
    Cgroup,
    /// The same of its only child.
    OnlyChild,
    /// The agent's configuration.
    Configuration,
}
