//! How often containers find locks taken on the way to a page, as they grow in number.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::probes::{IoProbes, Limits, Probe};
use justitia_share::num::to_f64;

use super::cgroup::Cgroup;
use super::serve::Caller;
use super::setup;
use super::work::{Gate, Place, Words, Work};
use crate::experiment::{Contention, scale_name};
use crate::report::schema::TenantValues;
use crate::vm::Throttle;
use crate::wire::{Measured, Plan};

/// Preparing its files takes a container longer the more there are.
const PREPARE: Duration = Duration::from_secs(300);
/// After its time a workload ends within.
const END: Duration = Duration::from_secs(120);

struct Container {
    name: String,
    cgroup: Cgroup,
    dir: PathBuf,
    id: CgroupId,
}

/// Measures it for every number of containers.
pub fn measure(contention: &Contention, plan: &Plan, caller: &Caller) -> Result<Measured> {
    setup::set_up(&plan.experiment, &plan.configuration)?;
    caller.disk(Throttle::default())?;
    let mut probes = IoProbes::attach(&Limits::default())?;
    let mut containers: Vec<Container> = Vec::new();
    let mut tenants = Vec::new();
    let mut gates = 0;
    for count in &contention.containers {
        let from = containers.len();
        for number in from + 1..=usize::try_from(*count)? {
            containers.push(container(number)?);
        }
        caller.progress(format!("{count} containers: preparing"))?;
        gates += 1;
        let prepared = start(&contention.prepare, &containers[from..], plan, None, gates)?;
        for mut work in prepared {
            work.finish(PREPARE)?;
        }
        caller.progress(format!("{count} containers: running"))?;
        gates += 1;
        let seconds = contention.ramp + contention.seconds;
        let running = start(&contention.run, &containers, plan, Some(seconds), gates)?;
        std::thread::sleep(Duration::from_secs(contention.ramp));
        probes.trace_locks(true)?;
        std::thread::sleep(Duration::from_secs(contention.seconds));
        let found = probes.lock_contention()?;
        probes.trace_locks(false)?;
        let lost = probes.dropped(Probe::LockContention)?;
        ensure!(
            lost == 0,
            "expected every wait to be counted, found {lost} without room"
        );
        for mut work in running {
            work.finish(END)?;
        }
        let own = || containers.iter().filter_map(|one| found.get(&one.id));
        let per_second = |sum: u64| to_f64(sum) / to_f64(contention.seconds);
        let count_each = per_second(own().map(|one| one.count).sum());
        let wait_each = per_second(own().map(|one| one.wait_ns).sum()) / 1e9;
        let values = [("contention", count_each), ("contention_wait", wait_each)];
        tenants.push(TenantValues::new(scale_name(*count), values));
    }
    Ok(Measured {
        tenants,
        ..Measured::default()
    })
}

fn container(number: usize) -> Result<Container> {
    let name = format!("c{number}");
    let cgroup = Cgroup::create(&name)?;
    cgroup.inhabit()?;
    let path = Path::new("/sys/fs/cgroup").join(&name);
    let metadata =
        std::fs::metadata(&path).with_context(|| format!("looking at {}", path.display()))?;
    Ok(Container {
        dir: setup::directory(&name)?,
        id: CgroupId(std::os::unix::fs::MetadataExt::ino(&metadata)),
        name,
        cgroup,
    })
}

/// Starts a workload in each, all at once.
fn start(
    workload: &str,
    containers: &[Container],
    plan: &Plan,
    seconds: Option<u64>,
    gate: usize,
) -> Result<Vec<Work>> {
    let workload = plan
        .experiment
        .workload
        .get(workload)
        .with_context(|| format!("expected a workload named {workload:?}"))?;
    let words = Words {
        seconds,
        ramp: 0,
        seed: plan.seed,
    };
    let gate = Gate::new(gate);
    let mut works = Vec::new();
    for container in containers {
        let place = Place {
            name: &container.name,
            weight: 100,
            words: &[].into(),
            cgroup: &container.cgroup,
            dir: &container.dir,
        };
        works.push(Work::start(workload, &place, &words, &gate)?);
    }
    for work in &mut works {
        work.wait_ready(PREPARE)?;
    }
    gate.open()?;
    Ok(works)
}
