//! `justitia top`.

use std::io::{IsTerminal, stdin, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use justitia_view::top::{self as screen, source::Source};

use crate::agent::{ConfigArgs, page};
use crate::source::StatusSource;
use crate::watch::{Every, watch};

/// Show every tenant live: weight, entitlement, usage, bandwidth, hit ratio, PV.
///
/// Asks the running agent; where none runs, it observes by itself and changes nothing. `?` explains the columns,
/// Enter explains a tenant. NO_COLOR switches colour off. With --count, or without a terminal, it prints what `justitia status`
/// does again and again.
#[derive(Args)]
pub(crate) struct Top {
    /// Play a recording of `justitia record` instead
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    #[command(flatten)]
    every: Every,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(crate) fn top(args: &Top) -> anyhow::Result<ExitCode> {
    let terminals = stdin().is_terminal() && stdout().is_terminal();
    if !terminals || args.every.ends() {
        return batch(args);
    }
    let colour = std::env::var_os("NO_COLOR").is_none()
        && std::env::var("TERM").is_ok_and(|t| t != "dumb" && !t.starts_with("vt"));
    let period = args.every.period();
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

/// A page after the other.
fn batch(args: &Top) -> anyhow::Result<ExitCode> {
    if let Some(file) = &args.replay {
        bail!(
            "expected a terminal on standard input and output, to play {}, found none",
            file.display()
        );
    }
    let mut source = StatusSource::new(args.config.load()?)?;
    watch(args.every, move || Ok(page(&source.look()?, false)))?;
    Ok(ExitCode::SUCCESS)
}
