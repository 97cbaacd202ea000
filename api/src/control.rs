//! Requests to a running agent: one JSON object each way over its control socket, beside the status socket.

use std::io::{ErrorKind, Result, Write};
use std::net::Shutdown;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::client::{ANSWER_TIMEOUT, answer, connect, hangs};

/// A request is not longer than this, bytes: a cgroup's path has at most 4096, escaped four times as many.
pub const MAX_REQUEST_BYTES: u64 = 32 << 10;

/// What the agent is to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Read the configuration again.
    Reload,
    /// Restore a knob, and leave it as it is from then on.
    Release {
        /// Its file below the cgroup mount, escaped as in the status, of a disk's line with the device: `a.slice/io.weight 8:0`.
        knob: String,
    },
    /// Write a knob again that was left to another writer.
    Take {
        /// As in [`Request::Release`].
        knob: String,
    },
}

/// What became of it. Texts are safe to print.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// What was done, a line each.
    #[serde(default)]
    pub done: Vec<String>,
    /// Why nothing was done, a line each; empty if it was.
    #[serde(default)]
    pub errors: Vec<String>,
}

/// The control socket of the agent with this status socket.
#[must_use]
pub fn control_path(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(".control");
    path.into()
}

/// Whether the agent with the status socket `path` is starting: it listens there from its beginning, and at its control
/// socket once it answers. A dead agent's sockets take no connection.
#[must_use]
pub fn is_starting(path: &Path) -> bool {
    let absent = [ErrorKind::NotFound, ErrorKind::ConnectionRefused];
    connect(&control_path(path)).is_err_and(|error| absent.contains(&error.kind()))
        && connect(path).map_or_else(|error| error.kind() == ErrorKind::WouldBlock, |_| true)
}

/// Asks the agent with the status socket `socket`, and waits a minute for its answer.
///
/// # Errors
/// If none listens, or its answer is not understood. [`ErrorKind::TimedOut`]: it is busy, or hangs.
pub fn request(socket: &Path, request: &Request) -> Result<Answer> {
    let mut agent = connect(&control_path(socket)).map_err(hangs)?;
    agent.set_write_timeout(Some(ANSWER_TIMEOUT))?;
    agent.write_all(&serde_json::to_vec(request)?)?;
    agent.shutdown(Shutdown::Write)?;
    answer(&agent, ANSWER_TIMEOUT)
}
