//! Sets the machine up for a configuration: disk, scheduler, tenants, limits.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::cgroup::{Cgroup, meminfo, share, write};
use super::job::Target;
use crate::experiment::{Configuration, Experiment, IoCost, MemoryLimit, Scheduler};
use crate::spec::{Filesystem, Throttle};

/// Where the disk is mounted; every tenant has a directory there.
pub(super) const DATA: &str = "/data";

const QUEUE: &str = "/sys/block/vda/queue";
/// BFQ's settings that follow weights best, for all configurations over BFQ. Its heuristics for desktops lift tenants
/// that look interactive above their weight; and with its default budgets of up to 16 MiB, seconds pass before the shares
/// come out (measured over 5 s, direct reads, weights 100 to 800: 1 : 1.9 : 7 : 9; with these 1 : 2 : 3.7 : 6.1,
/// and the same total). `strict_guarantees` would come closer still, but costs the re-read a third of the disk.
const FAIR_BFQ: [(&str, &str); 2] = [
    ("low_latency", "0"),
    // Sectors.
    ("max_budget", "1024"),
];
const DIRTY: &str = "/proc/sys/vm/dirty_ratio";
const BACKGROUND: &str = "/proc/sys/vm/dirty_background_ratio";
const MGLRU: &str = "/sys/kernel/mm/lru_gen/enabled";

/// A tenant, ready to run things.
pub(super) struct Tenant {
    pub name: String,
    pub weight: u64,
    /// The workload that runs in it beside the phases.
    pub background: Option<String>,
    /// Its own variables in workloads' texts.
    pub variables: BTreeMap<String, String>,
    /// What is written to its cgroup's files.
    pub settings: BTreeMap<String, String>,
    pub cgroup: Cgroup,
    pub dir: PathBuf,
}

impl Tenant {
    /// Removes its cgroup and makes it anew, as when a service restarts.
    pub(super) fn renew(&self) -> Result<()> {
        self.cgroup.remove()?;
        Cgroup::create(&self.name)?;
        prepare(&self.cgroup, self.weight, &self.settings)
    }

    /// As where a job runs.
    pub(super) fn target(&self) -> Target<'_> {
        Target {
            name: &self.name,
            weight: self.weight,
            variables: &self.variables,
            cgroup: &self.cgroup,
            dir: &self.dir,
        }
    }
}

/// Sets a new cgroup up.
fn prepare(cgroup: &Cgroup, weight: u64, settings: &BTreeMap<String, String>) -> Result<()> {
    cgroup.set_weight(weight)?;
    for (file, value) in settings {
        cgroup.write(file, value)?;
    }
    cgroup.inhabit()
}

/// Sets everything up, except for the agent.
pub(super) fn set_up(
    experiment: &Experiment,
    configuration: &Configuration,
) -> Result<Vec<Tenant>> {
    disk(experiment, configuration)?;
    let mut tenants = Vec::new();
    for tenant in &experiment.tenant {
        let cgroup = Cgroup::create(&tenant.name)?;
        prepare(&cgroup, tenant.weight, &tenant.cgroup)?;
        tenants.push(Tenant {
            name: tenant.name.clone(),
            weight: tenant.weight,
            background: tenant.background.clone(),
            variables: tenant.variables.clone(),
            settings: tenant.cgroup.clone(),
            cgroup,
            dir: directory(&tenant.name)?,
        });
    }
    if configuration.io_max {
        start_writeback_late()?;
    }
    limit(experiment, configuration, &tenants)?;
    Ok(tenants)
}

/// For static limits, as the agent does for its own: pages that the kernel writes back earlier than it must wait in the
/// throttling layer, where they can be neither deleted nor written again. So writeback begins just before writers are
/// throttled, not at half of that. Without limits that gains nothing (docs/results): `conventional` keeps the
/// kernel's default.
fn start_writeback_late() -> Result<()> {
    let text = std::fs::read_to_string(DIRTY).with_context(|| format!("reading {DIRTY}"))?;
    let ratio: u64 = text
        .trim()
        .parse()
        .with_context(|| format!("{DIRTY}: expected per cent, found {text:?}"))?;
    write(Path::new(BACKGROUND), &ratio.saturating_sub(1).to_string())
}

/// A directory on the disk.
pub(super) fn directory(name: &str) -> Result<PathBuf> {
    let dir = Path::new(DATA).join(name);
    std::fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    Ok(dir)
}

fn disk(experiment: &Experiment, configuration: &Configuration) -> Result<()> {
    scheduler(configuration.scheduler)?;
    if let Some(set_up) = configuration.io_cost {
        io_cost(experiment.disk.throttle(), set_up)?;
    }
    mount(experiment.disk.filesystem)
}

fn scheduler(scheduler: Scheduler) -> Result<()> {
    let name = match scheduler {
        Scheduler::None => "none",
        Scheduler::Bfq | Scheduler::BfqDefault => "bfq",
    };
    write(&Path::new(QUEUE).join("scheduler"), name)?;
    if scheduler == Scheduler::Bfq {
        for (setting, value) in FAIR_BFQ {
            write(&Path::new(QUEUE).join("iosched").join(setting), value)?;
        }
    }
    Ok(())
}

/// io.cost at a fixed rate. Its period is twice the latency, at least 1 ms, which is shorter than a request takes: with a latency of 0
/// it hardly divides.
const FIXED_RATE: &str = "rpct=0 rlat=25000 wpct=0 wlat=25000 min=100 max=100";
/// Slower where requests take longer than a deep queue does at full speed, microseconds.
const LATENCY_TARGETS: &str = "rpct=95 rlat=100000 wpct=95 wlat=200000 min=50 max=100";

/// Turns io.cost on, for a disk of this speed.
fn io_cost(speed: Throttle, io_cost: IoCost) -> Result<()> {
    let bytes = speed.bytes_per_second;
    ensure!(
        bytes > 0,
        "io.cost's model needs a disk with bytes_per_second"
    );
    let number = device_number()?;
    let bytes = bytes * io_cost.model / 100;
    let mut pages = bytes >> 12;
    if speed.requests_per_second > 0 {
        pages = pages.min(speed.requests_per_second * io_cost.model / 100);
    }
    let quality = if io_cost.targets {
        LATENCY_TARGETS
    } else {
        FIXED_RATE
    };
    let root = Cgroup::root();
    root.write(
        "io.cost.model",
        &format!("{number} ctrl=user model=linear rbps={bytes} rseqiops={pages} rrandiops={pages} wbps={bytes} wseqiops={pages} wrandiops={pages}"),
    )?;
    root.write(
        "io.cost.qos",
        &format!("{number} enable=1 ctrl=user {quality}"),
    )
}

fn mount(filesystem: Filesystem) -> Result<()> {
    if filesystem != Filesystem::Ext4 {
        let loaded = Command::new("modprobe")
            .arg(filesystem.to_string())
            .status()
            .context("starting modprobe")?;
        ensure!(loaded.success(), "modprobe {filesystem}: {loaded}");
    }
    let status = Command::new("mount")
        .args(["-o", "noatime", "/dev/vda", DATA])
        .status()
        .context("starting mount")?;
    ensure!(status.success(), "mounting /dev/vda on {DATA}: {status}");
    Ok(())
}

/// The disk's `major:minor`.
fn device_number() -> Result<String> {
    let path = "/sys/block/vda/dev";
    let text = std::fs::read_to_string(path).with_context(|| format!("reading {path}"))?;
    Ok(text.trim().to_owned())
}

fn limit(experiment: &Experiment, configuration: &Configuration, tenants: &[Tenant]) -> Result<()> {
    let available = meminfo("MemAvailable:")?;
    let all = tenants.iter().map(|tenant| tenant.weight).sum();
    let number = device_number()?;
    for Tenant { weight, cgroup, .. } in tenants {
        if let Some(limit) = configuration.memory {
            let file = match limit {
                MemoryLimit::Max => "memory.max",
                MemoryLimit::High => "memory.high",
            };
            cgroup.write(file, &share(available, *weight, all).to_string())?;
        }
        if configuration.io_max {
            let bytes = share(experiment.disk.bytes_per_second.0, *weight, all);
            cgroup.write("io.max", &format!("{number} rbps={bytes} wbps={bytes}"))?;
        }
    }
    Ok(())
}

/// Turns MGLRU on or off where the kernel has it, and says what holds.
pub(super) fn mglru(wanted: Option<bool>) -> Result<Option<bool>> {
    let path = Path::new(MGLRU);
    if !path.exists() {
        ensure!(
            wanted != Some(true),
            "MGLRU was asked for; this kernel has none"
        );
        return Ok(None);
    }
    if let Some(on) = wanted {
        write(path, if on { "y" } else { "n" })?;
    }
    let state = std::fs::read_to_string(path).with_context(|| format!("reading {MGLRU}"))?;
    Ok(Some(state.trim() != "0x0000"))
}
