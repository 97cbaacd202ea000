//! `justitia run`: start, turn until told to stop, give everything back.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use justitia_api::client::ask;
use justitia_kernel::capabilities::{Capabilities, CapabilityId, Feature, Paths, SupportLevel};
use justitia_kernel::cgroup::CgroupFs;
use justitia_metrics_http::Server;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};

use crate::agent::Agent;
use crate::config::{Config, StateOnDisk};
use crate::enforce::knob_store::{KnobStore, KnobStoreError, log_restored};
use crate::enforce::protection::ProtectionController;
use crate::enforce::reclaim::Reclaimer;
use crate::enforce::watchdog::INTERRUPT;
use crate::monitor::{AppIoMonitor, ReclaimFeatures, lru_gen_usable};
use crate::report::gather::status;
use crate::report::metrics;
use crate::report::socket::Socket;
use justitia_api::Status;

/// Turns are at least this far apart, however many events come.
const BREATH: Duration = Duration::from_millis(20);

/// What cannot be given back at the end is tried again for so long.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why the agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Something that it needs is missing here.
    #[error("{function} cannot work here: {}. `justitia doctor` says more; nothing was changed", reasons.join("; "))]
    Prevented {
        /// What cannot work.
        function: &'static str,
        /// The facts.
        reasons: Vec<String>,
    },
    /// The journal would wait for a disk that the agent limits.
    #[error(transparent)]
    State(#[from] StateOnDisk),
    /// The knob store cannot be used.
    #[error(transparent)]
    KnobStore(#[from] KnobStoreError),
    /// Knobs could not be restored at the end.
    #[error(
        "{0} knobs could not be restored; their original values stay in the journal: the next start or `justitia reset` \
         restores them"
    )]
    Left(usize),
    /// The kernel's side.
    #[error(transparent)]
    Kernel(#[from] justitia_kernel::Error),
    /// The system's side.
    #[error("{what}: {source}")]
    System {
        /// What was being done.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Runs until a signal says stop. With `observe` nothing is written anywhere but the status socket.
///
/// # Errors
/// If the machine lacks what it takes (nothing was changed then), or a vital file cannot be read any more
/// (everything was given back then).
pub fn run(config: Config, observe: bool) -> Result<(), RunError> {
    let capabilities = Capabilities::detect(&Paths::default());
    let mut limits = check(&capabilities, observe)?;
    limits.extend(check_state(&config, observe)?);
    let fs = CgroupFs::discover()?;
    let (stop, signalled) = UnixStream::pair().map_err(|e| system("a signal pipe", e))?;
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        let writer = signalled
            .try_clone()
            .map_err(|e| system("a signal pipe", e))?;
        signal_hook::low_level::pipe::register(signal, writer)
            .map_err(|e| system("a signal handler", e))?;
    }
    // It need do nothing: that it is pending ends what the kernel does in a write. It comes to this thread, the main one,
    // which does the writing.
    signal_hook::flag::register(INTERRUPT, Arc::default())
        .map_err(|e| system("a signal handler", e))?;
    // Beyond a limit on the size of files a write fails, as on a full file system; it does not end the agent.
    signal_hook::flag::register(SIGXFSZ, Arc::default())
        .map_err(|e| system("a signal handler", e))?;
    raise_descriptor_limit();

    let features = features(&capabilities);
    let store = if observe {
        None
    } else {
        let (store, restored) = KnobStore::open(&fs, &config.state_dir)?;
        log_restored("left by an earlier agent", &restored);
        Some(store)
    };
    let reclaimer = if observe {
        None
    } else {
        Some(Reclaimer::start().map_err(|e| system("the reclaim threads", e))?)
    };
    let socket_path = config.socket.clone();
    let socket = Socket::listen(&socket_path)
        .map_err(|e| system(&format!("the status socket {}", socket_path.display()), e))?;
    let app_io = AppIoMonitor::attach(&(&config.probes).into(), config.trace_latency);
    let metrics = match serve_metrics(&config) {
        Ok(metrics) => metrics,
        Err(refused) => {
            limits.push(refused);
            None
        }
    };
    let mut agent = Agent::new(
        config,
        &fs,
        features,
        ProtectionController::new(store),
        reclaimer,
        app_io,
    )?;
    for hint in near_misses(&agent) {
        tracing::warn!("{hint}");
        limits.push(format!("Configuration: {hint}"));
    }
    tracing::info!(
        tenants = agent.monitor.cgroups.len(),
        observe,
        socket = %socket_path.display(),
        "running"
    );
    // systemd waits for this; without it nobody listens.
    let _ = sd_notify::notify(&[NotifyState::Ready]);
    let done = turn_until_stopped(&mut agent, &stop, &socket, &limits, observe);
    drop(socket);
    drop(metrics);
    done
}

/// Rules that match nothing, and what they may have been meant to match.
fn near_misses(agent: &Agent) -> Vec<String> {
    let cgroups = &agent.monitor.cgroups;
    let ids = cgroups.breadth_first();
    let nodes = ids.iter().filter_map(|id| cgroups.get(*id));
    let paths = nodes.map(|node| node.cgroup.path());
    // What is excluded is not among them, so nothing can be said of rules that do it.
    let rules = agent.config.rules.iter().rev();
    rules
        .filter(|rule| rule.says.exclude != Some(true))
        .filter_map(|rule| rule.near_miss(paths.clone()))
        .collect()
}

/// Serves OpenMetrics, if that is wanted. That it cannot is no reason not to run.
fn serve_metrics(config: &Config) -> Result<Option<Server>, String> {
    let Some(address) = config.metrics.listen else {
        return Ok(None);
    };
    let (socket, most) = (config.socket.clone(), config.metrics.max_tenants);
    let text = move || {
        let status = ask(&socket).map_err(|e| format!("the agent does not answer: {e}"))?;
        metrics::text(&status, most)
    };
    Server::start(address, text)
        .map(Some)
        .map_err(|error| format!("Metrics are not served at {address}: {error}"))
}

/// An agent in this process that only observes, for who wants to look where none runs.
#[derive(Debug)]
pub struct Alone {
    agent: Agent,
    limits: Vec<String>,
}

impl Alone {
    /// Looks at everything once. Nothing is written, no socket is made.
    ///
    /// # Errors
    /// If the machine lacks what it takes to observe.
    pub fn open(config: Config) -> Result<Self, RunError> {
        let capabilities = Capabilities::detect(&Paths::default());
        let limits = check(&capabilities, true)?;
        let fs = CgroupFs::discover()?;
        raise_descriptor_limit();
        let app_io = AppIoMonitor::attach(&(&config.probes).into(), config.trace_latency);
        let protection = ProtectionController::new(None);
        let agent = Agent::new(
            config,
            &fs,
            features(&capabilities),
            protection,
            None,
            app_io,
        )?;
        Ok(Self { agent, limits })
    }

    /// Looks again, and tells what there is.
    ///
    /// # Errors
    /// If a vital file cannot be read any more.
    pub fn look(&mut self) -> Result<Status, RunError> {
        self.agent.tick(Instant::now())?;
        self.agent.monitor.sample_now(Instant::now());
        Ok(status(&self.agent, &self.limits, true))
    }
}

fn turn_until_stopped(
    agent: &mut Agent,
    stop: &UnixStream,
    socket: &Socket,
    limits: &[String],
    observe: bool,
) -> Result<(), RunError> {
    loop {
        let now = Instant::now();
        let wait = agent.tick(now)?;
        let _ = sd_notify::notify(&[NotifyState::Watchdog]);
        if answer_until_due(agent, stop, socket, limits, observe, wait) {
            break;
        }
        std::thread::sleep(BREATH.saturating_sub(now.elapsed()));
    }
    let _ = sd_notify::notify(&[NotifyState::Stopping]);
    let restored = agent.protection.restore_all(PATIENCE);
    log_restored("stopping", &restored);
    let left = restored
        .iter()
        .filter(|one| one.outcome.is_failed())
        .count();
    if left > 0 {
        agent.credits.leave_to_watchdog();
        return Err(RunError::Left(left));
    }
    tracing::info!(knobs = restored.len(), "stopped; all knobs were restored");
    Ok(())
}

/// Answers questions until `wait` has passed, or events or a signal have come; says whether it was a signal. However many
/// ask, they neither bring the next turn forward nor are they charged to the monitor's budget.
fn answer_until_due(
    agent: &mut Agent,
    stop: &UnixStream,
    socket: &Socket,
    limits: &[String],
    observe: bool,
    wait: Duration,
) -> bool {
    let due = Instant::now() + wait;
    loop {
        let begun = Instant::now();
        agent.answer(|agent| {
            socket.answer(|| {
                agent.monitor.sample_now(Instant::now());
                status(agent, limits, observe)
            });
        });
        match wait_for(agent, stop, socket, due.saturating_duration_since(begun)) {
            Woken::Stop => return true,
            Woken::Question if Instant::now() < due => {
                std::thread::sleep(BREATH.saturating_sub(begun.elapsed()));
            }
            Woken::Question | Woken::Due => return false,
        }
    }
}

/// What a wait has ended with.
enum Woken {
    /// A signal to stop.
    Stop,
    /// A client of the status.
    Question,
    /// Events, or the time.
    Due,
}

/// Waits for time, events, a client or a signal.
fn wait_for(agent: &Agent, stop: &UnixStream, socket: &Socket, wait: Duration) -> Woken {
    let mut fds = vec![
        PollFd::new(stop, PollFlags::IN),
        PollFd::new(socket.listener(), PollFlags::IN),
    ];
    if let Some(watcher) = agent.monitor.cgroups.watcher() {
        fds.push(PollFd::from_borrowed_fd(watcher.as_fd(), PollFlags::IN));
    }
    let timeout = Timespec::try_from(wait).ok();
    // An interrupted wait is a short wait.
    let _ = poll(&mut fds, timeout.as_ref());
    let came = |fd: Option<&PollFd<'_>>| fd.is_some_and(|fd| fd.revents().contains(PollFlags::IN));
    match (came(fds.first()), came(fds.get(1)), came(fds.get(2))) {
        (true, ..) => Woken::Stop,
        (false, true, false) => Woken::Question,
        _ => Woken::Due,
    }
}

/// What must work, and what works less well than it could. The pure decision of whether to start.
fn check(capabilities: &Capabilities, observe: bool) -> Result<Vec<String>, RunError> {
    let mut limits = Vec::new();
    for feature in [
        Feature::CacheProtection,
        Feature::ProactiveReclaim,
        Feature::Weights,
    ] {
        let support = capabilities.feature(feature);
        let reasons: Vec<String> = support
            .causes
            .iter()
            .map(|b| format!("{} ({})", b.consequence, b.capability.reason))
            .collect();
        // Without reclaim, protection still works, and the other way round; without weights set, all
        // are equal.
        let vital = feature == Feature::CacheProtection && !observe;
        if support.level == SupportLevel::Unavailable && vital {
            return Err(RunError::Prevented {
                function: feature.title(),
                reasons,
            });
        }
        limits.extend(
            reasons
                .into_iter()
                .map(|r| format!("{}: {r}", feature.title())),
        );
    }
    Ok(limits)
}

/// Checks the directory of the journal. In observe mode there is no journal.
fn check_state(config: &Config, observe: bool) -> Result<Option<String>, StateOnDisk> {
    match config.state_on_disk() {
        Some(odd) if odd.refused() && !observe => Err(odd),
        Some(odd) => {
            tracing::warn!("{odd}");
            Ok(Some(format!("Knob journal: {odd}")))
        }
        None => Ok(None),
    }
}

fn features(capabilities: &Capabilities) -> ReclaimFeatures {
    let multi_gen = capabilities.has(CapabilityId::Mglru);
    ReclaimFeatures {
        reclaim: capabilities.has(CapabilityId::MemoryReclaim),
        swappiness: capabilities.has(CapabilityId::ReclaimSwappiness),
        multi_gen,
        lru_gen: multi_gen && lru_gen_usable(),
        bfq: capabilities.has(CapabilityId::Bfq),
    }
}

fn system(what: &str, source: std::io::Error) -> RunError {
    RunError::System {
        what: what.to_owned(),
        source,
    }
}

/// A cgroup costs three descriptors (its directory, its events, its watch): lift the soft limit to the hard
/// one, and that, where we may, to what 10,000 cgroups need.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const WANTED: u64 = 32_768;
    let now = getrlimit(Resource::Nofile);
    let highest = now.maximum.map(|max| max.max(WANTED));
    let raised = Rlimit {
        current: highest,
        maximum: highest,
    };
    if setrlimit(Resource::Nofile, raised).is_err() {
        let _ = setrlimit(
            Resource::Nofile,
            Rlimit {
                current: now.maximum,
                ..now
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::monitor::thread_cpu;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// An agent that only observes a tree of plain files with one cgroup.
    fn agent(root: &std::path::Path) -> Agent {
        std::fs::create_dir_all(root.join("a")).unwrap();
        std::fs::write(root.join("a/cgroup.controllers"), "memory\n").unwrap();
        let fs = CgroupFs::open_fixture(root, true).unwrap();
        let config = Config {
            cpu_budget: 5.0,
            ..Config::default()
        };
        let (app_io, protection) = (
            AppIoMonitor::unavailable("a test"),
            ProtectionController::new(None),
        );
        Agent::new(
            config,
            &fs,
            ReclaimFeatures::default(),
            protection,
            None,
            app_io,
        )
        .unwrap()
    }

    #[test]
    fn answers_are_not_charged_to_the_observers_budget() {
        let dir = tempfile::tempdir().unwrap();
        let mut agent = agent(dir.path());
        let spend = || {
            let begun = thread_cpu();
            while thread_cpu() - begun < Duration::from_millis(400) {}
        };
        // A twentieth of this is saved up; what follows would take it, and more.
        std::thread::sleep(Duration::from_millis(400));
        agent.answer(|_| spend());
        assert!(agent.monitor.budget.allows());
    }

    /// They are asked as fast as they are answered.
    #[test]
    fn questions_neither_bring_a_turn_forward_nor_put_it_off() {
        let dir = tempfile::tempdir().unwrap();
        let mut agent = agent(&dir.path().join("cgroup"));
        let path = dir.path().join("j.sock");
        let socket = Socket::listen(&path).unwrap();
        let (stop, _signalled) = UnixStream::pair().unwrap();
        let asked = Arc::new(AtomicBool::new(true));
        let asker = std::thread::spawn({
            let asked = Arc::clone(&asked);
            move || {
                let mut answers = 0;
                while asked.load(Ordering::Relaxed) {
                    // The last one has nobody to answer it.
                    answers += u32::from(ask(&path).is_ok());
                }
                answers
            }
        });
        let (begun, wait) = (Instant::now(), Duration::from_secs(2));
        let stopped = answer_until_due(&mut agent, &stop, &socket, &[], true, wait);
        let took = begun.elapsed();
        asked.store(false, Ordering::Relaxed);
        drop(socket);
        let answers = asker.join().unwrap();
        assert!(!stopped && answers > 5, "{answers} answers");
        assert!(took >= wait && took < 10 * wait, "{took:?}");
    }
}
