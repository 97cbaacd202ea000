//! What the lab writes down about an experiment, and the report reads.
//!
//! One JSON document per experiment and kernel. It holds what was measured and nothing derived:
//! ideals, normalised values, totals, medians and PV are computed by `summary`, in one place, so
//! that a document cannot contradict itself.

use std::collections::BTreeMap;

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

/// The version of this schema that the code below reads and writes.
pub const VERSION: u32 = 1;

/// One experiment on one kernel: every configuration, every repeat.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Results {
    /// [`VERSION`]; any other is refused.
    pub schema: u32,
    /// The experiment's name, as `justitia-lab run` takes it (`reread`).
    pub experiment: String,
    /// Its heading (`Re-read after an outsider's pressure`).
    pub title: String,
    /// One or two sentences: what was done and asked. Plain text.
    pub question: String,
    /// The paper's figure and numbers, if the experiment repeats one.
    pub paper: Option<Paper>,
    /// Where it ran.
    pub machine: Machine,
    /// When it began, RFC 3339 (`2026-01-31T12:00:00Z`).
    pub date: String,
    /// The seed of the workloads and of the configurations' order.
    pub seed: u64,
    /// The tenants, in the order in which they are to be shown (by weight).
    pub tenants: Vec<Tenant>,
    /// The configurations, in the order in which they are to be shown; the baseline first.
    pub configurations: Vec<Configuration>,
    /// What is shown of what was measured; the headline first. Values of other metrics may be there.
    pub metrics: Vec<Metric>,
    /// What the product promises to reach here. May be empty.
    #[serde(default)]
    pub goals: Vec<Goal>,
    /// Every run, in the order in which it was made, the failed ones too.
    pub runs: Vec<Run>,
}

/// The machine and the guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The guest's kernel release (`6.12.57+deb12-cloud-amd64`).
    pub kernel: String,
    /// How the guest ran (`kvm`, `tcg`, or `none` for a native run).
    pub accelerator: String,
    /// The host's processor, as `/proc/cpuinfo` names it.
    pub cpu: String,
    /// The guest's processors.
    pub vcpus: u32,
    /// The guest's memory in bytes.
    pub memory_bytes: u64,
    /// The disk in words (`ext4, 60 MB/s by QEMU`).
    pub disk: String,
}

/// A tenant of the experiment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// Its name, unique in the experiment.
    pub name: String,
    /// Its weight, 1..=10000: what it ought to get is in proportion to it.
    pub weight: u64,
    /// Whether it wants more than its share: it may lose by a division by weight.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub above_share: bool,
}

/// A way of controlling the machine that takes part in the comparison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// Its key (`conventional`, `bfq`, `io-cost`, `memcg-limits`, `justitia`).
    pub id: String,
    /// Its name for people (`Conventional`).
    pub label: String,
    /// What it sets, in one sentence. May be empty.
    #[serde(default)]
    pub what: String,
}

/// A quantity that was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields)]
pub struct Metric {
    /// Its key (`bandwidth`).
    pub key: String,
    /// Its name for people (`Read bandwidth`).
    pub label: String,
    /// Its unit.
    pub unit: Unit,
    /// Whether it ought to follow the weights: only then are an ideal and a PV shown.
    pub proportional: bool,
    /// How the tenants' values make up the experiment's.
    pub total: Total,
}

impl Metric {
    /// What the tenants' values make together.
    pub fn total_name(&self) -> &'static str {
        match self.total {
            Total::Sum => "Total",
            Total::Mean => "Mean",
            Total::Whole => "The run as a whole",
        }
    }
}

/// A unit; values are always in the base unit, the report scales them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, DocumentedFields)]
#[serde(rename_all = "snake_case")]
#[documented_fields(rename_all = "snake_case")]
pub enum Unit {
    /// Bytes, shown in MiB.
    Bytes,
    /// Bytes per second, shown in MB/s.
    BytesPerSecond,
    /// A fraction from 0 to 1, shown in per cent.
    Ratio,
    /// Operations per second.
    PerSecond,
    /// Seconds, shown in the fitting unit.
    Seconds,
    /// A plain number.
    Count,
}

/// How the tenants' values make up the experiment's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, DocumentedFields)]
#[serde(rename_all = "snake_case")]
#[documented_fields(rename_all = "snake_case")]
pub enum Total {
    /// Their sum (bandwidth, bytes).
    Sum,
    /// Their mean (hit ratio, latency).
    Mean,
    /// No tenant's: measured for the run as a whole (the agent's CPU time).
    Whole,
}

/// What the paper reports for the same experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// Which paper (`Justitia`).
    pub title: String,
    /// Which figure or table (`Fig. 9a`).
    pub figure: String,
    /// The key of the metric that the figure is about. Absent: the headline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<String>,
    /// Its numbers, per configuration.
    pub results: Vec<PaperResult>,
}

/// The paper's numbers for one configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields)]
pub struct PaperResult {
    /// The id of the configuration that it corresponds to here; one that did not run is still listed.
    pub configuration: String,
    /// The paper's PV, if it gives one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pv: Option<f64>,
    /// The paper's normalised results, in the paper's order of tenants. May be empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub normalised: Vec<f64>,
    /// The paper's results by tenant, in the metric's base unit. May be empty.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, f64>,
    /// Anything else it says, in words (`total 1200.4 MB/s`).
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// A promised number, checked for each MGLRU state by the median of the repeats.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields)]
pub struct Goal {
    /// The id of the configuration that must reach it.
    pub configuration: String,
    /// The metric's key.
    pub metric: String,
    /// What of the metric.
    pub measure: Measure,
    /// The bound that must hold: an upper one, except for `jain_at_least`, `total_against` and `total_at_least`.
    pub must: f64,
    /// The bound that would be better still.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stretch: Option<f64>,
}

/// What a [`Goal`] bounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, DocumentedFields)]
#[serde(rename_all = "snake_case")]
#[documented_fields(rename_all = "snake_case")]
pub enum Measure {
    /// The PV, at most.
    Pv,
    /// Jain's index by weight, at least (1 is perfect proportion).
    JainAtLeast,
    /// The total, at most (anonymous bytes reclaimed: 0).
    Total,
    /// The total, at least (a gain over another configuration of the same repeat).
    TotalAtLeast,
    /// The total over that of the named configuration, at least (0.98 = 98 %).
    TotalAgainst(String),
    /// The total over that of the named configuration, at most (1.0 = no more than it).
    TimesAgainst(String),
    /// The named configuration's total minus this one's, at most (0.005 = half a point of a ratio).
    LostAgainst(String),
}

impl Measure {
    /// The configuration that the goal's own is compared with.
    #[must_use]
    pub fn other(&self) -> Option<&str> {
        match self {
            Self::Pv | Self::JainAtLeast | Self::Total | Self::TotalAtLeast => None,
            Self::TotalAgainst(other) | Self::TimesAgainst(other) | Self::LostAgainst(other) => {
                Some(other)
            }
        }
    }
}

/// One run of one configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// The [`Configuration::id`].
    pub configuration: String,
    /// Whether MGLRU was on; absent where the kernel has none.
    #[serde(default)]
    pub mglru: Option<bool>,
    /// Which repeat, from 0.
    pub repeat: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// What was measured per tenant. A tenant that got nothing has a 0; one whose value is missing
    /// makes the run's total and PV unknown.
    #[serde(default)]
    pub tenants: Vec<TenantValues>,
    /// What was measured for the run as a whole, by [`Metric::key`] of [`Total::Whole`].
    #[serde(default)]
    pub values: BTreeMap<String, f64>,
    /// How it went over time. May be empty.
    #[serde(default)]
    pub timeline: Vec<Series>,
    /// The tenants' miss-ratio curves at the end. May be empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curves: Vec<Curve>,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case", deny_unknown_fields)]
pub enum Outcome {
    /// It measured what it should.
    Measured,
    /// It did not; its values, if any, are not used.
    Failed {
        /// Why, in one sentence.
        reason: String,
        /// The end of the guest's console, if that says more. May be empty.
        #[serde(default)]
        console: String,
    },
}

/// One tenant's results in one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantValues {
    /// The [`Tenant::name`].
    pub name: String,
    /// By [`Metric::key`], in the metric's base unit.
    pub values: BTreeMap<String, f64>,
}

impl TenantValues {
    /// These values, by their metrics' keys.
    pub fn new<const N: usize>(name: String, values: [(&str, f64); N]) -> Self {
        Self {
            name,
            values: values.map(|(key, value)| (key.to_owned(), value)).into(),
        }
    }
}

/// One tenant's metric over time in one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Series {
    /// The metric's key.
    pub metric: String,
    /// The [`Tenant::name`]; any other name (`outsider`) is drawn as context.
    pub tenant: String,
    /// Pairs of seconds since the run began, and the value then, in the metric's base unit.
    pub points: Vec<(f64, f64)>,
}

/// How many of a tenant's accesses to its page cache would come from the disk if the cache had another size, as the
/// agent estimated it at the end of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Curve {
    /// The [`Tenant::name`].
    pub tenant: String,
    /// Pairs of the size in bytes, ascending from 0, and the part of the accesses that misses, 0 to 1.
    pub points: Vec<(f64, f64)>,
}
