//! The guest agent's loop: it looks for the port, serves it, and looks again when it is gone. Whatever happens to the port, the
//! guest goes on as without one. A second thread answers the host's requests about memory.

use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use justitia_kernel::cgroup::CgroupFs;
use justitia_kernel::probes::{EvictionProbe, ProbeError};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::batch::Batches;
use crate::disks::disks;
use crate::memory;
use crate::offers::costs::Costs;
use crate::pools::cgroups::Cgroups;
use crate::port::{Ended, Session, find};
use crate::serve::{Machine, Options, Serving, Status};

/// The interval between searches for the port.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// The longest delay until a signal is obeyed.
const NAP: Duration = Duration::from_millis(100);

/// Why the guest agent cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuestError {
    /// This kernel does not support the probe, or the agent may not attach it.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// No cgroup v2.
    #[error(transparent)]
    Cgroups(#[from] justitia_kernel::Error),
    /// A signal handler cannot be installed.
    #[error("installing a signal handler: {0}")]
    Signals(io::Error),
    /// No thread can be started.
    #[error("starting a thread: {0}")]
    Thread(io::Error),
}

/// Runs until a signal (SIGTERM, SIGINT, SIGHUP) ends it.
///
/// # Errors
/// If the machine lacks a requirement. A missing port is no error. A probe that cannot be attached is none either, if the host
/// asks about memory.
pub fn run(options: &Options, report: impl FnMut(&Status)) -> Result<(), GuestError> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(GuestError::Signals)?;
    }
    let fs = CgroupFs::discover()?;
    let socket = options.agent_socket.clone();
    let rules = options.rules.clone();
    let memory = memory::start(fs.clone(), rules, socket, Arc::clone(&stop));
    let memory = memory.map_err(GuestError::Thread)?;
    let mut done = offer(options, &fs, &stop, report);
    if let Err(error) = &done
        && memory::has_port()
    {
        tracing::warn!(%error, "evicted pages are not offered to the host; its questions about memory are answered");
        while !stop.load(Ordering::Relaxed) {
            wait(LOOK_AGAIN, &stop);
        }
        done = Ok(());
    }
    tracing::info!("stopping");
    stop.store(true, Ordering::Relaxed);
    // The thread logs its own errors.
    let _ = memory.join();
    done
}

/// Offers evicted pages until a signal comes.
fn offer(
    options: &Options,
    fs: &CgroupFs,
    stop: &AtomicBool,
    report: impl FnMut(&Status),
) -> Result<(), GuestError> {
    // The probe takes memory, and not every kernel supports it: without a port for puts it is not needed.
    if memory::has_port() {
        wait_for_port(options.port.as_deref(), stop);
    }
    if stop.load(Ordering::Relaxed) {
        return Ok(());
    }
    let probe = EvictionProbe::attach(options.buffer)?;
    let batches = RefCell::new(Batches::new());
    let reader = probe.reader(|page| batches.borrow_mut().add(&page, Instant::now()))?;
    let machine = Machine {
        options,
        probe: &probe,
        reader,
        batches: &batches,
        cgroups: Cgroups::new(fs, &options.rules),
        began: Instant::now(),
        status: Status::default(),
        costs: Costs::default(),
        offering: Duration::ZERO,
    };
    let mut agent = Agent {
        machine,
        stop,
        reported: Instant::now(),
        every: options.report_every,
        report,
    };
    tracing::info!("running");
    agent.run(options.port.as_deref());
    Ok(())
}

/// Waits for a port that takes evicted pages, or for a signal.
fn wait_for_port(named: Option<&Path>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) && find(named, &disks(Path::new("/sys/block"))).is_err() {
        wait(LOOK_AGAIN, stop);
    }
}

/// Waits for `time`, or for a signal.
fn wait(time: Duration, stop: &AtomicBool) {
    let begun = Instant::now();
    while !stop.load(Ordering::Relaxed) && begun.elapsed() < time {
        std::thread::sleep(NAP);
    }
}

struct Agent<'a, R> {
    machine: Machine<'a>,
    stop: &'a AtomicBool,
    reported: Instant,
    every: Option<Duration>,
    report: R,
}

impl<R: FnMut(&Status)> Agent<'_, R> {
    fn run(&mut self, named: Option<&Path>) {
        // Each reason is logged once.
        let mut told = String::new();
        while !self.is_stopped() {
            let found = find(named, &disks(Path::new("/sys/block")));
            let why = match found {
                Ok(found) => {
                    told.clear();
                    let path = found.path.display().to_string();
                    tracing::info!(port = path, blocks = found.message_blocks, "found the port");
                    self.machine.status.port = Some(path);
                    self.machine
                        .batches
                        .borrow_mut()
                        .set_limit(found.message_blocks);
                    let ended = Session::begin(found.port).and_then(|session| self.serve(session));
                    self.machine.status.port = None;
                    let Err(ended) = ended else { return };
                    ended.to_string()
                }
                Err(error) => error.to_string(),
            };
            if why != told {
                tracing::info!(why, "no port; looking for it again and again");
                told = why;
            }
            wait(LOOK_AGAIN, self.stop);
        }
    }

    /// Serves a port until a signal comes.
    fn serve(&mut self, mut session: Session) -> Result<(), Ended> {
        loop {
            let mut serving = Serving::begin(&mut self.machine, session)?;
            let ended = loop {
                if self.stop.load(Ordering::Relaxed) {
                    serving.end();
                    return Ok(());
                }
                if let Err(ended) = serving.round() {
                    break ended;
                }
                tell(&serving, &mut self.reported, self.every, &mut self.report);
            };
            session = serving.end();
            match ended {
                Ended::Restarted => {
                    tracing::info!("the host's daemon was started anew: pools are made again")
                }
                Ended::Io(_) => return Err(ended),
            }
            session = session.again()?;
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Reports the status when it is due.
fn tell(
    serving: &Serving<'_, '_>,
    last: &mut Instant,
    every: Option<Duration>,
    report: &mut impl FnMut(&Status),
) {
    if every.is_some_and(|every| last.elapsed() >= every) {
        *last = Instant::now();
        report(serving.status());
    }
}
