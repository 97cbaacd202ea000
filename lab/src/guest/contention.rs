//! Contention of the locks on the way to a page, as the containers grow in number.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::probes::{IoProbes, Limits, Probe};
use justitia_share::num::to_f64;

use super::cgroup::Cgroup;
use super::host::RequestContext;
use super::job::{Job, Parameters, StartBarrier, Target};
use super::setup;
use crate::experiment::{Contention, count_name};
use crate::protocol::{Measurements, RunRequest};
use crate::report::schema::TenantValues;
use crate::spec::Throttle;

/// Preparing its files takes a container longer the more containers there are.
const PREPARE: Duration = Duration::from_secs(300);
/// After its time a workload ends within this.
const END: Duration = Duration::from_secs(120);

struct Container {
    name: String,
    cgroup: Cgroup,
    dir: PathBuf,
    id: CgroupId,
}

/// Measures it for every number of containers.
pub(super) fn measure(
    contention: &Contention,
    request: &RunRequest,
    context: &RequestContext,
) -> Result<Measurements> {
    setup::set_up(&request.experiment, &request.configuration)?;
    context.set_disk_speed(Throttle::default())?;
    let mut probes = IoProbes::attach(&Limits::default())?;
    let mut containers: Vec<Container> = Vec::new();
    let mut tenants = Vec::new();
    for (index, count) in contention.containers.iter().enumerate() {
        let from = containers.len();
        for number in from + 1..=usize::try_from(*count)? {
            containers.push(container(number)?);
        }
        context.progress(format!("{count} containers: preparing"))?;
        let barrier = StartBarrier::new(2 * index);
        let new = &containers[from..];
        for mut job in start(&contention.prepare, new, request, None, &barrier)? {
            job.finish(PREPARE)?;
        }
        context.progress(format!("{count} containers: running"))?;
        let barrier = StartBarrier::new(2 * index + 1);
        let seconds = contention.ramp + contention.seconds;
        let running = start(
            &contention.run,
            &containers,
            request,
            Some(seconds),
            &barrier,
        )?;
        std::thread::sleep(Duration::from_secs(contention.ramp));
        let values = contended(&mut probes, &containers, contention.seconds)?;
        for mut job in running {
            job.finish(END)?;
        }
        tenants.push(TenantValues::new(count_name(*count), values));
    }
    Ok(Measurements {
        tenants,
        ..Measurements::default()
    })
}

/// The contention of all containers over so many seconds, per second.
fn contended(
    probes: &mut IoProbes,
    containers: &[Container],
    seconds: u64,
) -> Result<[(&'static str, f64); 2]> {
    probes.trace_locks(true)?;
    std::thread::sleep(Duration::from_secs(seconds));
    let found = probes.lock_contention()?;
    probes.trace_locks(false)?;
    let lost = probes.dropped(Probe::LockContention)?;
    ensure!(
        lost == 0,
        "expected every wait to be counted, {lost} found the map full"
    );
    let own = || containers.iter().filter_map(|one| found.get(&one.id));
    let per_second = |sum: u64| to_f64(sum) / to_f64(seconds);
    Ok([
        ("contention", per_second(own().map(|one| one.count).sum())),
        (
            "contention_wait",
            per_second(own().map(|one| one.wait_ns).sum()) / 1e9,
        ),
    ])
}

fn container(number: usize) -> Result<Container> {
    let name = format!("c{number}");
    let cgroup = Cgroup::create(&name)?;
    cgroup.inhabit()?;
    let path = Path::new("/sys/fs/cgroup").join(&name);
    let metadata = std::fs::metadata(&path).with_context(|| format!("stat {}", path.display()))?;
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
    request: &RunRequest,
    seconds: Option<u64>,
    barrier: &StartBarrier,
) -> Result<Vec<Job>> {
    let workload = request
        .experiment
        .workload
        .get(workload)
        .with_context(|| format!("expected a workload named {workload:?}"))?;
    let parameters = Parameters {
        seconds,
        ramp: 0,
        seed: request.seed,
    };
    let mut jobs = Vec::new();
    for container in containers {
        let target = Target {
            name: &container.name,
            weight: 100,
            variables: &[].into(),
            cgroup: &container.cgroup,
            dir: &container.dir,
        };
        jobs.push(Job::start(workload, &target, &parameters, barrier)?);
    }
    barrier.release(&mut jobs, PREPARE)?;
    Ok(jobs)
}
