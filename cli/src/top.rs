//! `justitia top`.

use std::io::{IsTerminal, stdin, stdout};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use justitia_api::units;
use justitia_common::command::out;
use justitia_view::record::{Recording, TenantAverage, averages};
use justitia_view::table::table;
use justitia_view::top::{self as screen, source::Source};

use crate::agent::{ConfigArgs, page};
use crate::source::StatusSource;
use crate::watch::{Every, watch};

/// Show every tenant live: weight, entitlement, usage, bandwidth, hit ratio, PV.
///
/// Asks the running agent; where none runs, it observes by itself and changes nothing. `?` explains the columns,
/// Enter explains a tenant. NO_COLOR switches colour off. With --count, or without a terminal, it prints what `justitia status`
/// does again and again; of a recording, what each tenant that read anything read on average.
#[derive(Args)]
pub(crate) struct Top {
    /// Play a recording of `justitia record` instead
    #[arg(long, value_name = "FILE")]
    replay: Option<PathBuf>,
    /// With --replay: what every tenant read on average, as JSON
    #[arg(long, requires = "replay")]
    json: bool,
    #[command(flatten)]
    every: Every,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(crate) fn top(args: &Top) -> anyhow::Result<ExitCode> {
    let terminals = stdin().is_terminal() && stdout().is_terminal();
    if !terminals || args.every.ends() || args.json {
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

/// A page after the other; of a recording its averages.
fn batch(args: &Top) -> anyhow::Result<ExitCode> {
    if let Some(file) = &args.replay {
        let averages = averages(&mut Recording::open(file)?)?;
        if args.json {
            out::line(out::json(&averages)?);
        } else {
            out::print(summary(&averages));
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut source = StatusSource::new(args.config.load()?)?;
    watch(args.every, move || Ok(page(&source.look()?, false)))?;
    Ok(ExitCode::SUCCESS)
}

/// The averages as text. SEEN is for how long what a tenant read was seen.
fn summary(averages: &[TenantAverage]) -> String {
    let read = averages.iter().filter(|one| one.read_rate > 0.0);
    let rows = read.map(|one| {
        let hits = one.hit_ratio;
        vec![
            one.name.clone(),
            units::seconds(one.seconds),
            units::rate(one.read_rate),
            hits.map_or_else(|| "-".to_owned(), units::percent),
        ]
    });
    table("TENANT|>SEEN|>READ/s|>HIT%", rows)
}
