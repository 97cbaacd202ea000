//! Decides when to watch shared files, and passes the chosen ones to the worker.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use justitia_api::{Action, RechargeGain, RechargeReason, RechargeResult, Rule};
use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::file::FileId;

use super::job::{JobResult, MAX_JOB, NO_CACHESTAT, RechargeJob, RechargeWorker, has_cachestat};
use super::plan::{RechargeIntent, plan_recharge};
use crate::config::Config;
use crate::model::{Key, Snapshot};
use crate::monitor::{AppIoMonitor, Monitor};
use crate::page_cache::Entitlements;
use crate::status::decision_log::Decided;

/// How long the probes watch shared files in each period.
pub(super) const WATCH: Duration = Duration::from_secs(5);
/// The most files that are considered after a watch.
const MAX_FILES: usize = 64;

/// Recharging on this machine.
#[derive(Debug)]
pub struct RechargeController {
    /// The period; `None` if it is off, or cannot work here.
    period: Option<Duration>,
    /// Whether it is switched on.
    configured: bool,
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
            configured: config.recharge.enabled,
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

    /// Adopts `config`. Queued jobs are still done.
    pub fn reconfigure(&mut self, config: &Config, app_io: &mut AppIoMonitor, acts: bool) {
        let (was, period) = (self.configured, config.recharge.interval);
        self.configured = config.recharge.enabled;
        match (was, self.configured) {
            (true, true) => self.period = self.period.map(|_| period),
            (true, false) => {
                self.period = None;
                self.limitations.clear();
                if std::mem::take(&mut self.watching) {
                    // If the probe cannot be detached, the next watch reports it.
                    let _ = app_io.watch_shared_files(false);
                }
            }
            (false, true) if self.worker.is_some() => self.period = Some(period),
            (false, true) => *self = Self::open(config, self.root, acts),
            (false, false) => {}
        }
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

    /// One tick: takes the results of jobs, begins or ends a watch, queues jobs. Returns the decisions.
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

    /// Queues jobs for the files with the largest gain. Without a worker it only returns the decisions.
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

    /// Queues the job of one intent. Without a worker it returns the decision.
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

// Derives decisions from a job's result, and the time when its file may be tried again.

/// The pause of a file after a success, or after a job that did nothing.
pub(super) const RETRY_AFTER: Duration = Duration::from_secs(600);
/// The pause of a file that was read again without the intended effect.
const RETRY_AFTER_FAILURE: Duration = Duration::from_secs(3600);

/// A file that was tried.
#[derive(Debug)]
pub(super) struct Attempt {
    /// The file is not tried again before this time.
    pub(super) until: Instant,
    /// Where in the file the next job begins, bytes.
    pub(super) next: u64,
}

impl Attempt {
    pub(super) const fn new(until: Instant, next: u64) -> Self {
        Self { until, next }
    }

    /// Whether it must still be remembered.
    pub(super) fn is_needed(&self, now: Instant) -> bool {
        self.until > now || self.next > 0
    }
}

/// The decisions that follow from a result, and the time when its file may be tried again.
pub(super) fn evaluate(
    intent: &RechargeIntent,
    result: Result<JobResult, String>,
    now: Instant,
) -> (Vec<Decided>, Attempt) {
    let (owner, charged) = (Key::Cgroup(intent.owner), Key::Cgroup(intent.charged));
    let done = match result {
        Ok(done) => done,
        Err(why) => {
            tracing::info!(file = %intent.file, why, "a shared file was not recharged");
            let failed = Some(RechargeResult::Failed { error: why });
            let reason = reason(&intent.file.to_string(), Some(intent.reason), failed);
            let decided = Decided::new(owner, Action::RechargeFailed, reason);
            return (vec![decided], Attempt::new(now + RETRY_AFTER, 0));
        }
    };
    let name = if done.name.is_empty() {
        intent.file.to_string()
    } else {
        done.name.clone()
    };
    let result = RechargeResult::Done {
        read: done.read,
        skipped: done.skipped,
        owner_gained: done.owner_gained,
        charged_lost: done.charged_lost,
        stopped: done.stopped.clone(),
    };
    tracing::info!(file = name, owner = intent.owner.0, %result, "recharged");
    let why = |gain| reason(&name, gain, Some(result.clone()));
    if !done.is_success() {
        let decided = Decided::new(owner, Action::RechargeFailed, why(Some(intent.reason)));
        let pause = if done.read > 0 {
            RETRY_AFTER_FAILURE
        } else {
            RETRY_AFTER
        };
        return (vec![decided], Attempt::new(now + pause, 0));
    }
    let bytes = done.read;
    let decided = vec![
        Decided::new(
            owner,
            Action::TakeCharge { bytes },
            why(Some(intent.reason)),
        ),
        Decided::new(charged, Action::LoseCharge { bytes }, why(None)),
    ];
    // The remainder of a large file follows after the next watch.
    let pause = if done.next > 0 {
        Duration::ZERO
    } else {
        RETRY_AFTER
    };
    (decided, Attempt::new(now + pause, done.next))
}

/// The reason of a recharge of `file`.
pub(super) fn reason(
    file: &str,
    gain: Option<RechargeGain>,
    result: Option<RechargeResult>,
) -> Rule {
    Rule::Recharge(RechargeReason {
        file: file.to_owned(),
        gain,
        result,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use justitia_kernel::cgroup::CgroupId;
    use justitia_kernel::file::FileId;

    fn intent() -> RechargeIntent {
        RechargeIntent {
            file: FileId {
                device: 8 << 20,
                inode: 7,
                generation: 1,
            },
            owner: CgroupId(2),
            charged: CgroupId(3),
            cached: 8 << 20,
            reason: RechargeGain {
                owner_share: 0.8,
                charged_share: 0.1,
                used: 8 << 20,
                exposed: 0.5,
                exposed_after: 0.0,
                gain: 64 << 20,
                cost: 8 << 20,
                horizon: 300,
            },
        }
    }

    fn done(read: u64, owner_gained: u64, next: u64) -> JobResult {
        JobResult {
            name: "/layers/lib.so".to_owned(),
            dropped: read,
            read,
            owner_gained,
            next,
            ..JobResult::default()
        }
    }

    #[test]
    fn the_result_decides_the_events_and_when_the_file_is_tried_again() {
        let now = Instant::now();
        let told = |owner_gained| {
            let (decided, attempt) = evaluate(&intent(), owner_gained, now);
            let actions: Vec<Action> = decided.into_iter().map(|e| e.action).collect();
            (actions, attempt.until - now, attempt.next)
        };
        let moved = 8 << 20;
        let handed_over = || {
            vec![
                Action::TakeCharge { bytes: moved },
                Action::LoseCharge { bytes: moved },
            ]
        };
        assert_eq!(
            told(Ok(done(moved, moved, 0))),
            (handed_over(), RETRY_AFTER, 0)
        );
        assert_eq!(
            told(Ok(done(moved, moved, 4096))),
            (handed_over(), Duration::ZERO, 4096)
        );
        let failed = vec![Action::RechargeFailed];
        assert_eq!(
            told(Ok(done(moved, 0, 0))),
            (failed.clone(), RETRY_AFTER_FAILURE, 0)
        );
        assert_eq!(told(Ok(done(0, 0, 0))), (failed.clone(), RETRY_AFTER, 0));
        assert_eq!(told(Err("dirty".to_owned())), (failed, RETRY_AFTER, 0));
    }

    #[test]
    fn it_is_switched_on_and_off_while_the_agent_runs() {
        let config = |enabled, seconds| {
            let mut config = Config::default();
            config.recharge.enabled = enabled;
            config.recharge.interval = Duration::from_secs(seconds);
            config
        };
        let mut app_io = AppIoMonitor::unavailable("a test");
        let mut controller = RechargeController::open(&config(false, 60), CgroupId(1), false);
        let mut period = |enabled, seconds| {
            controller.reconfigure(&config(enabled, seconds), &mut app_io, false);
            controller.period.map(|period| period.as_secs())
        };
        let on = |seconds| has_cachestat().then_some(seconds);
        assert_eq!(period(false, 60), None);
        assert_eq!(period(true, 60), on(60));
        assert_eq!(period(true, 30), on(30));
        assert_eq!(period(false, 30), None);
        assert_eq!(period(true, 90), on(90));
    }
}
