//! What the agent sets for its process: signal handlers and resource limits.

use std::os::unix::net::UnixStream;
use std::sync::Arc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};

use super::error::RunError;
use crate::enforce::watchdog::INTERRUPT;

/// Installs the signal handlers. Returns a socket that becomes readable when a signal asks the agent to stop.
///
/// # Errors
/// If a handler cannot be installed.
pub(super) fn handle_signals() -> Result<UnixStream, RunError> {
    let (stop, sender) = UnixStream::pair().map_err(RunError::system("creating a signal pipe"))?;
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        let sender = sender
            .try_clone()
            .map_err(RunError::system("creating a signal pipe"))?;
        signal_hook::low_level::pipe::register(signal, sender)
            .map_err(RunError::system("installing a signal handler"))?;
    }
    // The handler does nothing: a pending signal ends a write in the kernel. The signal is delivered to this thread, the main
    // one, which writes the knobs.
    signal_hook::flag::register(INTERRUPT, Arc::default())
        .map_err(RunError::system("installing a signal handler"))?;
    // With this handler a write beyond the limit of file sizes fails, as on a full file system, and does not kill the agent.
    signal_hook::flag::register(SIGXFSZ, Arc::default())
        .map_err(RunError::system("installing a signal handler"))?;
    Ok(stop)
}

/// Raises the limit of file descriptors: a cgroup takes three (its directory, its events, its watch). The soft limit is
/// raised to the hard one, and the hard one, if permitted, to what 10,000 cgroups need.
pub(super) fn raise_descriptor_limit() {
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
