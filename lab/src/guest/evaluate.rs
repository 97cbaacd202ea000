//! One run of an experiment: one configuration, from the empty disk to the numbers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use justitia_share::num::to_f64;

use super::agent::{Agent, Role};
use super::cgroup::{Cgroup, Transfer, meminfo};
use super::contention;
use super::probes::{self, Seen};
use super::sampler::Sampler;
use super::scale;
use super::serve::Caller;
use super::setup::{self, Tenant};
use super::watch::{Watched, kept, watch};
use super::work::{Gate, Place, Report, Words, Work};
use crate::experiment::{OUTSIDER, Phase, Workload};
use crate::report::schema::TenantValues;
use crate::vm::Throttle;
use crate::wire::{Measured, Plan};

/// Dirty bytes that count as none.
const CLEAN: u64 = 4 << 20;

/// Runs a plan.
pub fn evaluate(plan: &Plan, caller: &Caller) -> Result<Measured> {
    let mglru = setup::mglru(plan.mglru)?;
    if let Some(contention) = &plan.experiment.contention {
        let mut measured = contention::measure(contention, plan, caller)?;
        measured.mglru = mglru;
        return Ok(measured);
    }
    if let Some(scale) = &plan.experiment.scale {
        let mut measured = scale::measure(scale, plan, caller)?;
        measured.mglru = mglru;
        return Ok(measured);
    }
    let tenants = setup::set_up(&plan.experiment, &plan.configuration)?;
    let mut agent = Agent::start(Role::from(&plan.configuration))?;
    let begin = Instant::now();
    let named = tenants.iter().map(|t| (t.name.clone(), t.cgroup.clone()));
    let sampler = Sampler::start(named, begin);
    let mut run = Run {
        plan,
        caller,
        tenants: &tenants,
        outsider: (Cgroup::root(), setup::directory(OUTSIDER)?),
        gates: 0,
        speed: plan.experiment.disk.throttle(),
        disk: None,
        background: Vec::new(),
        weights: tenants.iter().map(|t| (t.name.clone(), t.weight)).collect(),
        watched: Watched::default(),
        shown_from: None,
        values: BTreeMap::new(),
        whole: BTreeMap::new(),
    };
    run.start_neighbours()?;
    for phase in &plan.experiment.phase {
        caller.progress(phase.to_string())?;
        run.phase(phase).with_context(|| format!("while {phase}"))?;
        run.background.iter_mut().try_for_each(Work::check)?;
        agent.check()?;
    }
    let values = std::mem::take(&mut run.values);
    let whole = std::mem::take(&mut run.whole);
    let shown_from = run.shown_from.unwrap_or(begin);
    // While the tenants still run.
    let curves = probes::curves()?;
    drop(run);
    let timeline = sampler.finish(shown_from)?;
    agent.stop()?;
    Ok(Measured {
        mglru,
        tenants: tenants
            .iter()
            .map(|tenant| TenantValues {
                name: tenant.name.clone(),
                values: values.get(&tenant.name).cloned().unwrap_or_default(),
            })
            .collect(),
        values: whole,
        timeline,
        curves,
    })
}

/// A run on its way.
struct Run<'a> {
    plan: &'a Plan,
    caller: &'a Caller,
    tenants: &'a [Tenant],
    outsider: (Cgroup, PathBuf),
    gates: usize,
    /// The disk's where it is throttled, and what it is now.
    speed: Throttle,
    disk: Option<Throttle>,
    background: Vec<Work>,
    /// What holds now, by tenant.
    weights: BTreeMap<String, u64>,
    watched: Watched,
    /// What goes before the first phase that is watched is not worth drawing.
    shown_from: Option<Instant>,
    /// By tenant, by metric.
    values: BTreeMap<String, BTreeMap<String, f64>>,
    whole: BTreeMap<String, f64>,
}

impl Run<'_> {
    fn phase(&mut self, phase: &Phase) -> Result<()> {
        match phase {
            Phase::Run {
                workload,
                tenants,
                seconds,
                ramp,
                throttle,
                measured,
                background,
                key,
                within,
            } => {
                self.throttle(*throttle)?;
                let who = Who {
                    tenants,
                    seconds: *seconds,
                    ramp: *ramp,
                };
                if *background {
                    let (mut works, gate) = self.start(workload, &who)?;
                    open(&mut works, &gate, Duration::from_secs(*within))?;
                    self.background.append(&mut works);
                    return Ok(());
                }
                let together = self.run(workload, &who, *measured, Duration::from_secs(*within))?;
                if let (Some(key), Some(together)) = (key, together) {
                    self.whole.insert(key.clone(), together);
                }
                Ok(())
            }
            Phase::Settle => self.settle(),
            Phase::Record { key } => self.record(key),
            Phase::Wait { seconds } => {
                std::thread::sleep(Duration::from_secs(*seconds));
                Ok(())
            }
            Phase::Watch { seconds, key } => self.watch(*seconds, key.as_deref()),
            Phase::Stop { tenants } => self.stop(tenants),
            Phase::Weights { to } => {
                for tenant in self.tenants {
                    if let Some(weight) = to.get(&tenant.name) {
                        tenant.cgroup.set_weight(*weight)?;
                        self.weights.insert(tenant.name.clone(), *weight);
                    }
                }
                Ok(())
            }
            Phase::Disk { bytes_per_second } => {
                let before = self.speed.bytes_per_second;
                self.speed.bytes_per_second = bytes_per_second.0;
                self.throttle(true)?;
                self.watched.expect(bytes_per_second.0, before);
                Ok(())
            }
        }
    }

    fn throttle(&mut self, on: bool) -> Result<()> {
        let speed = if on { self.speed } else { Throttle::default() };
        if self.disk != Some(speed) {
            self.caller.disk(speed)?;
            self.disk = Some(speed);
        }
        Ok(())
    }

    fn start_neighbours(&mut self) -> Result<()> {
        let gate = self.gate();
        for tenant in self.tenants {
            if let Some(beside) = &tenant.beside {
                let work = Work::start(
                    self.workload(beside)?,
                    &place(tenant),
                    &self.words(None, 0),
                    &gate,
                )?;
                self.background.push(work);
            }
        }
        gate.open()
    }

    fn workload(&self, name: &str) -> Result<&'_ Workload> {
        self.plan
            .experiment
            .workload
            .get(name)
            .with_context(|| format!("expected a workload named {name:?}"))
    }

    const fn words(&self, seconds: Option<u64>, ramp: u64) -> Words {
        Words {
            seconds,
            ramp,
            seed: self.plan.seed,
        }
    }

    fn gate(&mut self) -> Gate {
        self.gates += 1;
        Gate::new(self.gates)
    }

    /// Starts a workload in each of its places, all waiting at one gate.
    fn start(&mut self, name: &str, who: &Who<'_>) -> Result<(Vec<Work>, Gate)> {
        let gate = self.gate();
        let words = self.words(who.seconds, who.ramp);
        let workload = self.workload(name)?;
        let mut works = Vec::new();
        for tenant in self.tenants.iter().filter(|tenant| who.has(&tenant.name)) {
            works.push(Work::start(workload, &place(tenant), &words, &gate)?);
        }
        if who.tenants.iter().any(|name| name == OUTSIDER) {
            let (cgroup, dir) = &self.outsider;
            let place = Place {
                name: OUTSIDER,
                weight: 100,
                words: &BTreeMap::new(),
                cgroup,
                dir,
            };
            works.push(Work::start(workload, &place, &words, &gate)?);
        }
        Ok((works, gate))
    }

    /// Runs a workload to its end; everybody's bandwidth together, if it was measured.
    fn run(
        &mut self,
        name: &str,
        who: &Who<'_>,
        measured: bool,
        within: Duration,
    ) -> Result<Option<f64>> {
        let (mut works, gate) = self.start(name, who)?;
        let mut before = self.look()?;
        let begin = open(&mut works, &gate, within)?;
        if who.ramp > 0 {
            std::thread::sleep(Duration::from_secs(who.ramp));
            before = self.look()?;
        }
        let limit = within + Duration::from_secs(who.seconds.unwrap_or(0) + who.ramp);
        // One window for all: a workload that is held back starts and ends late.
        let mut after = None;
        if let (true, Some(seconds)) = (measured, who.seconds) {
            let end = Duration::from_secs(who.ramp + seconds);
            std::thread::sleep(end.saturating_sub(begin.elapsed()));
            after = Some(self.look()?);
        }
        let mut reports = Vec::new();
        for work in &mut works {
            let report = work.finish(limit.saturating_sub(begin.elapsed()))?;
            reports.push((work.who().to_owned(), report));
        }
        if !measured {
            return Ok(None);
        }
        let seconds = who
            .seconds
            .map_or_else(|| begin.elapsed().as_secs_f64(), to_f64);
        let after = after.map_or_else(|| self.look(), Ok)?;
        self.keep(&reports, &before, &after, seconds);
        let values = reports
            .iter()
            .filter_map(|(name, _)| self.values.get(name)?.get("bandwidth"));
        Ok(Some(values.sum()))
    }

    fn watch(&mut self, seconds: u64, key: Option<&str>) -> Result<()> {
        self.shown_from.get_or_insert_with(Instant::now);
        let running = |name: &str| self.background.iter().any(|work| work.who() == name);
        let weights = self
            .tenants
            .iter()
            .map(|tenant| match self.weights.get(&tenant.name) {
                Some(weight) if running(&tenant.name) => *weight,
                _ => 0,
            })
            .collect();
        let stretch = watch(self.tenants, weights, self.watched.late(), seconds)?;
        self.watched.add(&stretch);
        for (tenant, bandwidth) in self.tenants.iter().zip(self.watched.bandwidth()) {
            let values = self.values.entry(tenant.name.clone()).or_default();
            values.insert("bandwidth".to_owned(), bandwidth);
        }
        self.whole.extend(self.watched.whole());
        if let Some(key) = key {
            self.whole.extend(kept(key, &stretch));
        }
        Ok(())
    }

    fn look(&self) -> Result<Look> {
        let device = |tenant: &Tenant| Ok((tenant.name.clone(), tenant.cgroup.device()?));
        let application = |tenant: &Tenant| Ok((tenant.name.clone(), tenant.cgroup.application()?));
        Ok(Look {
            device: self.tenants.iter().map(device).collect::<Result<_>>()?,
            application: self
                .tenants
                .iter()
                .map(application)
                .collect::<Result<_>>()?,
            seen: Seen::now()?,
        })
    }

    /// Keeps what was measured in a window.
    fn keep(&mut self, reports: &[(String, Report)], before: &Look, after: &Look, seconds: f64) {
        // Who runs in the background reports later: what was counted of it meanwhile.
        for work in &self.background {
            let name = work.who();
            let since = after.application(name).since(before.application(name));
            let device = after.device(name).since(before.device(name));
            let values = self.values.entry(name.to_owned()).or_default();
            let bytes = after.seen.bytes(name, &before.seen);
            let bytes = bytes.unwrap_or_else(|| since.total());
            values.insert("bandwidth".to_owned(), to_f64(bytes) / seconds);
            values.insert("device".to_owned(), to_f64(device.total()) / seconds);
        }
        for (name, report) in reports {
            let device = after.device(name).since(before.device(name));
            let values = self.values.entry(name.clone()).or_default();
            let mut keep = |key: &str, value: f64| values.insert(key.to_owned(), value);
            // The workload's own word where no probes run.
            let bytes = after.seen.bytes(name, &before.seen);
            let bytes = bytes.unwrap_or(report.read + report.written);
            keep("bandwidth", to_f64(bytes) / seconds);
            keep("operations", to_f64(report.operations) / seconds);
            keep("device", to_f64(device.total()) / seconds);
            for (operation, latency) in &report.latencies {
                for (of, value) in [("p50", latency.p50), ("p99", latency.p99)] {
                    let key = format!("{operation}_{of}");
                    keep(&key, value);
                    self.whole.insert(format!("{name}_{key}"), value);
                }
            }
            if let Some(ratio) = after.seen.hit_ratio(name, &before.seen) {
                keep("hit_ratio", ratio);
            }
        }
        if let Some(ratio) = after.seen.overall_hit_ratio(&before.seen) {
            self.whole.insert("overall_hit_ratio".to_owned(), ratio);
        }
    }

    fn settle(&mut self) -> Result<()> {
        self.throttle(false)?;
        let begin = Instant::now();
        loop {
            let status = Command::new("sync").status().context("starting sync")?;
            ensure!(status.success(), "sync: {status}");
            let dirty = meminfo("Dirty:")? + meminfo("Writeback:")?;
            if dirty <= CLEAN {
                return Ok(());
            }
            if begin.elapsed() > Duration::from_secs(60) {
                bail!(
                    "expected everything dirty to be written within 60 s, {dirty} bytes are left"
                );
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn record(&mut self, key: &str) -> Result<()> {
        for tenant in self.tenants {
            let pages = to_f64(tenant.cgroup.file_pages()?);
            let values = self.values.entry(tenant.name.clone()).or_default();
            values.insert(key.to_owned(), pages);
        }
        Ok(())
    }

    fn stop(&mut self, names: &[String]) -> Result<()> {
        self.background
            .retain(|work| !names.iter().any(|name| name == work.who()));
        for tenant in self
            .tenants
            .iter()
            .filter(|tenant| names.contains(&tenant.name))
        {
            tenant.cgroup.kill()?;
            tenant.cgroup.inhabit()?;
        }
        Ok(())
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        for tenant in self.tenants {
            // The guest ends soon in any case.
            let _ = tenant.cgroup.kill();
        }
    }
}

/// The tenants at one moment.
struct Look {
    device: BTreeMap<String, Transfer>,
    application: BTreeMap<String, Transfer>,
    seen: Seen,
}

impl Look {
    fn device(&self, tenant: &str) -> Transfer {
        self.device.get(tenant).copied().unwrap_or_default()
    }

    fn application(&self, tenant: &str) -> Transfer {
        self.application.get(tenant).copied().unwrap_or_default()
    }
}

/// Where a workload runs, and for how long.
struct Who<'a> {
    tenants: &'a [String],
    seconds: Option<u64>,
    ramp: u64,
}

impl Who<'_> {
    fn has(&self, tenant: &str) -> bool {
        self.tenants.is_empty() || self.tenants.iter().any(|name| name == tenant)
    }
}

fn place(tenant: &Tenant) -> Place<'_> {
    Place {
        name: &tenant.name,
        weight: tenant.weight,
        words: &tenant.words,
        cgroup: &tenant.cgroup,
        dir: Path::new(&tenant.dir),
    }
}

/// Starts everybody at once, when everybody is ready. Returns when that was.
fn open(works: &mut [Work], gate: &Gate, within: Duration) -> Result<Instant> {
    for work in works {
        work.wait_ready(within)?;
    }
    gate.open()?;
    Ok(Instant::now())
}
