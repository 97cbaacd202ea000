//! What an experiment is: the guest, the tenants, the workloads, what is measured.

use std::collections::BTreeMap;
use std::path::PathBuf;

use documented::DocumentedFields;
use serde::{Deserialize, Serialize};

use super::metric::MetricName;
use super::phase::Phase;
use crate::report::schema;
use crate::spec::{DiskSpec, Filesystem, Throttle};
use justitia_common::toml_file::Size;

/// An experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// The file's name without its ending.
    #[serde(default)]
    pub name: String,
    /// Its heading.
    pub title: String,
    /// What is done, and what is to be found out, in one or two sentences.
    pub question: String,
    /// The paper's figure and numbers.
    #[serde(default)]
    pub paper: Option<schema::Paper>,
    /// The guest.
    #[serde(default)]
    pub machine: Machine,
    /// Its disk.
    #[serde(default)]
    pub disk: Disk,
    /// What is compared unless the command line says otherwise; the baseline first.
    pub configurations: Vec<String>,
    /// Runs of each configuration, unless the command line says otherwise.
    #[serde(default = "three")]
    pub repeat: u32,
    /// The containers.
    #[serde(default)]
    pub tenant: Vec<Tenant>,
    /// Whether the agent's probes count what applications get: in configurations without an agent one runs that only
    /// observes. Without, the kernel's counters do (`measure`), and the kernel alone is alone.
    #[serde(default = "yes")]
    pub probes: bool,
    /// What is measured, the headline first.
    pub metric: Vec<MetricName>,
    /// What must be reached.
    #[serde(default)]
    pub goal: Vec<schema::Goal>,
    /// What the phases run, by name.
    #[serde(default)]
    pub workload: BTreeMap<String, Workload>,
    /// Files that workloads find in `{files}`, by name there: the shipped `traces/…`, or a path relative to
    /// the definition's directory.
    #[serde(default)]
    pub files: BTreeMap<String, PathBuf>,
    /// The definition's directory.
    #[serde(skip)]
    pub dir: PathBuf,
    /// What happens, in order.
    #[serde(default)]
    pub phase: Vec<Phase>,
    /// Instead of tenants and phases: the agent's own cost.
    #[serde(default)]
    pub scale: Option<Scale>,
}

fn three() -> u32 {
    3
}

fn yes() -> bool {
    true
}

impl Experiment {
    /// The tenants as results name them.
    #[must_use]
    pub fn described_tenants(&self) -> Vec<schema::Tenant> {
        match self.scale.as_ref().map(|scale| &scale.tenants) {
            None => self
                .tenant
                .iter()
                .map(|tenant| schema::Tenant {
                    name: tenant.name.clone(),
                    weight: tenant.weight,
                    above_share: tenant.above_share,
                })
                .collect(),
            // One line for each number of tenants.
            Some(counts) => counts
                .iter()
                .map(|count| schema::Tenant {
                    name: count_name(*count),
                    weight: 100,
                    above_share: false,
                })
                .collect(),
        }
    }

    /// How long a run takes at least, in seconds of the guest, without its boot and without what runs to its own end.
    #[must_use]
    pub fn seconds(&self) -> u64 {
        match &self.scale {
            // Quiet, and under pressure.
            Some(scale) => scale.tenants.iter().map(|_| 2 * scale.seconds).sum(),
            None => self.phase.iter().map(Phase::seconds).sum(),
        }
    }

    /// What is measured.
    #[must_use]
    pub fn metrics(&self) -> Vec<schema::Metric> {
        self.metric
            .iter()
            .filter_map(MetricName::describe)
            .collect()
    }
}

/// How results name a number of tenants.
#[must_use]
pub fn count_name(count: u32) -> String {
    format!("{count} tenant{}", if count == 1 { "" } else { "s" })
}

/// The guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields, default)]
pub struct Machine {
    /// Its memory.
    pub memory: Size,
    /// Its processors.
    pub vcpus: u32,
    /// An emulated guest executes 250 million instructions per second, its processors together: what cached reads
    /// cost then depends on how many instructions they need, and not on what else the host does.
    pub fixed_speed: bool,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            memory: Size(1 << 30),
            vcpus: 4,
            fixed_speed: false,
        }
    }
}

/// The guest's disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields, default)]
pub struct Disk {
    /// Its size; only what is written takes space on the host.
    pub size: Size,
    /// Made on it.
    pub filesystem: Filesystem,
    /// The size of ext4's journal; 0 is what mkfs.ext4 chooses for a disk of this size (1 GiB from 128 GB on).
    pub journal: Size,
    /// Its speed, reads and writes together.
    pub bytes_per_second: Size,
    /// Its speed in requests, reads and writes together; 0 is without limit.
    pub requests_per_second: u64,
}

impl Default for Disk {
    fn default() -> Self {
        Self {
            size: Size(8 << 30),
            filesystem: Filesystem::Ext4,
            journal: Size(0),
            bytes_per_second: Size(60_000_000),
            requests_per_second: 0,
        }
    }
}

impl Disk {
    /// As the virtual machine takes it.
    #[must_use]
    pub const fn spec(&self) -> DiskSpec {
        DiskSpec {
            size: self.size.0,
            filesystem: Some(self.filesystem),
            journal: self.journal.0,
            throttle: self.throttle(),
        }
    }

    /// Its speed, unless a phase runs without throttle or changes it.
    #[must_use]
    pub const fn throttle(&self) -> Throttle {
        Throttle {
            bytes_per_second: self.bytes_per_second.0,
            requests_per_second: self.requests_per_second,
        }
    }
}

/// A container: a cgroup below the root, and a directory on the disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// The name of both.
    pub name: String,
    /// Its weight, 1 to 10000.
    pub weight: u64,
    /// A workload that runs in it from the first phase to the last, beside what the phases run:
    /// anonymous memory, or a neighbour.
    #[serde(default)]
    pub background: Option<String>,
    /// This tenant's own variables: `{NAME}` in a workload's text is replaced with the value.
    #[serde(default)]
    pub variables: BTreeMap<String, String>,
    /// What is written to its cgroup's files before anything runs, by the file's name: `"memory.min" = "320M"`.
    #[serde(default)]
    pub cgroup: BTreeMap<String, String>,
    /// Whether the kernel alone gives it more than its share of what others could use, too: `justitia-lab ordinary` lets it lose.
    #[serde(default)]
    pub above_share: bool,
}

/// Something that runs in a container, or outside. In every text, `{dir}` is the container's own directory on the
/// disk, `{files}` where the experiment's files are, `{name}` and `{weight}` the tenant's, `{seconds}` and `{ramp}`
/// the phase's and `{seed}` the run's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, DocumentedFields)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[documented_fields(rename_all = "kebab-case")]
pub enum Workload {
    /// A job file for fio.
    Fio(String),
    /// Arguments of `justitia-load`, without `--dir`.
    Load(String),
    /// A shell script.
    Sh(String),
}

impl Workload {
    /// Whether its text has the variable `{seconds}`.
    #[must_use]
    pub fn uses_seconds(&self) -> bool {
        let (Self::Fio(text) | Self::Load(text) | Self::Sh(text)) = self;
        text.contains("{seconds}")
    }
}

/// The agent's cost as the tenants grow in number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, DocumentedFields)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    /// Numbers of tenants, one after the other; ascending.
    pub tenants: Vec<u32>,
    /// For how many seconds the agent's CPU time is measured each time, quiet and under pressure.
    pub seconds: u64,
}
