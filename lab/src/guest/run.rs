//! The state of a run, and its phases.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use justitia_share::num::to_f64;

use super::agent::{Agent, AgentMode};
use super::background::Background;
use super::cgroup::Cgroup;
use super::counted::{Counted, MeanPages};
use super::disk::ThrottledDisk;
use super::host::RequestContext;
use super::job::{Job, Parameters, StartBarrier, Target};
use super::machine::MachineCounters;
use super::recorder::Recorder;
use super::setup::{self, Tenant};
use super::split_sampler::{self, SplitStats};
use super::window::{Snapshot, Window};
use crate::experiment::{AgentChange, MeasurePhase, OUTSIDER, Phase, RunPhase, Workload};
use crate::protocol::{Measurements, RunRequest};

/// A run on its way.
pub(super) struct Run<'a> {
    request: &'a RunRequest,
    tenants: &'a [Tenant],
    outsider: (Cgroup, PathBuf),
    /// Start barriers so far: each has a number of its own.
    barriers: usize,
    disk: ThrottledDisk<'a>,
    background: Background,
    /// The weights now, by tenant.
    weights: BTreeMap<String, u64>,
    split: SplitStats,
    timeline_begin: Option<Instant>,
    recorder: Recorder,
    /// Where one runs.
    agent: Option<Agent>,
}

impl<'a> Run<'a> {
    /// Before its first phase.
    pub(super) fn new(
        request: &'a RunRequest,
        context: &'a RequestContext,
        tenants: &'a [Tenant],
        agent: Option<Agent>,
    ) -> Result<Self> {
        Ok(Self {
            request,
            tenants,
            outsider: (Cgroup::root(), setup::directory(OUTSIDER)?),
            barriers: 0,
            disk: ThrottledDisk::new(context, request.experiment.disk.throttle()),
            background: Background::default(),
            weights: tenants.iter().map(|t| (t.name.clone(), t.weight)).collect(),
            split: SplitStats::default(),
            timeline_begin: None,
            recorder: Recorder::default(),
            agent,
        })
    }

    /// Where the timeline is worth drawing from: the first phase whose split is sampled.
    pub(super) fn timeline_begin(&self) -> Option<Instant> {
        self.timeline_begin
    }

    /// An error if a job in the background has failed, or the agent has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        self.background.check()?;
        self.agent.as_mut().map_or(Ok(()), Agent::check)
    }

    /// Ends all that runs in tenants, but not the agent.
    pub(super) fn end(mut self) -> Option<Agent> {
        self.agent.take()
    }

    /// What the phases so far have recorded.
    pub(super) fn measurements(&mut self) -> Measurements {
        self.recorder.finish(self.tenants)
    }

    /// Starts the tenants' background workloads.
    pub(super) fn start_background(&mut self) -> Result<()> {
        let barrier = self.barrier();
        for tenant in self.tenants {
            if let Some(workload) = &tenant.background {
                let workload = self.workload(workload)?;
                let parameters = self.parameters(None, 0);
                let job = Job::start(workload, &tenant.target(), &parameters, &barrier)?;
                self.background.add(vec![job]);
            }
        }
        barrier.release(&mut [], Duration::ZERO)?;
        Ok(())
    }

    /// Carries out a phase.
    pub(super) fn phase(&mut self, phase: &Phase) -> Result<()> {
        match phase {
            Phase::Run(run) => self.run(run),
            Phase::Sync => self.disk.sync(),
            Phase::Record(record) => self.record_pages(&record.key),
            Phase::Wait(wait) => {
                std::thread::sleep(Duration::from_secs(wait.seconds));
                Ok(())
            }
            Phase::Sample(sample) => self.sample_split(sample.seconds, sample.key.as_deref()),
            Phase::Measure(measure) => self.measure(measure),
            Phase::Stop(stop) => self.background.stop(&stop.tenants, self.tenants),
            Phase::Renew(renew) => self.renew(&renew.tenants),
            Phase::Weights(weights) => self.set_weights(&weights.to),
            Phase::Disk(disk) => self.set_disk_speed(disk.bytes_per_second.0),
        }
    }

    fn run(&mut self, run: &RunPhase) -> Result<()> {
        self.disk.throttle(run.throttle)?;
        let timeout = Duration::from_secs(run.timeout);
        let (mut jobs, barrier) = self.start(run)?;
        if run.background {
            barrier.release(&mut jobs, timeout)?;
            self.background.add(jobs);
            return Ok(());
        }
        self.finish(run, &mut jobs, &barrier, timeout)
    }

    /// Starts a workload in each of its tenants, all waiting at one barrier.
    fn start(&mut self, run: &RunPhase) -> Result<(Vec<Job>, StartBarrier)> {
        let barrier = self.barrier();
        let parameters = self.parameters(run.seconds, run.ramp);
        let workload = self.workload(&run.workload)?;
        let mut jobs = Vec::new();
        for tenant in self.tenants.iter().filter(|t| run.includes(&t.name)) {
            let target = tenant.target();
            jobs.push(Job::start(workload, &target, &parameters, &barrier)?);
        }
        if run.includes_outsider() {
            let (cgroup, dir) = &self.outsider;
            let target = Target {
                name: OUTSIDER,
                weight: 100,
                variables: &BTreeMap::new(),
                cgroup,
                dir,
            };
            jobs.push(Job::start(workload, &target, &parameters, &barrier)?);
        }
        Ok((jobs, barrier))
    }

    /// Runs jobs to their end.
    fn finish(
        &mut self,
        run: &RunPhase,
        jobs: &mut [Job],
        barrier: &StartBarrier,
        timeout: Duration,
    ) -> Result<()> {
        let mut before = self.snapshot()?;
        let begin = barrier.release(jobs, timeout)?;
        if run.ramp > 0 {
            std::thread::sleep(Duration::from_secs(run.ramp));
            before = self.snapshot()?;
        }
        let timeout = timeout + Duration::from_secs(run.seconds.unwrap_or(0) + run.ramp);
        // One window for all: a workload that is throttled starts and ends late.
        let mut after = None;
        if let (true, Some(seconds)) = (run.measured, run.seconds) {
            let end = Duration::from_secs(run.ramp + seconds);
            std::thread::sleep(end.saturating_sub(begin.elapsed()));
            after = Some(self.snapshot()?);
        }
        let mut reports = Vec::new();
        for job in jobs {
            let report = job.finish(timeout.saturating_sub(begin.elapsed()))?;
            reports.push((job.tenant().to_owned(), report));
        }
        if !run.measured {
            return Ok(());
        }
        let elapsed = || begin.elapsed().as_secs_f64();
        let seconds = run.seconds.map_or_else(elapsed, to_f64);
        let after = after.map_or_else(|| self.snapshot(), Ok)?;
        let window = Window {
            before: &before,
            after: &after,
            seconds,
            throttle: self.disk.speed(),
        };
        let background = self.background.tenants();
        let key = run.key.as_deref();
        self.recorder.window(&window, &reports, background, key);
        Ok(())
    }

    fn renew(&mut self, names: &[String]) -> Result<()> {
        for tenant in self.tenants.iter().filter(|t| names.contains(&t.name)) {
            self.background.renew(tenant)?;
        }
        Ok(())
    }

    /// Measures what runs in the background by the kernel's counters.
    fn measure(&mut self, phase: &MeasurePhase) -> Result<()> {
        self.disk.throttle(true)?;
        let before = Counted::now(self.tenants, &self.background)?;
        let begin = Instant::now();
        self.change_agent(phase.agent)?;
        let mut pages = MeanPages::default();
        while begin.elapsed() < Duration::from_secs(phase.seconds) {
            pages.sample(self.tenants)?;
            self.check()?;
            std::thread::sleep(Duration::from_secs(1));
        }
        let after = Counted::now(self.tenants, &self.background)?;
        let window = after.since(&before, begin.elapsed());
        for tenant in self.tenants {
            let mut values = window.tenant(&tenant.name);
            values.extend(pages.mean(&tenant.name));
            let swapped = to_f64(tenant.cgroup.swapped());
            values.push(("swapped".to_owned(), swapped));
            self.recorder.tenant(&tenant.name, values);
        }
        self.recorder.whole(window.whole());
        Ok(())
    }

    fn change_agent(&mut self, change: Option<AgentChange>) -> Result<()> {
        let mode = AgentMode::from(&self.request.configuration);
        if change.is_none() || mode == AgentMode::Observe {
            return Ok(());
        }
        // Only a restart finds one.
        if let Some(agent) = self.agent.take() {
            agent.stop()?;
        }
        self.agent = Some(Agent::spawn(mode)?);
        Ok(())
    }

    fn record_pages(&mut self, key: &str) -> Result<()> {
        for tenant in self.tenants {
            let pages = to_f64(tenant.cgroup.file_pages()?);
            self.recorder
                .tenant(&tenant.name, [(key.to_owned(), pages)]);
        }
        Ok(())
    }

    fn sample_split(&mut self, seconds: u64, key: Option<&str>) -> Result<()> {
        self.timeline_begin.get_or_insert_with(Instant::now);
        let weight = |tenant: &Tenant| match self.weights.get(&tenant.name) {
            Some(weight) if self.background.runs_in(&tenant.name) => *weight,
            _ => 0,
        };
        let weights = self.tenants.iter().map(weight).collect();
        let (before, agent) = (self.split.final_total(), self.agent_process());
        let machine = MachineCounters::now(agent)?;
        let interval = split_sampler::sample(self.tenants, weights, before, seconds)?;
        let machine = MachineCounters::now(agent)?.since(machine);
        self.recorder.whole(machine.values(to_f64(seconds)));
        self.split.add(&interval);
        for (tenant, bandwidth) in self.tenants.iter().zip(self.split.bandwidth()) {
            self.recorder
                .tenant(&tenant.name, [("bandwidth".to_owned(), bandwidth)]);
        }
        self.recorder.whole(self.split.whole());
        if let Some(key) = key {
            self.recorder.whole(split_sampler::settling(key, &interval));
        }
        Ok(())
    }

    fn set_weights(&mut self, to: &BTreeMap<String, u64>) -> Result<()> {
        for tenant in self.tenants {
            if let Some(weight) = to.get(&tenant.name) {
                tenant.cgroup.set_weight(*weight)?;
                self.weights.insert(tenant.name.clone(), *weight);
            }
        }
        Ok(())
    }

    fn set_disk_speed(&mut self, bytes_per_second: u64) -> Result<()> {
        let before = self.disk.set_bytes_per_second(bytes_per_second)?;
        self.split.expect(bytes_per_second, before);
        Ok(())
    }

    fn snapshot(&self) -> Result<Snapshot> {
        Snapshot::take(
            self.tenants,
            self.request.experiment.probes,
            self.agent_process(),
        )
    }

    fn agent_process(&self) -> Option<u32> {
        self.agent.as_ref().map(Agent::pid)
    }

    fn workload(&self, name: &str) -> Result<&'a Workload> {
        let request: &'a RunRequest = self.request;
        request
            .experiment
            .workload
            .get(name)
            .with_context(|| format!("expected a workload named {name:?}"))
    }

    const fn parameters(&self, seconds: Option<u64>, ramp: u64) -> Parameters {
        Parameters {
            seconds,
            ramp,
            seed: self.request.seed,
        }
    }

    fn barrier(&mut self) -> StartBarrier {
        self.barriers += 1;
        StartBarrier::new(self.barriers)
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
