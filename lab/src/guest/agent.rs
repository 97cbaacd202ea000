//! The agent under test: the real program, as a user starts it.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use justitia_common::kill_on_drop::KillOnDrop;

use crate::experiment::Configuration;

const PROGRAM: &str = "/bin/justitia";
const CONFIG: &str = "/etc/justitia/justitia.toml";
const LOG: &str = "/run/lab/justitia.log";
/// An emulated guest on a busy machine takes its time.
const START: Duration = Duration::from_secs(180);
/// It restores all knobs at once; then the kernel detaches its probes, which takes seconds on a busy machine.
const STOP: Duration = Duration::from_secs(90);

/// How the agent is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AgentMode {
    /// It changes nothing, and counts what applications get.
    Observe,
    /// The page cache is divided by weight.
    Cache,
    /// And the disk, by device bandwidth.
    Credits,
    /// The page cache is divided by what tenants hold, not by what they use.
    UsageDemand,
    /// And the pages of shared files are recharged to their heaviest user.
    Recharge,
}

impl From<&Configuration> for AgentMode {
    fn from(configuration: &Configuration) -> Self {
        match configuration {
            Configuration { agent: false, .. } => Self::Observe,
            Configuration { credits: true, .. } => Self::Credits,
            Configuration { recharge: true, .. } => Self::Recharge,
            Configuration { usage: true, .. } => Self::UsageDemand,
            _ => Self::Cache,
        }
    }
}

impl AgentMode {
    /// The agent's configuration file, if it needs one.
    const fn config(self) -> Option<&'static str> {
        match self {
            Self::Observe | Self::Cache => None,
            Self::Credits => Some("[io]\nenabled = true\n"),
            Self::UsageDemand => Some("[cache]\ndemand = \"usage\"\n"),
            Self::Recharge => Some("[recharge]\nenabled = true\ninterval = \"10s\"\n"),
        }
    }
}

/// A running agent, ended when dropped.
pub(super) struct Agent {
    child: KillOnDrop,
}

impl Agent {
    /// Starts `justitia run` and waits until it answers `justitia status`, and has tried to attach its probes.
    pub(super) fn start(mode: AgentMode) -> Result<Self> {
        let mut agent = Self::spawn(mode)?;
        agent.wait_until_it_answers()?;
        Ok(agent)
    }

    /// Starts `justitia run`.
    pub(super) fn spawn(mode: AgentMode) -> Result<Self> {
        ensure!(
            Path::new(PROGRAM).exists(),
            "expected the program justitia in the guest: build it with `cargo build --workspace --bins` (add --release where the lab is a release build)"
        );
        if let Some(config) = mode.config() {
            let dir = Path::new(CONFIG).parent().unwrap_or(Path::new("/"));
            std::fs::create_dir_all(dir)
                .and_then(|()| std::fs::write(CONFIG, config))
                .with_context(|| format!("writing {CONFIG}"))?;
        }
        let log = File::create(LOG).with_context(|| format!("creating {LOG}"))?;
        let child = Command::new(PROGRAM)
            .arg("run")
            .args((mode == AgentMode::Observe).then_some("--observe"))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("starting justitia run")?;
        let child = KillOnDrop(child);
        Ok(Self { child })
    }

    fn wait_until_it_answers(&mut self) -> Result<()> {
        let begin = Instant::now();
        loop {
            self.check()?;
            let status = Command::new(PROGRAM)
                .args(["status", "--json"])
                .stderr(Stdio::null())
                .output()
                .context("starting justitia status")?;
            let attaching =
                String::from_utf8_lossy(&status.stdout).contains("probes are being attached");
            if status.status.success() && !attaching {
                return Ok(());
            }
            ensure!(
                begin.elapsed() < START,
                "expected justitia run to answer within {} s, its probes attached; its log:\n{}",
                START.as_secs(),
                log_end()
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// An error if it has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait().context("waiting for justitia run")? {
            bail!("justitia run ended ({status}); its log:\n{}", log_end());
        }
        Ok(())
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it as an operator would, and expects it to go.
    pub(super) fn stop(mut self) -> Result<()> {
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

/// The last lines of its log.
fn log_end() -> String {
    let log = std::fs::read(LOG).unwrap_or_default();
    let text = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = text.lines().collect();
    lines
        .get(lines.len().saturating_sub(25)..)
        .unwrap_or_default()
        .join("\n")
}
