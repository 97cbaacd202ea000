//! Answers the host's requests about this machine's memory (Singh, section 5.2): its use, and how much of it can be given back.
//! `docs/design/guest-cache-control.md` says how.
//!
//! This has a thread of its own: neither a host that reads no answers nor a slow reclaim delays the put port.

mod answers;
mod cached;
mod machine;
mod plan;
mod port;
mod readings;
mod reporting;
mod targets;
mod worth;

#[cfg(test)]
mod simulation;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use justitia_cgroup_tree::Rule;
use justitia_guest_protocol::memory::{Lines, MAX_LINE};
use justitia_kernel::cgroup::CgroupFs;

use answers::{Answers, Given};
use machine::Kernel;
use port::{Found, Port};
use reporting::Compaction;

/// The interval between searches for the port.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// The longest delay until a signal or a connected host is noticed.
const NAP: Duration = Duration::from_millis(100);
/// The interval between log lines about memory given back.
const TELL_EVERY: Duration = Duration::from_secs(60);

/// Whether this machine has a port for requests about memory.
pub(crate) fn has_port() -> bool {
    find().is_some()
}

fn find() -> Option<PathBuf> {
    port::find(Path::new("/sys"), Path::new("/dev"))
}

/// Answers the host in a thread of its own until `stop` is set. `rules` are the administrator's for cgroups; `socket` is that of
/// `justitia run`.
///
/// # Errors
/// If no thread can be started.
pub(crate) fn start(
    fs: CgroupFs,
    rules: Vec<Rule>,
    socket: PathBuf,
    stop: Arc<AtomicBool>,
) -> io::Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name("memory".to_owned());
    thread.spawn(move || {
        let kernel = match Kernel::new(fs, rules) {
            Ok(kernel) => kernel,
            Err(error) => {
                tracing::warn!(%error, "the host's questions about memory are not answered");
                return;
            }
        };
        let mut server = Server {
            answers: Answers::new(kernel, socket),
            compaction: Compaction::default(),
            told: (Instant::now(), Given::default()),
            stop,
        };
        server.run();
    })
}

struct Server {
    answers: Answers<Kernel>,
    compaction: Compaction,
    told: (Instant, Given),
    stop: Arc<AtomicBool>,
}

impl Server {
    fn run(&mut self) {
        // Each reason is logged once.
        let mut told = String::new();
        while !self.is_stopped() {
            if let Some(path) = find() {
                let why = match Port::open(&path) {
                    Ok(port) => {
                        told.clear();
                        tracing::info!(port = %path.display(), "answers the host's questions about memory");
                        match self.serve(port) {
                            Ok(()) => return,
                            Err(error) => error,
                        }
                    }
                    Err(error) => error,
                };
                let why = format!("{}: {why}", path.display());
                if why != told {
                    tracing::warn!(
                        why,
                        "the host's port for memory does not work; trying again and again"
                    );
                    told = why;
                }
            }
            let begun = Instant::now();
            while !self.is_stopped() && begun.elapsed() < LOOK_AGAIN {
                std::thread::sleep(NAP);
            }
        }
    }

    /// Serves a port until a signal comes.
    fn serve(&mut self, mut port: Port) -> io::Result<()> {
        let mut lines = Lines::new();
        let mut buffer = [0; MAX_LINE];
        while !self.is_stopped() {
            match port.read(&mut buffer, NAP)? {
                Found::Nothing => {}
                Found::NoHost => {
                    // A new host does not continue the line of another.
                    lines = Lines::new();
                    std::thread::sleep(NAP);
                }
                Found::Bytes(read) => {
                    for line in lines.push(buffer.get(..read).unwrap_or_default()) {
                        match line {
                            Ok(line) => self.answer(&mut port, &line)?,
                            Err(_) => self.answers.given.malformed += 1,
                        }
                    }
                }
            }
            self.tell();
        }
        Ok(())
    }

    fn answer(&mut self, port: &mut Port, line: &[u8]) -> io::Result<()> {
        let before = self.answers.given.taken;
        let Some(answer) = self.answers.answer(line, Kernel::low_watermark) else {
            return Ok(());
        };
        let sent = port.write(&answer);
        let taken = self.answers.given.taken - before;
        if taken > 0 {
            self.compaction.after(taken, machine::since_boot());
        }
        match sent {
            // The host does not read, or is gone.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            other => other,
        }
    }

    fn tell(&mut self) {
        let (at, before) = self.told;
        let given = self.answers.given;
        if given == before || at.elapsed() < TELL_EVERY {
            return;
        }
        self.told = (Instant::now(), given);
        tracing::info!(
            requests = given.requests,
            asked = given.asked,
            taken = given.taken,
            malformed = given.malformed,
            "memory given back to the host so far"
        );
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}
