//! The log of daemons: lines on standard error.

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Begins to log to standard error: what `JUSTITIA_LOG` asks for (`debug`, `justitia_cache=trace,info`), else
/// `info` and worse.
pub(crate) fn start() {
    let wanted = std::env::var("JUSTITIA_LOG").ok();
    let wanted = wanted.and_then(|wanted| wanted.parse().ok());
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        // It would say so on standard error, where it has just failed, and panic.
        .log_internal_errors(false);
    tracing_subscriber::registry()
        .with(lines)
        .with(wanted.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO)))
        .init();
}
