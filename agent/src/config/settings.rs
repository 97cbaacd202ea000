//! The keys of the configuration, as serde reads them. `docs/reference/configuration.md` is generated from these comments.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

#[cfg(feature = "reference")]
use documented::DocumentedFields;
use justitia_api::DemandModel;
use justitia_cgroup_tree::Rule;
use justitia_kernel::probes::Limits;
use justitia_share::Weight;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};

use super::value;
use crate::page_cache::Policy;

/// The configuration of the agent. Every key is optional.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "reference", derive(DocumentedFields))]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The agent's status socket: `justitia status`, `top` and `explain` connect to it.
    #[serde(deserialize_with = "value::absolute_path")]
    pub socket: PathBuf,
    /// The directory of the file that holds the original value of each knob that the agent has changed. It should be on
    /// a tmpfs, because it is synced before each change; with `[io]` it must be.
    #[serde(deserialize_with = "value::absolute_path")]
    pub state_dir: PathBuf,
    /// The part of one CPU, in percent, that monitoring may take. With more to do, the agent samples less often.
    #[serde(deserialize_with = "value::percentage")]
    pub cpu_budget: f64,
    /// Limits of the I/O probes.
    pub probes: Probes,
    /// Metrics in the OpenMetrics format, over HTTP.
    pub metrics: Metrics,
    /// Division of the bandwidth of contended disks.
    pub io: Io,
    /// Recharging of shared page cache: pages of a shared file are charged to the tenant that uses them most.
    pub recharge: Recharge,
    /// Division of the page cache.
    pub cache: Cache,
    /// When tenants under memory pressure are left alone.
    pub pressure: Pressure,
    /// Processes and memory outside managed cgroups.
    pub unmanaged: UnmanagedShare,
    /// A cap of the page cache that no process has mapped. For VMs with a host that caches the same blocks.
    pub unmapped: Unmapped,
    /// A cap of reclaimable slab: dentries and inodes above all.
    pub slab: Slab,
    /// The guest's side of the hypervisor cache: `justitia guest` alone reads it.
    pub guest: Guest,
    /// I/O weights that were declared to runtimes and in units.
    pub weights: Weights,
    /// Overrides for the cgroups that a pattern matches.
    #[serde(rename = "tenant", skip_serializing, deserialize_with = "no_rules")]
    pub rules: Vec<Rule>,
}

/// `[probes]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "reference", derive(DocumentedFields))]
#[serde(default, deny_unknown_fields, expecting = "a table [probes]")]
pub struct Probes {
    /// The largest number of cgroups with counters of their own; all others share one. Each takes 256 bytes a
    /// processor.
    #[serde(deserialize_with = "value::max_cgroups")]
    pub max_cgroups: u32,
    /// The largest number of requests in flight that are tracked: those of libaio, and those that io.max throttles.
    /// Fewer on a machine with little memory: they take at most 1/4096 of it.
    #[serde(deserialize_with = "value::max_entries")]
    pub max_inflight: u32,
    /// The largest number of pairs of a shared file and a tenant that uses it. They take at most 1/4096 of memory, too.
    #[serde(deserialize_with = "value::max_entries")]
    pub max_shared_files: u32,
}

/// `[metrics]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "reference", derive(DocumentedFields))]
#[serde(default, deny_unknown_fields, expecting = "a table [metrics]")]
pub struct Metrics {
    /// Where metrics are served, as `http://ADDRESS/metrics`.
    #[serde(
        deserialize_with = "value::listen",
        serialize_with = "value::listen_text"
    )]
    pub listen: Option<SocketAddr>,
    /// The largest number of tenants that have series of their own.
    #[serde(deserialize_with = "value::max_tenants")]
    pub max_tenants: usize,
}

/// `[io]`
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "reference", derive(DocumentedFields))]
#[serde(default, deny_unknown_fields, expecting = "a table [io]")]
pub struct Io {
    /// Whether the bandwidth of contended disks is divided by weight: by correcting weights (a line of the disk in
    /// `io.bfq.weight` where BFQ schedules it, else in `io.weight`, with io.cost, which is enabled where it is not);
    /// and, where buffered writers compete, with `memory.high` and `vm.dirty_background_ratio`.
    #[serde(deserialize_with = "value::boolean")]
    pub enabled: bool,
}

/// `[recharge]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "reference", derive(DocumentedFields))]
#[serde(default, deny_unknown_fields, expecting = "a table [recharge]")]
pub struct Recharge {
    /// Whether pages of shared files are recharged.
    #[serde(deserialize_with = "value::boolean")]
    pub enabled: bool,
    /// The time between two searches for shared files. Each takes 5 seconds.
    #[serde(
        deserialize_with = "value::interval",
        serialize_with = "value::interval_text"
    )]
    pub interval: Duration,
}

/// `[cache]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "reference", derive(DocumentedFields))]
#[serde(default, deny_unknown_fields, expecting = "a table [cache]")]
pub struct Cache {
    /// How a tenant's demand is counted. `use`: pages that it uses repeatedly come first, pages that it reads once come
    /// after. `usage`: all pages that it holds or reads count alike.
    pub demand: DemandModel,
    /// Whether cold anonymous memory is swapped out where the file pages in use do not fit, as much as by the kernel
    /// alone: as readily as `vm.swappiness` says, up to each cgroup's `memory.swap.max`. Without swap space nothing is.
    #[serde(deserialize_with = "value::boolean")]
    pub swap: bool,
}

impl Default for Cache {
    fn default() -> Self {
        Self {
            demand: DemandModel::default(),
            swap: true,
        }
    }
}

/// `[pressure]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "reference", derive(DocumentedFields))]
#[serde(default, deny_unknown_fields, expecting = "a table [pressure]")]
pub struct Pressure {
    /// The memory pressure of a tenant (PSI `full avg10`, percent) at and above which nothing is reclaimed from it.
    #[serde(deserialize_with = "value::percentage")]
    pub full_avg10_max: f64,
}

/// `[unmanaged]`
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "reference", derive(DocumentedFields))]
#[serde(default, deny_unknown_fields, expecting = "a table [unmanaged]")]
pub struct UnmanagedShare {
    /// The weight of all of these together, among the tenants at the top level.
    #[serde(
        deserialize_with = "value::weight",
        serialize_with = "value::weight_number"
    )]
    pub weight: Weight,
}

/// All of memory, percent: no cap.
const NO_CAP: f64 = 100.0;

/// `[unmapped]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "reference", derive(DocumentedFields))]
#[serde(default, deny_unknown_fields, expecting = "a table [unmapped]")]
pub struct Unmapped {
    /// The part of memory, in percent, that unmapped file pages may take. Pages above it are reclaimed even while
    /// memory is free; those below it are divided by weight and use. Minimums of tenants come first. 100 is no cap.
    #[serde(deserialize_with = "value::percentage")]
    pub max_ratio: f64,
}

/// `[slab]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "reference", derive(DocumentedFields))]
#[serde(default, deny_unknown_fields, expecting = "a table [slab]")]
pub struct Slab {
    /// The part of memory, in percent, above which reclaimable slab is shrunk before other cache, by
    /// `vm.vfs_cache_pressure`. 100 is no cap.
    #[serde(deserialize_with = "value::percentage")]
    pub max_ratio: f64,
}

/// `[guest]`
#[derive(Clone, Debug, Deserialize, Serialize)]
#[cfg_attr(feature = "reference", derive(DocumentedFields))]
#[serde(default, deny_unknown_fields, expecting = "a table [guest]")]
pub struct Guest {
    /// The buffer of evicted pages that wait to be offered: a power of two from 64 KiB to 256 MiB. Pages evicted while
    /// it is full are not offered.
    #[serde(deserialize_with = "value::ring", serialize_with = "value::ring_text")]
    pub buffer: u32,
    /// Whether containers' pools use the host's SSD as well as its memory, by the same weight. The host must allow it
    /// (`ssd = true` in its `[vm.port]`); otherwise they use its memory alone.
    #[serde(deserialize_with = "value::boolean")]
    pub ssd: bool,
}

/// `[weights]`
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[cfg_attr(feature = "reference", derive(DocumentedFields))]
#[serde(default, deny_unknown_fields, expecting = "a table [weights]")]
pub struct Weights {
    /// Whether a declared weight is written to `io.weight` and `io.bfq.weight`, as its runtime writes it, where these
    /// have another number, as after a reload of systemd. Values that programs other than systemd wrote stay.
    #[serde(deserialize_with = "value::boolean")]
    pub restore: bool,
}

/// Rules are read one by one, before the other keys.
fn no_rules<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<Rule>, D::Error> {
    IgnoredAny::deserialize(d).map(|_| Vec::new())
}

impl Default for Config {
    fn default() -> Self {
        Self {
            socket: PathBuf::from("/run/justitia/justitia.sock"),
            state_dir: PathBuf::from("/run/justitia"),
            cpu_budget: 1.0,
            probes: Probes::default(),
            metrics: Metrics::default(),
            io: Io::default(),
            recharge: Recharge::default(),
            cache: Cache::default(),
            pressure: Pressure::default(),
            unmanaged: UnmanagedShare::default(),
            unmapped: Unmapped::default(),
            slab: Slab::default(),
            guest: Guest::default(),
            weights: Weights::default(),
            rules: Vec::new(),
        }
    }
}

impl Default for Unmapped {
    fn default() -> Self {
        Self { max_ratio: NO_CAP }
    }
}

impl Default for Slab {
    fn default() -> Self {
        Self { max_ratio: NO_CAP }
    }
}

impl Default for Guest {
    fn default() -> Self {
        Self {
            buffer: 8 << 20,
            ssd: false,
        }
    }
}

impl Default for Probes {
    fn default() -> Self {
        let limits = Limits::default();
        Self {
            max_cgroups: limits.max_cgroups,
            max_inflight: limits.max_inflight,
            max_shared_files: limits.max_shared_files,
        }
    }
}

impl From<&Probes> for Limits {
    fn from(probes: &Probes) -> Self {
        Self {
            max_cgroups: probes.max_cgroups,
            max_inflight: probes.max_inflight,
            max_shared_files: probes.max_shared_files,
            ..Self::default()
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            listen: Some(SocketAddr::from(([127, 0, 0, 1], 9742))),
            max_tenants: 1000,
        }
    }
}

impl Default for Recharge {
    fn default() -> Self {
        Self {
            enabled: false,
            interval: Duration::from_secs(60),
        }
    }
}

impl Default for Pressure {
    fn default() -> Self {
        Self {
            full_avg10_max: Policy::default().full_avg10_max,
        }
    }
}

impl Config {
    /// The constants of the planners, as configured.
    #[must_use]
    pub fn policy(&self) -> Policy {
        Policy {
            demand: self.cache.demand,
            full_avg10_max: self.pressure.full_avg10_max,
            unmapped_max: cap(self.unmapped.max_ratio),
            slab_max: cap(self.slab.max_ratio),
            ..Policy::default()
        }
    }
}

/// The cap in percent, unless the value means none.
fn cap(percent: f64) -> Option<f64> {
    (percent < NO_CAP).then_some(percent)
}
