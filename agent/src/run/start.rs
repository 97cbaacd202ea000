//! Starts the agent: as `justitia run`, or observing inside another process.

use std::path::Path;
use std::time::Instant;

use justitia_api::Status;
use justitia_common::answer_socket::AnswerSocket;
use justitia_kernel::capabilities::{Capabilities, Paths};
use justitia_kernel::cgroup::CgroupFs;

use super::checks::{RunError, check_features, check_state_dir, reclaim_features};
use super::event_loop::{AgentLoop, Waits};
use super::process::{handle_signals, lock_memory, raise_descriptor_limit};
use super::reload::{Exporter, Live};
use crate::agent::Agent;
use crate::config::Config;
use crate::knobs::journal::boot_id;
use crate::knobs::{KnobStore, log_restored};
use crate::monitor::AppIoMonitor;
use crate::page_cache::Handover;
use crate::page_cache::reclaim::Reclaimer;
use crate::status::collect::status;
use crate::status::control::Control;

/// Runs until a signal stops it. With `observe` it writes nothing but its sockets. `config` was read from `file`, or from the
/// default path; SIGHUP and a request reload it.
///
/// # Errors
/// If the machine lacks a required feature: then nothing was changed. If a vital file cannot be read any more: then all knobs
/// were restored.
pub fn run(config: Config, file: Option<&Path>, observe: bool) -> Result<(), RunError> {
    let capabilities = Capabilities::detect(&Paths::default());
    let mut limitations = check_features(&capabilities, observe)?;
    limitations.extend(check_state_dir(&config, observe)?);
    let fs = CgroupFs::discover()?;
    let signals = handle_signals()?;
    raise_descriptor_limit();
    if !observe {
        lock_memory();
    }

    // Clients may connect from now on. They are answered once the control socket exists, too.
    let socket_path = config.socket.clone();
    let socket = listen(&socket_path)?;
    tracing::info!(
        "starting: {}",
        match observe {
            true => "it only observes, and changes nothing",
            false => "knobs that an earlier agent has left are restored",
        }
    );
    let (store, reclaimer) = match observe {
        true => (None, None),
        false => start_enforcement(&config, &fs, &mut limitations)?,
    };
    tracing::info!("loading the probes; until then the kernel's lists alone say what is used");
    let app_io = AppIoMonitor::attach_meanwhile(&(&config.probes).into());
    let mut live = Live {
        file: file.map(Path::to_owned),
        metrics: Exporter::start(&config),
        limitations,
        doubts: Vec::new(),
        doubts_due: None,
    };
    let features = reclaim_features(&capabilities);
    let mut agent = Agent::new(config, &fs, features, store, reclaimer, app_io)?;
    if let (false, Ok(boot)) = (observe, boot_id()) {
        let state = &agent.config.state_dir;
        agent.monitor.handover = Handover::take(state, &boot, Instant::now());
    }
    live.doubt(&agent, Instant::now());
    let control = Control::listen(&socket_path).map_err(RunError::system(format!(
        "the control socket beside {}",
        socket_path.display()
    )))?;
    log_running(&agent, &live.limitations, observe, &socket_path);
    let waits = Waits {
        signals,
        socket,
        control,
    };
    AgentLoop::new(agent, waits, live, observe).run()
}

/// Listens at the status socket.
fn listen(path: &Path) -> Result<AnswerSocket, RunError> {
    AnswerSocket::listen(path).map_err(|error| {
        let socket = path.display();
        let what = match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                format!(
                    "another agent is running: it has the status socket {socket}; stop it first"
                )
            }
            std::io::ErrorKind::PermissionDenied => {
                format!("the status socket {socket} cannot be made: run as root (sudo)")
            }
            _ => format!("the status socket {socket}"),
        };
        RunError::system(what)(error)
    })
}

/// Logs that the agent runs, and its findings.
fn log_running(agent: &Agent, limitations: &[String], observe: bool, socket: &Path) {
    let cgroups = &agent.monitor.cgroups;
    tracing::info!(
        tenants = cgroups.len(),
        observe,
        socket = %socket.display(),
        "running"
    );
    if cgroups.is_empty() {
        tracing::warn!(
            why = limitations.join("; "),
            "no cgroup has the memory controller: there is no tenant"
        );
    }
}

/// The parts of an agent that acts: the knob store, which restores an earlier agent's knobs, and the reclaim threads.
fn start_enforcement(
    config: &Config,
    fs: &CgroupFs,
    limitations: &mut Vec<String>,
) -> Result<(Option<KnobStore>, Option<Reclaimer>), RunError> {
    let (mut store, restored) = KnobStore::open(fs, &config.state_dir)?;
    log_restored("left by an earlier agent", &restored);
    let reclaimer = Reclaimer::start().map_err(RunError::system("starting the reclaim threads"))?;
    if let Err(error) = store.watch_writers() {
        tracing::warn!(%error, "writers of knobs cannot be seen: the value alone decides");
        limitations.push(format!(
            "Knobs: their writers cannot be seen ({error}): the value alone decides"
        ));
    }
    Ok((Some(store), Some(reclaimer)))
}

/// An agent in this process that only observes, for clients on a machine without a running agent.
#[derive(Debug)]
pub struct Standalone {
    agent: Agent,
    limitations: Vec<String>,
}

impl Standalone {
    /// Samples everything once. Nothing is written, and no socket is created.
    ///
    /// # Errors
    /// If the machine lacks what is needed to observe.
    pub fn open(config: Config) -> Result<Self, RunError> {
        let capabilities = Capabilities::detect(&Paths::default());
        let limitations = check_features(&capabilities, true)?;
        let fs = CgroupFs::discover()?;
        raise_descriptor_limit();
        let app_io = AppIoMonitor::attach(&(&config.probes).into());
        let features = reclaim_features(&capabilities);
        let agent = Agent::new(config, &fs, features, None, None, app_io)?;
        Ok(Self { agent, limitations })
    }

    /// Samples again, and returns the status.
    ///
    /// # Errors
    /// If a vital file cannot be read any more.
    pub fn sample(&mut self) -> Result<Status, RunError> {
        self.agent.tick(Instant::now())?;
        self.agent.monitor.sample_now(Instant::now());
        Ok(status(&self.agent, &self.limitations, true))
    }
}
