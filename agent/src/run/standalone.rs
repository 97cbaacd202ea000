//! An observing agent inside another process.

use std::time::Instant;

use justitia_api::Status;
use justitia_kernel::capabilities::{Capabilities, Paths};
use justitia_kernel::cgroup::CgroupFs;

use super::checks::{check_features, reclaim_features};
use super::error::RunError;
use super::process::raise_descriptor_limit;
use crate::agent::Agent;
use crate::config::Config;
use crate::enforce::protection::ProtectionController;
use crate::monitor::AppIoMonitor;
use crate::report::status::status;

/// An agent in this process that only observes, for clients on a machine where no agent runs.
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
        let protection = ProtectionController::new(None);
        let features = reclaim_features(&capabilities);
        let agent = Agent::new(config, &fs, features, protection, None, app_io)?;
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
