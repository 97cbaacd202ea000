//! Decides when to watch shared files, and hands the chosen ones to the worker.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use justitia_api::Action;
use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::file::FileId;

use super::evaluate::{Attempt, RETRY_AFTER, evaluate, reason};
use super::job::{MAX_JOB, NO_CACHESTAT, RechargeJob, has_cachestat};
use super::worker::RechargeWorker;
use crate::config::Config;
use crate::enforce::decided::Decided;
use crate::monitor::Monitor;
use crate::plan::{Entitlements, Key, RechargeIntent, Snapshot, plan_recharge};

/// How long the probes watch shared files in each period.
pub(super) const WATCH: Duration = Duration::from_secs(5);
/// At most so many files are considered after that.
const MAX_FILES: usize = 64;

/// Recharging on this machine.
#[derive(Debug)]
pub struct RechargeController {
    /// The period; `None` if it is switched off, or cannot work here.
    period: Option<Duration>,
    root: CgroupId,
    worker: Option<RechargeWorker>,
    /// When the last watch began.
    watch_started: Option<Instant>,
    watching: bool,
    /// Intents whose jobs are queued, in order.
    in_flight: VecDeque<RechargeIntent>,
    attempts: HashMap<FileId, Attempt>,
    limitations: Vec<String>,
}

impl RechargeController {
    /// Recharging as configured. It changes something only if `acts`.
    #[must_use]
    pub fn open(config: &Config, root: CgroupId, acts: bool) -> Self {
        let mut controller = Self {
            period: config.recharge.enabled.then_some(config.recharge.interval),
            root,
            worker: None,
            watch_started: None,
            watching: false,
            in_flight: VecDeque::new(),
            attempts: HashMap::new(),
            limitations: Vec::new(),
        };
        if !config.recharge.enabled {
            return controller;
        }
        if !has_cachestat() {
            controller.disable(NO_CACHESTAT);
        } else if acts {
            match RechargeWorker::start() {
                Ok(worker) => controller.worker = Some(worker),
                Err(error) => controller.disable(&format!("its thread cannot be created: {error}")),
            }
        }
        controller
    }

    fn disable(&mut self, why: &str) {
        self.period = None;
        self.limitations.push(format!("Recharge: {why}"));
    }

    /// Why it does not work here, if so.
    #[must_use]
    pub fn limitations(&self) -> &[String] {
        &self.limitations
    }

    /// One tick: takes the results of jobs, begins or ends a watch, queues jobs. Returns what was done.
    pub fn tick(
        &mut self,
        monitor: &mut Monitor,
        snapshot: &Snapshot,
        entitlements: &Entitlements,
        now: Instant,
    ) -> Vec<Decided> {
        let mut decided = self.take_results(now);
        let Some(period) = self.period else {
            return decided;
        };
        let elapsed = self.watch_started.map(|at| now - at);
        if self.watching {
            let elapsed = elapsed.unwrap_or_default();
            if elapsed >= WATCH {
                decided.extend(self.choose(monitor, snapshot, entitlements, elapsed, now));
                self.watching = false;
                // If the probe cannot be detached, the next watch reports it.
                let _ = monitor.app_io.watch_shared_files(false);
            }
        } else if self.in_flight.is_empty()
            && elapsed.is_none_or(|elapsed| elapsed >= period)
            && !monitor.app_io.is_attaching()
        {
            self.watch_started = Some(now);
            match monitor.app_io.watch_shared_files(true) {
                Ok(()) => self.watching = true,
                Err(why) => self.disable(&why),
            }
        }
        decided
    }

    /// Queues jobs for the files with the largest gain. Without a worker it only returns what would be done.
    fn choose(
        &mut self,
        monitor: &Monitor,
        snapshot: &Snapshot,
        entitlements: &Entitlements,
        watched: Duration,
        now: Instant,
    ) -> Vec<Decided> {
        self.attempts.retain(|_, attempt| attempt.is_needed(now));
        let files = match monitor.app_io.shared_files(MAX_FILES) {
            Ok(files) => files,
            Err(error) => {
                tracing::debug!(error, "the shared files cannot be read from the probes");
                return Vec::new();
            }
        };
        let pauses = |file: FileId| self.attempts.get(&file).is_some_and(|a| a.until > now);
        let seconds = watched.as_secs_f64();
        let intents = plan_recharge(
            snapshot,
            entitlements,
            &files,
            seconds,
            self.root,
            MAX_JOB,
            pauses,
        );
        intents
            .into_iter()
            .filter_map(|intent| self.start(monitor, entitlements, intent, now))
            .collect()
    }

    /// Queues the job of one intent. Without a worker it returns what would be done.
    fn start(
        &mut self,
        monitor: &Monitor,
        entitlements: &Entitlements,
        intent: RechargeIntent,
        now: Instant,
    ) -> Option<Decided> {
        let owner = monitor.cgroups.get(intent.owner)?;
        tracing::debug!(file = %intent.file, owner = intent.owner.0, charged = intent.charged.0, why = %intent.reason, "recharge");
        let Some(worker) = &self.worker else {
            let attempt = Attempt::new(now + RETRY_AFTER, 0);
            self.attempts.insert(intent.file, attempt);
            let key = Key::Cgroup(intent.owner);
            let bytes = intent.cached;
            let reason = reason(&intent.file.to_string(), Some(intent.reason), None);
            return Some(Decided::new(key, Action::TakeCharge { bytes }, reason));
        };
        let charged = monitor.cgroups.get(intent.charged);
        worker.send(RechargeJob {
            file: intent.file,
            owner: owner.cgroup.clone(),
            charged: charged.map(|node| node.cgroup.clone()),
            from: self.attempts.get(&intent.file).map_or(0, |a| a.next),
            free_headroom: entitlements.free_headroom,
        });
        self.in_flight.push_back(intent);
        None
    }

    /// Takes the results of jobs, which come in the order of the jobs.
    fn take_results(&mut self, now: Instant) -> Vec<Decided> {
        let results: Vec<_> = self
            .worker
            .iter()
            .flat_map(RechargeWorker::results)
            .collect();
        let mut decided = Vec::new();
        for result in results {
            if let Some(intent) = self.in_flight.pop_front() {
                let (new, attempt) = evaluate(&intent, result, now);
                self.attempts.insert(intent.file, attempt);
                decided.extend(new);
            }
        }
        decided
    }
}
