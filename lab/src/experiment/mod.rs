//! Experiments as data: one TOML file per question, most after a figure of a paper.
//!
//! The shipped ones lie in `lab/experiments/` and are compiled in; any other file can be given by
//! path.

mod bytes;
mod check;
mod configuration;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use justitia_agent::regular;
use serde::{Deserialize, Serialize};

use crate::report::schema;
use crate::vm::{DiskSpec, Filesystem, Throttle};

pub use bytes::Bytes;
pub use configuration::{Configuration, MemoryLimit, Scheduler};

/// The name under which phases speak of the processes outside any tenant, in the root cgroup.
pub const OUTSIDER: &str = "outsider";

/// An experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// The file's name without its ending.
    #[serde(default)]
    pub name: String,
    /// Its heading.
    pub title: String,
    /// What is done and asked, in one or two sentences.
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
    #[serde(alias = "contenders")]
    pub configurations: Vec<String>,
    /// How often, when nobody says otherwise.
    #[serde(default = "three")]
    pub repeat: u32,
    /// The containers.
    #[serde(default)]
    pub tenant: Vec<Tenant>,
    /// What is measured, the headline first.
    pub metric: Vec<MetricName>,
    /// What must be reached.
    #[serde(default)]
    pub goal: Vec<schema::Goal>,
    /// What the phases run, by name.
    #[serde(default)]
    pub workload: BTreeMap<String, Workload>,
    /// Files that workloads find in `{files}`, by name there: the shipped `traces/…`, or a path beside the
    /// definition.
    #[serde(default)]
    pub files: BTreeMap<String, PathBuf>,
    /// Where the definition lies.
    #[serde(skip)]
    pub base: PathBuf,
    /// What happens, in order.
    #[serde(default)]
    pub phase: Vec<Phase>,
    /// Instead of tenants and phases: the agent's own cost.
    #[serde(default)]
    pub scale: Option<Scale>,
    /// Instead of tenants and phases: locks that containers contend for.
    #[serde(default)]
    pub contention: Option<Contention>,
}

fn three() -> u32 {
    3
}

/// The guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Machine {
    /// Its memory.
    pub memory: Bytes,
    /// Its processors.
    pub vcpus: u32,
    /// Whether it is told that it runs on no hypervisor. One that knows has, without paravirtual ones, spin
    /// locks that do not queue and that tell nobody when they are contended.
    pub bare: bool,
}

impl Default for Machine {
    fn default() -> Self {
        Self {
            memory: Bytes(1 << 30),
            vcpus: 4,
            bare: false,
        }
    }
}

impl Machine {
    /// What QEMU must be told beside what it always is.
    #[must_use]
    pub fn qemu_args(&self) -> Vec<String> {
        let bare = ["-cpu".to_owned(), "max,-hypervisor".to_owned()];
        if self.bare { bare.to_vec() } else { Vec::new() }
    }
}

/// The guest's disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Disk {
    /// Its size; only what is written takes room on the host.
    pub size: Bytes,
    /// Made on it.
    pub filesystem: Filesystem,
    /// How large ext4's journal is; 0 is as large as a disk of this size gets. One of 128 GB and more gets 1 GiB.
    pub journal: Bytes,
    /// Its speed, reads and writes together.
    pub bytes_per_second: Bytes,
    /// Its speed in requests, reads and writes together; 0 is without limit.
    pub requests_per_second: u64,
}

impl Default for Disk {
    fn default() -> Self {
        Self {
            size: Bytes(8 << 30),
            filesystem: Filesystem::Ext4,
            journal: Bytes(0),
            bytes_per_second: Bytes(60_000_000),
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

    /// How fast it is, unless something runs free or a phase changes that.
    #[must_use]
    pub const fn throttle(&self) -> Throttle {
        Throttle {
            bytes_per_second: self.bytes_per_second.0,
            requests_per_second: self.requests_per_second,
        }
    }
}

/// A container: a cgroup below the root, and a directory on the disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// The name of both.
    pub name: String,
    /// Its weight, 1..=10000.
    pub weight: u64,
    /// A workload that runs in it from beginning to end beside what the phases run: anonymous
    /// memory, or a neighbour.
    #[serde(default)]
    pub beside: Option<String>,
    /// What workloads' texts may say with `{…}` of this tenant beside what every text may.
    #[serde(default)]
    pub words: BTreeMap<String, String>,
}

/// What is measured: a quantity that the lab knows, or one that a phase records under a name of
/// its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum MetricName {
    /// `bandwidth`, `pages`, `hit_ratio`, `device` …
    Known(String),
    /// Described in full.
    Own(schema::Metric),
}

impl MetricName {
    /// Its description; `None` for an unknown name.
    #[must_use]
    pub fn describe(&self) -> Option<schema::Metric> {
        use schema::{Total, Unit};
        let known = |key: &str| {
            let (label, unit, proportional, total) = match key {
                "bandwidth" => (
                    "Application bandwidth",
                    Unit::BytesPerSecond,
                    true,
                    Total::Sum,
                ),
                "pages" => ("File pages kept", Unit::Bytes, true, Total::Sum),
                "hit_ratio" => ("Hit ratio", Unit::Ratio, false, Total::Mean),
                "overall_hit_ratio" => (
                    "Hit ratio of all together",
                    Unit::Ratio,
                    false,
                    Total::Whole,
                ),
                "device" => ("Device bandwidth", Unit::BytesPerSecond, true, Total::Sum),
                "operations" => ("Operations", Unit::PerSecond, true, Total::Sum),
                "misplaced" => (
                    "Bandwidth in the wrong hands",
                    Unit::Ratio,
                    false,
                    Total::Whole,
                ),
                "pv_watched" => (
                    "PV among those who want bandwidth",
                    Unit::Count,
                    false,
                    Total::Whole,
                ),
                "agent_cpu" => ("Agent's CPU, quiet", Unit::Ratio, false, Total::Mean),
                "agent_cpu_contended" => (
                    "Agent's CPU, some contend for the disk",
                    Unit::Ratio,
                    false,
                    Total::Mean,
                ),
                "agent_cpu_pressure" => (
                    "Agent's CPU, under pressure",
                    Unit::Ratio,
                    false,
                    Total::Mean,
                ),
                "agent_loop_pressure" => (
                    "The same, without the kernel's work of reclaiming",
                    Unit::Ratio,
                    false,
                    Total::Mean,
                ),
                "contention" => (
                    "Locks found taken, per second",
                    Unit::PerSecond,
                    false,
                    Total::Mean,
                ),
                "contention_wait" => (
                    "Time waited for locks, per second",
                    Unit::Seconds,
                    false,
                    Total::Mean,
                ),
                "agent_memory" => ("Agent's memory", Unit::Bytes, false, Total::Mean),
                _ => return None,
            };
            Some(schema::Metric {
                key: key.to_owned(),
                label: label.to_owned(),
                unit,
                proportional,
                total,
            })
        };
        match self {
            Self::Known(key) => known(key),
            Self::Own(metric) => Some(metric.clone()),
        }
    }
}

/// Something that runs in a container, or outside. In every text, `{dir}` is the runner's own
/// directory on the disk, `{files}` where the experiment's files are, `{name}` and `{weight}` the tenant's, `{seconds}` and `{ramp}` the
/// phase's and `{seed}` the run's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Workload {
    /// A job file for fio.
    Fio(String),
    /// Arguments of `justitia-load`, without `--dir`.
    Load(String),
    /// A shell script.
    Sh(String),
}

/// Something that happens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Phase {
    /// A workload runs in tenants, all together, to its end.
    Run {
        /// Its name.
        workload: String,
        /// In which tenants, or `outsider`; all tenants when absent.
        #[serde(default, rename = "in")]
        tenants: Vec<String>,
        /// For how long: what `{seconds}` stands for, and what bandwidth is over.
        #[serde(default)]
        seconds: Option<u64>,
        /// So many seconds before those are not counted: what `{ramp}` stands for. What a control loop
        /// does at first is an experiment of its own.
        #[serde(default)]
        ramp: u64,
        /// Whether the disk is as slow as it should be; populating may run free.
        #[serde(default = "yes")]
        throttle: bool,
        /// Whether this is what bandwidth, operations, hit ratio and device mean.
        #[serde(default)]
        measured: bool,
        /// Whether the next phase begins at once, while this goes on until a `stop` or the end.
        #[serde(default)]
        background: bool,
        /// Under this key everybody's bandwidth together is kept too, as the run's.
        #[serde(default, rename = "as")]
        key: Option<String>,
        /// Fails the run if not over after so many seconds.
        #[serde(default = "long")]
        within: u64,
    },
    /// Everything dirty is written, the disk running free.
    Settle,
    /// The tenants' file pages are recorded, under this metric.
    Record {
        /// The metric's key.
        #[serde(default = "pages", rename = "as")]
        key: String,
    },
    /// Time passes.
    Wait {
        /// How much.
        seconds: u64,
    },
    /// Time passes, while it is watched how the bandwidth of the applications is split among the tenants
    /// in which something runs. Over all such phases together, every tenant's `bandwidth` is kept, and of
    /// the run `misplaced` (the part of the bandwidth in the wrong hands) and `pv_watched` (the PV among those
    /// who run something), both the means of the phases.
    Watch {
        /// How much.
        seconds: u64,
        /// Under this key is kept how many seconds passed until at most a tenth of the bandwidth was in the
        /// wrong hands, under the key with `_each` until every tenant was within a tenth of its own part; the
        /// phase's length where that never came. A second's worth counts, and must hold for two; what is missing
        /// of nine tenths of what all had before is in the wrong hands, too. With `_wide` the first, but two seconds'
        /// worth counts; with `_pv` and `_total` the phase's PV and what all together had in it, in bytes per second.
        #[serde(default, rename = "as")]
        key: Option<String>,
    },
    /// What runs in these tenants ends.
    Stop {
        /// Which.
        #[serde(rename = "in")]
        tenants: Vec<String>,
    },
    /// The tenants' weights change.
    Weights {
        /// The new ones, by tenant.
        to: BTreeMap<String, u64>,
    },
    /// The disk becomes faster or slower. What all had before counts as so many times as much for the next `watch`.
    Disk {
        /// Its new speed, reads and writes together.
        bytes_per_second: Bytes,
    },
}

fn yes() -> bool {
    true
}

fn long() -> u64 {
    120
}

fn pages() -> String {
    "pages".to_owned()
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Run {
                workload, tenants, ..
            } if tenants.is_empty() => write!(f, "{workload}"),
            Self::Run {
                workload, tenants, ..
            } => write!(f, "{workload} in {}", tenants.join(", ")),
            Self::Settle => f.write_str("writing back"),
            Self::Record { key } => write!(f, "recording {key}"),
            Self::Wait { seconds } => write!(f, "waiting {seconds} s"),
            Self::Watch { seconds, .. } => write!(f, "watching {seconds} s"),
            Self::Stop { tenants } => write!(f, "stopping {}", tenants.join(", ")),
            Self::Weights { .. } => f.write_str("changing weights"),
            Self::Disk { .. } => f.write_str("changing the disk's speed"),
        }
    }
}

/// What a file of an experiment holds.
pub type Content = Cow<'static, [u8]>;

/// The agent's cost as the tenants grow in number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    /// How many tenants, one after the other; ascending.
    pub tenants: Vec<u32>,
    /// For how many seconds the agent is watched each time, quiet and under pressure.
    pub seconds: u64,
}

/// How often containers find locks taken on the way to a page, as they grow in number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Contention {
    /// How many containers, one after the other; ascending.
    pub containers: Vec<u32>,
    /// For how many seconds locks are watched each time.
    pub seconds: u64,
    /// For how many seconds the containers run before.
    pub ramp: u64,
    /// What each does once, before it runs for the first time, and then again and again: workloads by name.
    pub prepare: String,
    /// See `prepare`.
    pub run: String,
}

impl Experiment {
    /// Reads and checks a definition. Errors say the file and the line.
    pub fn parse(name: &str, file: &str, text: &str) -> Result<Self> {
        let at = |line: usize, what: &dyn std::fmt::Display| anyhow!("{file}:{line}: {what}");
        let mut experiment: Self = toml::from_str(text).map_err(|error| {
            let line = error
                .span()
                .map_or(1, |span| check::line_at(text, span.start));
            at(line, &error.message())
        })?;
        name.clone_into(&mut experiment.name);
        check::check(&experiment).map_err(|problem| at(problem.place.line(text), &problem.what))?;
        Ok(experiment)
    }

    /// The shipped experiment of this name, or the file at this path.
    pub fn find(name: &str) -> Result<Self> {
        if let Some((name, text)) = SHIPPED.iter().find(|(shipped, _)| *shipped == name) {
            return Self::parse(name, &format!("lab/experiments/{name}.toml"), text);
        }
        let path = Path::new(name);
        if path.extension().is_none_or(|ending| ending != "toml") {
            let names: Vec<&str> = SHIPPED.iter().map(|(name, _)| *name).collect();
            return Err(anyhow!(
                "expected an experiment ({}) or the path of a .toml file, found {name:?}",
                names.join(", ")
            ));
        }
        let text = regular::read(path, LARGEST_FILE).with_context(|| format!("reading {name}"))?;
        let text = String::from_utf8(text).with_context(|| format!("reading {name}"))?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let mut experiment = Self::parse(&stem, name, &text)?;
        experiment.base = path.parent().unwrap_or(Path::new("")).to_owned();
        // Everything is checked before anything runs.
        experiment.contents().with_context(|| name.to_owned())?;
        Ok(experiment)
    }

    /// Its files' contents, by name.
    ///
    /// # Errors
    /// A file cannot be read, or is too large for a guest.
    pub fn contents(&self) -> Result<Vec<(&str, Content)>> {
        let content = |path: &Path| -> Result<Content> {
            let shipped = TRACES.iter().find(|(name, _)| Path::new(name) == path);
            if let Some((_, text)) = shipped {
                return Ok(Cow::Borrowed(text.as_bytes()));
            }
            let path = self.base.join(path);
            let reading = || format!("reading {}", path.display());
            let content = regular::read(&path, LARGEST_FILE).with_context(reading)?;
            Ok(Cow::Owned(content))
        };
        self.files
            .iter()
            .map(|(name, path)| Ok((name.as_str(), content(path)?)))
            .collect()
    }

    /// Every shipped experiment.
    pub fn shipped() -> Result<Vec<Self>> {
        SHIPPED.iter().map(|(name, _)| Self::find(name)).collect()
    }

    /// The tenants as results name them.
    #[must_use]
    pub fn described_tenants(&self) -> Vec<schema::Tenant> {
        let counts = (self.scale.as_ref().map(|scale| &scale.tenants))
            .or_else(|| self.contention.as_ref().map(|one| &one.containers));
        match counts {
            None => self
                .tenant
                .iter()
                .map(|tenant| schema::Tenant {
                    name: tenant.name.clone(),
                    weight: tenant.weight,
                })
                .collect(),
            // One line for each number of tenants.
            Some(counts) => counts
                .iter()
                .map(|count| schema::Tenant {
                    name: scale_name(*count),
                    weight: 100,
                })
                .collect(),
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
pub fn scale_name(count: u32) -> String {
    format!("{count} tenant{}", if count == 1 { "" } else { "s" })
}

macro_rules! shipped {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_str!(concat!("../../experiments/", $name, ".toml")))),*]
    };
}

/// In the order in which `lab list` shows them.
const SHIPPED: [(&str, &str); 34] = shipped![
    "hot-stream",
    "hot-stream-800",
    "hot-writer",
    "hot-once",
    "hot-inner",
    "hot-after-stream",
    "hot-after-rest",
    "hot-x4",
    "reread-x4",
    "reread-equal",
    "writers-x4",
    "writers-equal",
    "direct-x4",
    "fileserver-x4",
    "fileserver-journal",
    "fileserver-x8",
    "fileserver-equal",
    "fileserver-total",
    "fileserver-memcg",
    "mixed-x4",
    "starvation-x8",
    "fluctuating-x4",
    "step-direct",
    "step-writers",
    "step-disk",
    "trace-x4",
    "trace-timed",
    "fsync-beside-hog",
    "fsync-beside-hog-xfs",
    "webserver-x4",
    "idle-tax",
    "shared-layer",
    "scale",
    "contention",
];

macro_rules! traces {
    ($($name:literal),* $(,)?) => {
        [$((concat!("traces/", $name), include_str!(concat!("../../traces/", $name)))),*]
    };
}

/// What experiments may name as files without having them beside.
const TRACES: [(&str, &str); 4] = traces![
    "database.spc",
    "streams.blkparse",
    "vm.cloudphysics",
    "web.msr",
];

/// Files lie in the guest's memory, in bytes.
const LARGEST_FILE: u64 = 128 << 20;

#[cfg(test)]
mod tests;
