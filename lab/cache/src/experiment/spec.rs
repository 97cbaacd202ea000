//! An experiment as it is written: sizes and times are those of a whole machine, and are divided by `scale`.

use justitia_cache::Policy;
use justitia_cache::serve::Size;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Containers in VMs, what they do, and the ways of dividing the cache that are compared.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Its name: that of its file.
    #[serde(skip)]
    pub name: String,
    /// Its heading.
    pub title: String,
    /// What was done and asked. Plain text.
    pub question: String,
    /// Sizes are divided by this, 1 to 4096.
    #[serde(default = "one")]
    pub scale: u32,
    /// Times are divided by this, 1 to 65536; as `scale` without. What a read of the disk takes is not.
    #[serde(default)]
    pub time_scale: Option<u32>,
    /// How long a run is, seconds before they are divided.
    pub seconds: f64,
    /// From when on is measured, likewise.
    #[serde(default)]
    pub measure_from: f64,
    /// What a file operation takes besides cache and disk, microseconds.
    #[serde(default)]
    pub operation_us: u32,
    /// The memory store.
    pub memory: Size,
    /// The SSD store, if there is one.
    #[serde(default)]
    pub ssd: Option<Size>,
    /// The containers, in the order in which they are shown.
    pub container: Vec<Container>,
    /// What is compared.
    pub configuration: Vec<Configuration>,
    /// What changes meanwhile.
    #[serde(default)]
    pub event: Vec<Event>,
    /// What is promised.
    #[serde(default)]
    pub goal: Vec<Goal>,
    /// The paper's figures.
    #[serde(default)]
    pub paper: Option<Paper>,
}

const fn one() -> u32 {
    1
}

/// A container, with a page cache of its own, which puts what it evicts and gets what it misses.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Container {
    /// Unique.
    pub name: String,
    /// Its VM.
    #[serde(default = "first_vm")]
    pub vm: String,
    /// The limit of its memory, which its page cache fills.
    pub memory: Size,
    /// What runs in it.
    pub workload: Kind,
    /// All files that exist at one time. Videoserver: those that are read.
    pub files: Size,
    /// Threads.
    pub threads: u32,
    /// Its weights among the containers of its VM: in memory, on the SSD. 0: not in this store.
    #[serde(default = "memory_only")]
    pub weights: [u64; 2],
    /// When it starts, seconds before they are divided.
    #[serde(default)]
    pub start: f64,
    /// When it is removed, likewise.
    #[serde(default)]
    pub stop: Option<f64>,
}

fn first_vm() -> String {
    "vm".to_owned()
}

const fn memory_only() -> [u64; 2] {
    [100, 0]
}

/// A workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Filebench's `webserver.f`.
    Webserver,
    /// Filebench's `webproxy.f`.
    Webproxy,
    /// Filebench's `varmail.f`.
    Mail,
    /// Filebench's `videoserver.f`.
    Videoserver,
    /// Reads of 16 KiB at random places, all alike.
    Random,
}

/// How the cache is divided.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// Its key.
    pub id: String,
    /// Its name for people.
    pub label: String,
    /// What it sets, in one sentence.
    #[serde(default)]
    pub what: String,
    /// How it is divided.
    pub cache: Division,
    /// Weights of containers that are other than their own.
    #[serde(default)]
    pub weights: BTreeMap<String, [u64; 2]>,
    /// The eviction policy inside a pool: the paper's FIFO unless given. The daemon's default is another one.
    #[serde(default)]
    pub policy: Policy,
    /// Containers that take part; all without.
    #[serde(default)]
    pub containers: Vec<String>,
    /// Other starts of containers.
    #[serde(default)]
    pub starts: BTreeMap<String, f64>,
    /// Whether events change weights.
    #[serde(default = "yes")]
    pub events: bool,
}

const fn yes() -> bool {
    true
}

/// What shares the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Division {
    /// There is no second-chance cache.
    None,
    /// One pool for all, first in, first out, in memory: the paper's baseline.
    Global,
    /// A pool for each container, by weight.
    Pools,
}

/// Something changes.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// When, seconds before they are divided.
    pub at: f64,
    /// New weights of containers.
    #[serde(default)]
    pub weights: BTreeMap<String, [u64; 2]>,
    /// New weights of VMs.
    #[serde(default)]
    pub vms: BTreeMap<String, u64>,
    /// A new size of the memory store.
    #[serde(default)]
    pub memory: Option<Size>,
    /// Whether it is measured how long it takes until all hold what their weights give: all want more than that.
    #[serde(default)]
    pub settles: bool,
}

/// A bound that must hold for the median.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goal {
    /// Of which configuration.
    pub configuration: String,
    /// Of which measure of the run as a whole.
    pub metric: String,
    /// At least this.
    #[serde(default)]
    pub at_least: Option<f64>,
    /// At most this.
    #[serde(default)]
    pub at_most: Option<f64>,
    /// What would be better still.
    #[serde(default)]
    pub stretch: Option<f64>,
}

/// What the paper reports.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// Which figures or tables.
    pub figure: String,
    /// The measure that `results` are of.
    #[serde(default)]
    pub metric: Option<String>,
    /// By configuration.
    #[serde(default)]
    pub results: Vec<PaperResult>,
    /// What containers held over time, as the text says.
    #[serde(default)]
    pub occupancy: Vec<PaperOccupancy>,
}

/// The paper's figures for a configuration.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperResult {
    /// Its key.
    pub configuration: String,
    /// By container.
    #[serde(default)]
    pub values: BTreeMap<String, f64>,
    /// Anything else, in words.
    #[serde(default)]
    pub note: String,
}

/// What a container held in the paper.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperOccupancy {
    /// The key of the configuration.
    pub configuration: String,
    /// Which container.
    pub container: String,
    /// Pairs of seconds and MiB.
    pub points: Vec<(f64, f64)>,
}
