//! `reload`, `release` and `take`: what a running agent is asked to do.

use std::process::ExitCode;

use clap::Args;
use justitia_agent::config::Config;
use justitia_api::control::{Answer, Request, request};
use justitia_common::command::out;

use crate::agent::{ConfigArgs, unanswered};

/// Have the running agent read its configuration again.
///
/// Knobs that the agent holds stay; what the new configuration excludes is given back. If anything in it is wrong, or cannot
/// change while the agent runs (`socket`, `state_dir` and `[probes]`), nothing changes: every reason is shown, and the exit
/// code is 1. `systemctl reload justitia` does the same; on SIGHUP the reasons are in the log alone.
///
/// The agent reads the file that it was started with. --config says where its socket is, if that is not the default one.
#[derive(Args)]
pub(crate) struct Reload {
    #[command(flatten)]
    config: ConfigArgs,
}

/// Restore a knob, and have the running agent leave it as it is.
///
/// It is not written again until the agent ends, or `justitia take` gives it back. A memory.low above 0 counts as a minimum as far as the cgroups above have one.
#[derive(Args)]
pub(crate) struct Release {
    #[command(flatten)]
    knob: KnobArgs,
}

/// Have the running agent write a knob that it has left to another writer, or given up.
///
/// What stands there now stays until the agent needs the knob, and is restored when it needs it no more, at its end at the latest. `justitia status` and `justitia explain` list such knobs.
#[derive(Args)]
pub(crate) struct Take {
    #[command(flatten)]
    knob: KnobArgs,
}

/// One knob.
#[derive(Args)]
struct KnobArgs {
    /// Its file below the cgroup mount, like system.slice/db.service/memory.low; of a disk's line with the device: "db/io.weight 8:0"
    knob: String,
    #[command(flatten)]
    config: ConfigArgs,
}

pub(crate) fn release(args: &Release) -> anyhow::Result<ExitCode> {
    let knob = args.knob.knob.clone();
    end(
        ask(&args.knob.config, &Request::Release { knob })?,
        "nothing was released",
    )
}

pub(crate) fn take(args: &Take) -> anyhow::Result<ExitCode> {
    let knob = args.knob.knob.clone();
    end(
        ask(&args.knob.config, &Request::Take { knob })?,
        "nothing was taken",
    )
}

pub(crate) fn reload(args: &Reload) -> anyhow::Result<ExitCode> {
    let answer = ask(&args.config, &Request::Reload)?;
    end(answer, "the configuration was not changed")
}

/// Asks the agent, whatever is wrong with the configuration.
fn ask(config: &ConfigArgs, what: &Request) -> anyhow::Result<Answer> {
    let socket = Config::socket_of(config.path());
    request(&socket, what).map_err(|error| unanswered(&socket, &error))
}

/// Tells what was done; `undone` is what errors mean.
fn end(answer: Answer, undone: &str) -> anyhow::Result<ExitCode> {
    if !answer.errors.is_empty() {
        return Err(anyhow::anyhow!("{undone}:\n{}", answer.errors.join("\n")));
    }
    answer.done.into_iter().for_each(out::tell);
    Ok(ExitCode::SUCCESS)
}
