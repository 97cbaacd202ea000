//! Page ownership at work: watches for a while which files are used by others than those who are charged for them, has
//! the planner choose one, and has its pages handed over, off the loop.
//!
//! Off unless switched on. One file at a time, and after each look so many as are [`MOST`](job::MOST) together; a look costs every cached read of the machine
//! some tens of nanoseconds a page, and so lasts [`LOOK`] of every period.

mod job;
mod reader;

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use justitia_api::{Action, RechargeGain, RechargeReason, RechargeResult, Rule};
use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::file::{FileId, cachestat};

use super::event::TenantEvent;
use crate::config::Config;
use crate::monitor::Monitor;
use crate::plan::{Entitlements, Key, RechargeIntent, Snapshot, plan_recharge};

use job::{Done, Job, MOST, NO_CACHESTAT, carry_out};

pub use reader::read_for;

/// A look lasts so long.
const LOOK: Duration = Duration::from_secs(5);
/// So many files are considered after a look.
const FILES: usize = 64;
/// A file that was handed over, or for which nothing was tried in vain, is left alone for so long.
const REST: Duration = Duration::from_secs(600);
/// One with which it did not work.
const FAILED: Duration = Duration::from_secs(3600);

/// A file that was tried.
#[derive(Debug)]
struct Tried {
    until: Instant,
    next: u64,
}

/// What the loop hands to the thread that works, and what comes back.
#[derive(Debug)]
struct Worker {
    jobs: Sender<Job>,
    done: Receiver<Result<Done, String>>,
}

/// Ownership on this machine.
#[derive(Debug)]
pub struct Ownership {
    /// How often a look begins; `None` if it is switched off, or cannot work here.
    every: Option<Duration>,
    root: CgroupId,
    worker: Option<Worker>,
    looked: Option<Instant>,
    watching: bool,
    under_way: VecDeque<RechargeIntent>,
    tried: HashMap<FileId, Tried>,
    limits: Vec<String>,
}

impl Ownership {
    /// Ownership as it is configured. It changes something only if `acts`.
    #[must_use]
    pub fn open(config: &Config, root: CgroupId, acts: bool) -> Self {
        let mut ownership = Self {
            every: config.recharge.enabled.then_some(config.recharge.every),
            root,
            worker: None,
            looked: None,
            watching: false,
            under_way: VecDeque::new(),
            tried: HashMap::new(),
            limits: Vec::new(),
        };
        if !config.recharge.enabled {
            return ownership;
        }
        if !tells_dirty() {
            ownership.cannot(NO_CACHESTAT);
        } else if acts {
            match Worker::start() {
                Ok(worker) => ownership.worker = Some(worker),
                Err(error) => ownership.cannot(&format!("no thread for it: {error}")),
            }
        }
        ownership
    }

    fn cannot(&mut self, why: &str) {
        self.every = None;
        self.limits.push(format!("Page ownership: {why}"));
    }

    /// Why it does not work here, if so.
    #[must_use]
    pub fn limits(&self) -> &[String] {
        &self.limits
    }

    /// One turn: begins or ends a look, hands a file over, takes what came of it.
    pub fn turn(
        &mut self,
        monitor: &mut Monitor,
        snapshot: &Snapshot,
        entitlements: &Entitlements,
        now: Instant,
    ) -> Vec<TenantEvent> {
        let mut events = self.take(now);
        let Some(every) = self.every else {
            return events;
        };
        if self.watching {
            let looked = self.looked.map_or(Duration::ZERO, |at| now - at);
            if looked >= LOOK {
                events.extend(self.choose(monitor, snapshot, entitlements, looked, now));
                self.watching = false;
                // That it cannot be detached, the next look would tell.
                let _ = monitor.app_io.watch_shared_files(false);
            }
        } else if self.under_way.is_empty() && self.looked.is_none_or(|at| now - at >= every) {
            self.looked = Some(now);
            match monitor.app_io.watch_shared_files(true) {
                Ok(()) => self.watching = true,
                Err(why) => self.cannot(&why),
            }
        }
        events
    }

    /// After a look: the files with which most is to be gained.
    fn choose(
        &mut self,
        monitor: &Monitor,
        snapshot: &Snapshot,
        entitlements: &Entitlements,
        looked: Duration,
        now: Instant,
    ) -> Vec<TenantEvent> {
        self.tried
            .retain(|_, tried| tried.until > now || tried.next > 0);
        let files = match monitor.app_io.shared_files(FILES) {
            Ok(files) => files,
            Err(error) => {
                tracing::debug!(error, "shared files cannot be read");
                return Vec::new();
            }
        };
        let rests = |file: FileId| self.tried.get(&file).is_some_and(|t| t.until > now);
        let seconds = looked.as_secs_f64();
        let intents = plan_recharge(
            snapshot,
            entitlements,
            &files,
            seconds,
            self.root,
            MOST,
            rests,
        );
        let mut would = Vec::new();
        for intent in intents {
            let Some(node) = monitor.cgroups.get(intent.owner) else {
                continue;
            };
            tracing::debug!(file = %intent.file, owner = intent.owner.0, charged = intent.charged.0, why = %intent.reason, "own");
            let Some(worker) = &self.worker else {
                let until = now + REST;
                self.tried.insert(intent.file, Tried { until, next: 0 });
                let key = Key::Cgroup(intent.owner);
                let bytes = intent.cached;
                let reason = reason(&intent.file.to_string(), Some(intent.reason), None);
                would.push(TenantEvent::new(key, Action::TakeCharge { bytes }, reason));
                continue;
            };
            let charged = monitor.cgroups.get(intent.charged);
            let job = Job {
                file: intent.file,
                owner: node.cgroup.clone(),
                charged: charged.map(|node| node.cgroup.clone()),
                from: self.tried.get(&intent.file).map_or(0, |t| t.next),
                reserve: entitlements.free_headroom,
            };
            // The thread lives as long as we do.
            let _ = worker.jobs.send(job);
            self.under_way.push_back(intent);
        }
        would
    }

    /// Takes what came of jobs.
    fn take(&mut self, now: Instant) -> Vec<TenantEvent> {
        let came: Vec<_> = self
            .worker
            .iter()
            .flat_map(|worker| worker.done.try_iter())
            .collect();
        let mut told = Vec::new();
        // They come in the order in which they went.
        for came in came {
            if let Some(intent) = self.under_way.pop_front() {
                let (events, tried) = judge(&intent, came, now);
                self.tried.insert(intent.file, tried);
                told.extend(events);
            }
        }
        told
    }
}

/// What is to be told of a job, and when its file may be tried again.
fn judge(
    intent: &RechargeIntent,
    came: Result<Done, String>,
    now: Instant,
) -> (Vec<TenantEvent>, Tried) {
    let (owner, charged) = (Key::Cgroup(intent.owner), Key::Cgroup(intent.charged));
    let until = |rest| Tried {
        until: now + rest,
        next: 0,
    };
    let done = match came {
        Ok(done) => done,
        Err(why) => {
            tracing::info!(file = %intent.file, why, "a shared file was not handed over");
            let failed = Some(RechargeResult::Failed { error: why });
            let reason = reason(&intent.file.to_string(), Some(intent.reason), failed);
            let event = TenantEvent::new(owner, Action::RechargeFailed, reason);
            return (vec![event], until(REST));
        }
    };
    let name = if done.name.is_empty() {
        intent.file.to_string()
    } else {
        done.name.clone()
    };
    let result = RechargeResult::Done {
        read: done.read,
        skipped: done.passed,
        owner_gained: done.came,
        charged_lost: done.went,
        stopped: done.stopped.as_ref().map(ToString::to_string),
    };
    tracing::info!(file = name, owner = intent.owner.0, %result, "ownership");
    let why = |gain| reason(&name, gain, Some(result.clone()));
    if !done.worked() {
        let event = TenantEvent::new(owner, Action::RechargeFailed, why(Some(intent.reason)));
        let rest = if done.read > 0 { FAILED } else { REST };
        return (vec![event], until(rest));
    }
    let bytes = done.read;
    let events = vec![
        TenantEvent::new(
            owner,
            Action::TakeCharge { bytes },
            why(Some(intent.reason)),
        ),
        TenantEvent::new(charged, Action::LoseCharge { bytes }, why(None)),
    ];
    let tried = Tried {
        // The rest of a large file comes with the next look.
        until: if done.next > 0 { now } else { now + REST },
        next: done.next,
    };
    (events, tried)
}

/// The reason of a recharge of `file`.
fn reason(file: &str, gain: Option<RechargeGain>, result: Option<RechargeResult>) -> Rule {
    Rule::Recharge(RechargeReason {
        file: file.to_owned(),
        gain,
        result,
    })
}

/// Whether the kernel tells how much of a file is dirty.
fn tells_dirty() -> bool {
    // A service manager's filter that does not know the call answers EPERM or ENOSYS.
    std::fs::File::open("/proc/self/exe").is_ok_and(|file| cachestat(&file, 0, 1).is_ok())
}

impl Worker {
    fn start() -> std::io::Result<Self> {
        let (jobs, taken) = channel::<Job>();
        let (told, done) = channel();
        std::thread::Builder::new()
            .name("own".to_owned())
            .spawn(move || {
                while let Ok(job) = taken.recv() {
                    if told.send(carry_out(&job)).is_err() {
                        return;
                    }
                }
            })?;
        Ok(Self { jobs, done })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn done(read: u64, came: u64, next: u64) -> Done {
        Done {
            name: "/layers/lib.so".to_owned(),
            dropped: read,
            read,
            came,
            next,
            ..Done::default()
        }
    }

    #[test]
    fn what_is_told_and_when_it_is_tried_again() {
        let now = Instant::now();
        let told = |came| {
            let (events, tried) = judge(&intent(), came, now);
            let actions: Vec<Action> = events.into_iter().map(|e| e.action).collect();
            (actions, tried.until - now, tried.next)
        };
        let moved = 8 << 20;
        let handed_over = || {
            vec![
                Action::TakeCharge { bytes: moved },
                Action::LoseCharge { bytes: moved },
            ]
        };
        assert_eq!(told(Ok(done(moved, moved, 0))), (handed_over(), REST, 0));
        assert_eq!(
            told(Ok(done(moved, moved, 4096))),
            (handed_over(), Duration::ZERO, 4096)
        );
        let failed = vec![Action::RechargeFailed];
        assert_eq!(told(Ok(done(moved, 0, 0))), (failed.clone(), FAILED, 0));
        assert_eq!(told(Ok(done(0, 0, 0))), (failed.clone(), REST, 0));
        assert_eq!(told(Err("dirty".to_owned())), (failed, REST, 0));
    }
}
