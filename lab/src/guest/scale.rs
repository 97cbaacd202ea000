//! The agent's own cost as the tenants grow in number.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use justitia_share::num::to_f64;

use super::agent::{Agent, Role};
use super::cgroup::{Cgroup, field};
use super::serve::Caller;
use super::setup;
use crate::experiment::{OUTSIDER, Scale, scale_name};
use crate::report::schema::TenantValues;
use crate::vm::Throttle;
use crate::wire::{Measured, Plan};

/// Reads and writes through the page cache, outside any tenant, until killed.
const PRESSURE: &str = "while :; do dd if=/dev/zero of=dummy bs=1M count=6000 conv=notrunc; cat dummy >/dev/null; done";

/// Writes past the page cache, in a file of its own, until killed.
const WRITER: &str =
    "while :; do dd if=/dev/zero of=w{number} bs=64k count=512 oflag=direct conv=notrunc; done";
/// So many tenants contend for the disk, if there are as many. Their weights differ.
const WRITERS: u32 = 4;

/// Measures it for every number of tenants.
pub fn measure(scale: &Scale, plan: &Plan, caller: &Caller) -> Result<Measured> {
    setup::set_up(&plan.experiment, &plan.configuration)?;
    caller.disk(Throttle::default())?;
    let window = Duration::from_secs(scale.seconds);
    let mut made = 0;
    let mut tenants = Vec::new();
    for count in &scale.tenants {
        caller.progress(format!("{count} tenants: starting"))?;
        make(made, *count)?;
        made = *count;
        let mut agent = Agent::start(Role::from(&plan.configuration))?;
        // It meets all tenants at once; that is not what is measured.
        std::thread::sleep(Duration::from_secs(3));
        caller.progress(format!("{count} tenants: quiet"))?;
        let quiet = cpu(&mut agent, window)?.all;
        caller.progress(format!("{count} tenants: some contend for the disk"))?;
        caller.disk(plan.experiment.disk.throttle())?;
        let writers = (0..WRITERS.min(*count))
            .map(writer)
            .collect::<Result<Vec<_>>>()?;
        std::thread::sleep(Duration::from_secs(5));
        let contended = cpu(&mut agent, window)?.all;
        drop(writers);
        caller.disk(Throttle::default())?;
        caller.progress(format!("{count} tenants: under pressure"))?;
        let pressure = Busy::start(PRESSURE, &setup::directory(OUTSIDER)?)?;
        std::thread::sleep(Duration::from_secs(5));
        let pressed = cpu(&mut agent, window)?;
        let memory = memory(agent.pid())?;
        drop(pressure);
        agent.stop()?;
        let values = [
            ("agent_cpu", quiet),
            ("agent_cpu_contended", contended),
            ("agent_cpu_pressure", pressed.all),
            ("agent_loop_pressure", pressed.looping),
            ("agent_memory", memory),
        ];
        tenants.push(TenantValues::new(scale_name(*count), values));
    }
    Ok(Measured {
        tenants,
        ..Measured::default()
    })
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
            let cgroup = Cgroup::create(&format!("t{number}"))?;
            let weight = number % 10 * 100 + 100;
            cgroup.write("io.weight", &format!("default {weight}"))?;
            let script = format!(
                "echo 0 >{} && printf %65536s >f{number} && exec sleep 100000",
                cgroup.procs().display()
            );
            Command::new("sh")
                .args(["-c", &script])
                .current_dir(&dir)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .with_context(|| format!("starting tenant {number}"))?;
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
    let begun = Instant::now();
    for number in from..to {
        let file = dir.join(format!("f{number}"));
        // Its shell is in the tenant by the time that it has written the file.
        while !std::fs::metadata(&file).is_ok_and(|file| file.len() == 65_536) {
            ensure!(
                begun.elapsed() < Duration::from_secs(120),
                "expected tenant {number} to have written {} within 120 s",
                file.display()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

/// A direct writer in a tenant.
fn writer(number: u32) -> Result<Busy> {
    let procs = Cgroup::create(&format!("t{number}"))?.procs();
    let script = WRITER.replace("{number}", &number.to_string());
    let script = format!("echo 0 >{} && {script}", procs.display());
    Busy::start(&script, &setup::directory("tenants")?)
}

/// A shell script that runs until this is dropped.
struct Busy(Child);

impl Busy {
    fn start(script: &str, dir: &Path) -> Result<Self> {
        Command::new("sh")
            .args(["-c", script])
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map(Self)
            .context("starting what keeps the disk busy")
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // Its loop ends with it; what it was running ends soon after.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The processors that the agent uses (1.0 is one of them).
struct Cpu {
    all: f64,
    /// By its main thread, that observes and plans. Others write `memory.reclaim`, where the kernel works for them.
    looping: f64,
}

/// The processors that the agent uses over a window.
fn cpu(agent: &mut Agent, window: Duration) -> Result<Cpu> {
    let (begin, before) = (Instant::now(), on_cpu(agent.pid())?);
    std::thread::sleep(window);
    agent.check()?;
    let after = on_cpu(agent.pid())?;
    let share =
        |n: usize| to_f64(after[n].saturating_sub(before[n])) / 1e9 / begin.elapsed().as_secs_f64();
    Ok(Cpu {
        all: share(0),
        looping: share(1),
    })
}

/// Nanoseconds that a process's threads have run, and its main thread alone.
fn on_cpu(pid: u32) -> Result<[u64; 2]> {
    let tasks = format!("/proc/{pid}/task");
    let main = pid.to_string();
    let mut sums = [0; 2];
    for task in std::fs::read_dir(&tasks).with_context(|| format!("listing {tasks}"))? {
        let task = task?;
        // A thread may have ended: what it ran is lost, as little as it is.
        let stat = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        let ran = stat
            .split_whitespace()
            .next()
            .and_then(|ns| ns.parse::<u64>().ok())
            .unwrap_or(0);
        sums[0] += ran;
        if task.file_name().to_str() == Some(&main) {
            sums[1] += ran;
        }
    }
    Ok(sums)
}

/// The most memory that a process has had resident, in bytes.
fn memory(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/status");
    let status =
        std::fs::read_to_string(Path::new(&path)).with_context(|| format!("reading {path}"))?;
    Ok(to_f64(field(&status, "VmHWM:") << 10))
}
