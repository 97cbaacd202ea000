//! The agent under test: the real program, as a user starts it.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::experiment::Configuration;

const PROGRAM: &str = "/bin/justitia";
const CONFIG: &str = "/etc/justitia/justitia.toml";
const LOG: &str = "/run/lab/justitia.log";
/// It gives everything back at once; then the kernel detaches its probes, which takes seconds on a busy machine.
const STOP: Duration = Duration::from_secs(90);

/// What the agent is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Change nothing, and see what applications get.
    Observe,
    /// Make the page cache follow the weights.
    Share,
    /// And the disk, by credits.
    ShareWithCredits,
    /// The same by what tenants hold, not by what they use.
    ShareByUsage,
    /// And recharge the pages of shared files to their heaviest user.
    ShareWithRecharge,
}

impl From<&Configuration> for Role {
    fn from(configuration: &Configuration) -> Self {
        match configuration {
            Configuration { agent: false, .. } => Self::Observe,
            Configuration { credits: true, .. } => Self::ShareWithCredits,
            Configuration { recharge: true, .. } => Self::ShareWithRecharge,
            Configuration { usage: true, .. } => Self::ShareByUsage,
            _ => Self::Share,
        }
    }
}

impl Role {
    /// What the agent has to be told for it, if anything.
    const fn config(self) -> Option<&'static str> {
        match self {
            Self::Observe | Self::Share => None,
            Self::ShareWithCredits => Some("[io]\nenabled = true\n"),
            Self::ShareByUsage => Some("[cache]\ndemand = \"usage\"\n"),
            Self::ShareWithRecharge => Some("[recharge]\nenabled = true\nevery = \"10s\"\n"),
        }
    }
}

/// A running agent, ended when dropped.
pub struct Agent {
    child: Child,
}

impl Agent {
    /// Starts `justitia run` and waits until it answers `justitia status`.
    pub fn start(role: Role) -> Result<Self> {
        ensure!(
            Path::new(PROGRAM).exists(),
            "expected the program justitia in the guest: build it with `cargo build --workspace --bins` (add --release where the lab is a release build)"
        );
        if let Some(config) = role.config() {
            let dir = Path::new(CONFIG).parent().unwrap_or(Path::new("/"));
            std::fs::create_dir_all(dir)
                .and_then(|()| std::fs::write(CONFIG, config))
                .with_context(|| format!("writing {CONFIG}"))?;
        }
        let log = File::create(LOG).with_context(|| format!("creating {LOG}"))?;
        let child = Command::new(PROGRAM)
            .arg("run")
            .args((role == Role::Observe).then_some("--observe"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("starting justitia run")?;
        let mut agent = Self { child };
        let begin = Instant::now();
        loop {
            agent.check()?;
            let status = Command::new(PROGRAM)
                .args(["status", "--json"])
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .context("starting justitia status")?;
            if status.success() {
                return Ok(agent);
            }
            ensure!(
                begin.elapsed() < Duration::from_secs(30),
                "expected justitia run to answer within 30 s; its log:\n{}",
                log_end()
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// An error if it has ended.
    pub fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait().context("waiting for justitia run")? {
            bail!("justitia run ended ({status}); its log:\n{}", log_end());
        }
        Ok(())
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as an operator would, and expects it to go.
    pub fn stop(mut self) -> Result<()> {
        self.check()?;
        let pid = i32::try_from(self.child.id())?;
        if let Some(pid) = rustix::process::Pid::from_raw(pid) {
            rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        }
        let begin = Instant::now();
        while begin.elapsed() < STOP {
            if let Some(status) = self.child.try_wait()? {
                ensure!(
                    status.success(),
                    "justitia run ended with {status} after SIGTERM; its log:\n{}",
                    log_end()
                );
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!(
            "expected justitia run to end within {} s of SIGTERM; its log:\n{}",
            STOP.as_secs(),
            log_end()
        )
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // Fails only where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The last lines of its log.
pub fn log_end() -> String {
    let log = std::fs::read(LOG).unwrap_or_default();
    let text = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = text.lines().collect();
    lines
        .get(lines.len().saturating_sub(25)..)
        .unwrap_or_default()
        .join("\n")
}
