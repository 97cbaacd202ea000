//! The servers under test.

use super::fio;
use super::options::{BenchError, Options};
use justitia_cache::serve::Config;
use justitia_cache::serve::Service;
use justitia_common::kill_on_drop::KillOnDrop;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

/// A server under test, and where it listens.
pub(super) enum Running {
    Ours(Service),
    Theirs(KillOnDrop),
}

pub(super) struct Subject {
    pub(super) name: &'static str,
    pub(super) socket: PathBuf,
    pub(super) running: Running,
}

impl Subject {
    /// Runs fio against it; requests a second.
    pub(super) fn fio(
        &self,
        how: &str,
        block: &str,
        options: &Options,
        timed: bool,
    ) -> Result<f64, BenchError> {
        let uri = format!("--uri=nbd+unix:///?socket={}", self.socket.display());
        let target = ["--ioengine=nbd", "--iodepth=32", &uri];
        fio::run(&target, how, block, options, timed)
    }

    pub(super) fn stop(self) -> Result<(), BenchError> {
        match self.running {
            Running::Ours(service) => service.shut_down(Duration::from_secs(5))?,
            Running::Theirs(other) => drop(other),
        }
        // The others leave their sockets behind.
        let _ = std::fs::remove_file(self.socket);
        Ok(())
    }
}

/// Seconds of processor time that this process has had, its children not included.
pub(super) fn processor_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default().as_secs_f64()
}

pub(super) fn ours(
    dir: &Path,
    image: &Path,
    name: &'static str,
    change: impl FnOnce(&mut Config),
) -> Result<Subject, BenchError> {
    let socket = dir.join(format!("{}.sock", name.len()));
    let mut config = Config::of_image(image, "bench", &socket);
    change(&mut config);
    Ok(Subject {
        name,
        socket,
        running: Running::Ours(Service::start(&config)?),
    })
}

/// A server that is compared with, if it is installed.
pub(super) fn theirs(
    name: &'static str,
    socket: PathBuf,
    child: io::Result<Child>,
) -> Option<Subject> {
    let child = child
        .inspect_err(|e| tracing::warn!("not compared with {name}: {e}"))
        .ok()?;
    let deadline = Instant::now() + Duration::from_secs(10);
    // The socket is looked at, not connected to: these servers report a client that leaves at once as an error.
    while !socket.exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(200));
    Some(Subject {
        name,
        socket,
        running: Running::Theirs(KillOnDrop(child)),
    })
}
