//! `justitia top`.

use std::io::{IsTerminal, stdin, stdout};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use justitia_view::top::{self as screen, source::Source};

use crate::agent::ConfigArgs;
use crate::source::StatusSource;

/// Show every tenant live: weight, entitlement, usage, bandwidth, hit ratio, PV.
///
/// Asks the running agent; where none runs, it observes by itself and changes nothing. `?` explains the columns,
/// Enter explains a tenant. NO_COLOR switches colour off.
#[derive(Args)]
pub(crate) struct Top {
    /// Play a recording of `justitia record` instead
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// Seconds between two looks
    #[arg(long, default_value = "1", value_parser = clap::value_parser!(u64).range(1..=3600))]
    every: u64,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(crate) fn top(args: &Top) -> anyhow::Result<ExitCode> {
    let terminals = [stdin().is_terminal(), stdout().is_terminal()];
    if terminals.contains(&false) {
        bail!(
            "expected a terminal on standard input and output, found none: `justitia status` prints the same once, \
             `justitia status --json` for programs"
        );
    }
    let colour = std::env::var_os("NO_COLOR").is_none()
        && std::env::var("TERM").is_ok_and(|t| t != "dumb" && !t.starts_with("vt"));
    let period = Duration::from_secs(args.every);
    let source = match &args.replay {
        Some(file) => Source::recording(file)?,
        None => match StatusSource::new(args.config.load()?)? {
            StatusSource::Agent(socket) => Source::agent(&socket, period),
            StatusSource::InProcess(mut standalone) => {
                Source::own("no agent runs: observing", period, move || {
                    standalone.sample().map_err(|e| e.to_string())
                })
            }
        },
    };
    screen::run(source, colour).context("drawing on the terminal")?;
    Ok(ExitCode::SUCCESS)
}
