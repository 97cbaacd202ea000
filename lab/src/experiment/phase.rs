//! What happens in an experiment, step by step.

use std::collections::BTreeMap;

use documented::DocumentedFields;
use justitia_common::toml_file::Size;
use serde::{Deserialize, Serialize};

/// The name under which phases refer to the processes outside any tenant, in the root cgroup.
pub const OUTSIDER: &str = "outsider";

/// Something that happens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
#[documented_fields(rename_all = "kebab-case")]
pub enum Phase {
    /// A workload runs in tenants, all together, to its end.
    Run(RunPhase),
    /// All dirty pages are written back, the disk without throttle.
    Sync,
    /// The tenants' file pages are recorded, under this metric.
    Record(RecordPhase),
    /// Time passes.
    Wait(WaitPhase),
    /// Time passes, while the split of the applications' bandwidth among the tenants in which something runs is
    /// sampled. Over all such phases together, every tenant's `bandwidth` is recorded, and of the run `misallocated`
    /// (the part of the bandwidth that tenants have above their share) and `pv_sampled` (the PV among the tenants in
    /// which something runs), both the means of the phases.
    Sample(SamplePhase),
    /// Time passes, the disk throttled, while what runs in the background is measured by the kernel's counters: of every
    /// tenant `reads` (what its applications read, in bytes), `hits` (the part that no disk had to deliver, by its
    /// `io.stat`), `operations` (of `justitia-load`), `pages` (on average) and `swapped` (at the end); of the run `disk_reads`, `processor`,
    /// `disk` (the part of the time that they are busy) and `memory_stall` (PSI full).
    Measure(MeasurePhase),
    /// What runs in these tenants ends.
    Stop(StopPhase),
    /// What runs in these tenants ends, and their cgroups are removed and made anew, as when a service restarts.
    Renew(StopPhase),
    /// The tenants' weights change.
    Weights(WeightsPhase),
    /// The disk becomes faster or slower. The next `sample` expects a total bandwidth changed by the same factor.
    Disk(DiskPhase),
}

/// Records the tenants' file pages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields)]
pub struct RecordPhase {
    /// The metric's key.
    #[serde(default = "pages", rename = "as")]
    #[documented_fields(rename = "as")]
    pub key: String,
}

/// Lets time pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields)]
pub struct WaitPhase {
    /// How much time passes, in seconds.
    pub seconds: u64,
}

/// Samples the split of the bandwidth.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields)]
pub struct SamplePhase {
    /// How much time passes, in seconds.
    pub seconds: u64,
    /// Records the settling times of this phase, in seconds: under this key until at most a tenth of the
    /// bandwidth was misallocated, under the key with `_each` until every tenant was within a tenth of its own
    /// share; the phase's length where that never came. A window of one second counts, and the split must hold
    /// for two seconds; what is missing of nine tenths of the total before the phase counts as misallocated.
    /// With `_wide` the first, but with a window of two seconds; with `_pv`, `_jain` and `_total` the phase's PV, Jain's
    /// index by weight, and the total bandwidth in bytes per second; with `_worst` the least that a tenant has in its
    /// worst second of a hundred, of its share of that.
    #[serde(default, rename = "as")]
    #[documented_fields(rename = "as")]
    pub key: Option<String>,
}

/// Measures what runs in the background.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields)]
pub struct MeasurePhase {
    /// For how many seconds.
    pub seconds: u64,
    /// What happens to the agent at the beginning, in configurations with one: `start`, before which none runs, or
    /// `restart`.
    #[serde(default)]
    pub agent: Option<AgentChange>,
}

/// What happens to the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AgentChange {
    /// It starts.
    Start,
    /// It ends and starts again.
    Restart,
}

/// Ends what runs in tenants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields)]
pub struct StopPhase {
    /// Which tenants, or `outsider`.
    #[serde(rename = "in")]
    #[documented_fields(rename = "in")]
    pub tenants: Vec<String>,
}

/// Changes weights.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields)]
pub struct WeightsPhase {
    /// The new weights, by tenant.
    pub to: BTreeMap<String, u64>,
}

/// Changes the disk's speed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields)]
pub struct DiskPhase {
    /// Its new speed, reads and writes together.
    pub bytes_per_second: Size,
}

/// A workload that runs in tenants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields)]
pub struct RunPhase {
    /// Its name.
    pub workload: String,
    /// In which tenants, or `outsider`; all tenants when absent.
    #[serde(default, rename = "in")]
    #[documented_fields(rename = "in")]
    pub tenants: Vec<String>,
    /// For how long: the value of `{seconds}`, and the time that bandwidth is computed over.
    #[serde(default)]
    pub seconds: Option<u64>,
    /// Seconds before those that are not counted: the value of `{ramp}`. A control loop's transient is
    /// an experiment of its own.
    #[serde(default)]
    pub ramp: u64,
    /// Whether the disk is throttled; populating may run without.
    #[serde(default = "yes")]
    pub throttle: bool,
    /// Whether bandwidth, operations, hit ratio and device are those of this phase.
    #[serde(default)]
    pub measured: bool,
    /// Whether the next phase begins at once, while this one goes on until a `stop` or the end.
    #[serde(default)]
    pub background: bool,
    /// Records the total bandwidth of all tenants under this key, too, as the run's, and the latencies of
    /// `justitia-load`'s operations under this key, the tenant's name, the operation, and `p50` or `p99`.
    #[serde(default, rename = "as")]
    #[documented_fields(rename = "as")]
    pub key: Option<String>,
    /// Fails the run if the phase is not over after so many seconds.
    #[serde(default = "two_minutes")]
    pub timeout: u64,
}

impl RunPhase {
    /// Whether the workload runs in this tenant.
    #[must_use]
    pub fn includes(&self, tenant: &str) -> bool {
        self.tenants.is_empty() || self.tenants.iter().any(|name| name == tenant)
    }

    /// Whether the workload runs outside any tenant, too.
    #[must_use]
    pub fn includes_outsider(&self) -> bool {
        self.tenants.iter().any(|name| name == OUTSIDER)
    }
}

fn yes() -> bool {
    true
}

fn two_minutes() -> u64 {
    120
}

fn pages() -> String {
    "pages".to_owned()
}

impl Phase {
    /// How long it takes at least, in seconds of the guest: what runs to its own end is not known.
    pub(super) fn seconds(&self) -> u64 {
        match self {
            Self::Run(run) if run.background => 0,
            Self::Run(run) => run.seconds.map_or(0, |seconds| seconds + run.ramp),
            Self::Wait(WaitPhase { seconds })
            | Self::Sample(SamplePhase { seconds, .. })
            | Self::Measure(MeasurePhase { seconds, .. }) => *seconds,
            _ => 0,
        }
    }
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Run(run) if run.tenants.is_empty() => write!(f, "{}", run.workload),
            Self::Run(run) => write!(f, "{} in {}", run.workload, run.tenants.join(", ")),
            Self::Sync => f.write_str("writing back"),
            Self::Record(record) => write!(f, "recording {}", record.key),
            Self::Wait(wait) => write!(f, "waiting {} s", wait.seconds),
            Self::Sample(sample) => write!(f, "sampling {} s", sample.seconds),
            Self::Measure(measure) => write!(f, "measuring {} s", measure.seconds),
            Self::Stop(stop) => write!(f, "stopping {}", stop.tenants.join(", ")),
            Self::Renew(renew) => write!(f, "restarting {}", renew.tenants.join(", ")),
            Self::Weights(_) => f.write_str("changing weights"),
            Self::Disk(_) => f.write_str("changing the disk's speed"),
        }
    }
}
