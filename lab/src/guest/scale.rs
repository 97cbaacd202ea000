//! The agent's own cost as the tenants grow in number.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use justitia_common::kill_on_drop::KillOnDrop;
use justitia_share::num::to_f64;

use super::agent::{Agent, AgentMode};
use super::cgroup::Cgroup;
use super::host::RequestContext;
use super::process::{CpuUsage, cpu_usage, peak_memory};
use super::{setup, shell};
use crate::experiment::{OUTSIDER, Scale, count_name};
use crate::protocol::{Measurements, RunRequest};
use crate::report::schema::TenantValues;
use crate::spec::Throttle;

/// Reads and writes through the page cache, outside any tenant, until killed.
const PRESSURE: &str = "while :; do dd if=/dev/zero of=dummy bs=1M count=6000 conv=notrunc; cat dummy >/dev/null; done";

/// Writes past the page cache, in a file of its own, until killed.
const WRITER: &str =
    "while :; do dd if=/dev/zero of=w{number} bs=64k count=512 oflag=direct conv=notrunc; done";
/// The number of tenants that contend for the disk, if there are as many. Their weights differ.
const WRITERS: u32 = 4;

/// Measures it for every number of tenants.
pub(super) fn measure(
    scale: &Scale,
    request: &RunRequest,
    context: &RequestContext,
) -> Result<Measurements> {
    setup::set_up(&request.experiment, &request.configuration)?;
    context.set_disk_speed(Throttle::default())?;
    let window = Duration::from_secs(scale.seconds);
    let mut made = 0;
    let mut tenants = Vec::new();
    for count in &scale.tenants {
        context.progress(format!("{count} tenants: starting"))?;
        make(made, *count)?;
        made = *count;
        let mut agent = Agent::start(AgentMode::from(&request.configuration))?;
        let values = costs(&mut agent, *count, window, request, context)?;
        agent.stop()?;
        tenants.push(TenantValues::new(count_name(*count), values));
    }
    Ok(Measurements {
        tenants,
        ..Measurements::default()
    })
}

/// The agent's cost: quiet, while some tenants contend for the disk, and under memory pressure.
fn costs(
    agent: &mut Agent,
    count: u32,
    window: Duration,
    request: &RunRequest,
    context: &RequestContext,
) -> Result<[(&'static str, f64); 5]> {
    // It finds all tenants at once; that is not what is measured.
    std::thread::sleep(Duration::from_secs(3));
    context.progress(format!("{count} tenants: quiet"))?;
    let quiet = cpu(agent, window)?;
    context.progress(format!("{count} tenants: some contend for the disk"))?;
    context.set_disk_speed(request.experiment.disk.throttle())?;
    let writers = (0..WRITERS.min(count))
        .map(writer)
        .collect::<Result<Vec<_>>>()?;
    std::thread::sleep(Duration::from_secs(5));
    let contended = cpu(agent, window)?;
    drop(writers);
    context.set_disk_speed(Throttle::default())?;
    context.progress(format!("{count} tenants: under pressure"))?;
    let pressure = KillOnDrop(shell::start(PRESSURE, &setup::directory(OUTSIDER)?)?);
    std::thread::sleep(Duration::from_secs(5));
    let pressed = cpu(agent, window)?;
    let memory = peak_memory(agent.pid())?;
    drop(pressure);
    Ok([
        ("agent_cpu", quiet.all),
        ("agent_cpu_contended", contended.all),
        ("agent_cpu_pressure", pressed.all),
        // Its main thread monitors and plans. Others write `memory.reclaim`, where the kernel works for them.
        ("agent_loop_pressure", pressed.main),
        ("agent_memory", to_f64(memory)),
    ])
}

fn cpu(agent: &mut Agent, window: Duration) -> Result<CpuUsage> {
    let usage = cpu_usage(agent.pid(), window)?;
    agent.check()?;
    Ok(usage)
}

/// Makes tenants, each with a sleeping process and a file in the cache, on every processor:
/// starting processes is what takes time.
fn make(from: u32, to: u32) -> Result<()> {
    let dir = setup::directory("tenants")?;
    let next = AtomicU32::new(from);
    let maker = || -> Result<()> {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= to {
                return Ok(());
            }
            make_one(number, &dir)?;
        }
    };
    std::thread::scope(|scope| {
        let makers: Vec<_> = (0..4).map(|_| scope.spawn(maker)).collect();
        makers.into_iter().try_for_each(|maker| {
            maker
                .join()
                .map_err(|_| anyhow!("a thread that makes tenants panicked"))?
        })
    })?;
    let begin = Instant::now();
    for number in from..to {
        let file = dir.join(format!("f{number}"));
        // Its shell is in the tenant by the time that it has written the file.
        while !std::fs::metadata(&file).is_ok_and(|file| file.len() == 65_536) {
            ensure!(
                begin.elapsed() < Duration::from_secs(120),
                "expected tenant {number} to have written {} within 120 s",
                file.display()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

fn make_one(number: u32, dir: &Path) -> Result<()> {
    let cgroup = Cgroup::create(&format!("t{number}"))?;
    let weight = number % 10 * 100 + 100;
    cgroup.write("io.weight", &format!("default {weight}"))?;
    let script = format!("printf %65536s >f{number} && exec sleep 100000");
    cgroup.start(&script, dir).map(drop)
}

/// A direct writer in a tenant, whose loop runs until this is dropped; what it was running ends soon after.
fn writer(number: u32) -> Result<KillOnDrop> {
    let cgroup = Cgroup::create(&format!("t{number}"))?;
    let script = WRITER.replace("{number}", &number.to_string());
    let writer = cgroup.start(&script, &setup::directory("tenants")?)?;
    Ok(KillOnDrop(writer))
}
