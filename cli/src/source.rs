//! Where `top`, `explain` and `record` have statuses from.

use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::Context;
use justitia_agent::Standalone;
use justitia_agent::config::Config;
use justitia_api::Status;
use justitia_api::client::{ask, connect};

use crate::agent::{note_start, unanswered};

/// The source of the status: the running agent, or one in this process.
pub(crate) enum StatusSource {
    Agent(PathBuf),
    InProcess(Box<Standalone>),
}

impl StatusSource {
    /// The running agent; where none runs, one that observes in this process.
    pub(crate) fn new(config: Config) -> anyhow::Result<Self> {
        match connect(&config.socket) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                return Err(unanswered(&config.socket, &error));
            }
            // One that can take no client now runs, too.
            Err(error) if error.kind() != ErrorKind::WouldBlock => {}
            _ => {
                note_start(&config.socket);
                return Ok(Self::Agent(config.socket));
            }
        }
        let socket = config.socket.clone();
        let standalone = Standalone::open(config).with_context(|| {
            format!(
                "no agent answers at {} (is `justitia run` running, and are you root?), and observing without \
                 one does not work",
                socket.display()
            )
        })?;
        Ok(Self::InProcess(Box::new(standalone)))
    }

    /// One status.
    pub(crate) fn look(&mut self) -> anyhow::Result<Status> {
        match self {
            Self::Agent(socket) => {
                ask(socket).with_context(|| format!("asking the agent at {}", socket.display()))
            }
            Self::InProcess(standalone) => Ok(standalone.sample()?),
        }
    }
}
