//! `justitia cache stats`.

use std::path::PathBuf;

use clap::Args;
use justitia_cache::serve::ControlRequest;

use super::client::send;
use super::table;
use justitia_command::{flat, out};

/// Show what the running cache holds and does.
#[derive(Args)]
pub(super) struct Stats {
    /// As JSON, with everything that the cache reports
    #[arg(long)]
    json: bool,
    /// Control socket [default: /run/justitia/cache.sock for root, $XDG_RUNTIME_DIR/justitia-cache.sock for others; without that variable justitia-UID/cache.sock in the temporary directory]
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
}

pub(super) fn stats(args: &Stats) -> anyhow::Result<()> {
    let stats = send(args.control.as_deref(), &ControlRequest::Stats).map_err(flat)?;
    if args.json {
        out::line(out::json(&stats)?);
    } else {
        out::print(table::stats(&stats));
    }
    Ok(())
}
