//! Where daemons say what happens to them.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Begins to log to standard error: what `JUSTITIA_LOG` asks for (`debug`, `justitia_cache=trace,info`), else
/// `info` and worse.
pub(crate) fn start() {
    tracing_subscriber::fmt()
        .with_env_filter(
            EnvFilter::try_from_env("JUSTITIA_LOG").unwrap_or_else(|_| EnvFilter::new("info")),
        )
        .with_writer(std::io::stderr)
        // It would say so on standard error, where it has just failed, and panic.
        .log_internal_errors(false)
        // A log file or a journal takes no colours.
        .with_ansi(std::io::stderr().is_terminal())
        .init();
}
