//! `run`, `status`, `reset`, `doctor`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use justitia_agent::config::{Checked, Config};
use justitia_agent::enforce::guard::{SILENCE, guard as watch, wake};
use justitia_agent::enforce::ledger::{Back, LedgerError, Returned, reset as give_back};
use justitia_api::client::ask;
use justitia_api::escape::plain_lines;
use justitia_kernel::cgroup::CgroupFs;

use crate::out;

mod check;
mod table;

/// The configuration, where one is wanted.
#[derive(Args)]
pub struct ConfigArgs {
    /// Configuration file [default: /etc/justitia/justitia.toml, if it exists]; FILE.d/*.toml are read too
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ConfigArgs {
    pub fn load(&self) -> anyhow::Result<Config> {
        Ok(self.check()?.config)
    }

    fn check(&self) -> anyhow::Result<Checked> {
        Config::check(self.config.as_deref()).map_err(|errors| {
            let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
            anyhow::anyhow!("the configuration has errors:\n{}", lines.join("\n"))
        })
    }
}

/// Make the page cache follow the weights, until stopped.
///
/// Weights are read from io.weight (io.bfq.weight where BFQ schedules the disks); a cgroup without one weighs
/// 100. While there is room for all, nothing is taken from anyone. On SIGTERM or SIGINT every knob returns to
/// what stood before; after a SIGKILL the next start does it, or `justitia reset`.
///
/// A configuration is optional: /etc/justitia/justitia.toml as it is packaged (packaging/justitia.toml in the source) shows
/// every key with its default and what it means. Of two [[tenant]] rules that match a cgroup and speak of the same matter
/// the later one wins; drop-ins come after the file, in the order of their names.
///
/// JUSTITIA_LOG sets what is logged: error, warn, info (the default), debug (a line for every decision), trace.
#[derive(Args)]
pub struct Run {
    /// Change nothing; `justitia status` shows what would be done, and why
    #[arg(long)]
    observe: bool,
    /// Check the configuration: say what is read, every error and what is odd with file and line, and exit
    #[arg(long)]
    check_config: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Show what the running agent sees and does: weight, entitlement and usage of every tenant.
#[derive(Args)]
pub struct Status {
    /// As JSON, with everything that the agent tells
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Give back every knob that a killed agent has left, exactly as it stood before.
///
/// A knob that someone else has written since is theirs, and left. What could not be given back, or not be read of a
/// damaged ledger, is told, and the exit code is 1. Of the configuration only `state_dir` matters, where the ledger is; what
/// is wrong with the rest is told, and stops nothing.
#[derive(Args)]
pub struct Reset {
    /// If the ledger is damaged: give back what is still certain, and put the file aside
    #[arg(long)]
    damaged: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Watch over a running agent's limits: started by the agent itself.
#[derive(Args)]
pub struct Guard {
    /// The state directory of the agent
    state: std::path::PathBuf,
    /// The agent's process
    agent: u32,
}

/// Read a file on behalf of the cgroup that this process is in: started by the agent itself.
#[derive(Args)]
pub struct ReadFor {
    /// The agent's process
    parent: u32,
}

pub fn read_for(args: &ReadFor) -> anyhow::Result<ExitCode> {
    justitia_agent::enforce::recharge::read_for(args.parent)?;
    Ok(ExitCode::SUCCESS)
}

pub fn guard(args: &Guard) -> anyhow::Result<ExitCode> {
    let fs = CgroupFs::discover()?;
    let told = |done: Result<Vec<_>, LedgerError>| match done {
        Ok(returned) if returned.is_empty() => {}
        Ok(returned) => out::note(format_args!(
            "justitia guard: the agent is silent or gone; {} limits were looked after",
            returned.len()
        )),
        Err(error) => out::note(format_args!(
            "justitia guard: {}",
            plain_lines(&error.to_string())
        )),
    };
    let heart = std::io::stdin();
    let wake = || wake(args.agent);
    watch(&fs, &args.state, heart.lock(), SILENCE, wake, told)?;
    Ok(ExitCode::SUCCESS)
}

pub fn run(args: &Run) -> anyhow::Result<ExitCode> {
    let checked = args.config.check()?;
    if args.check_config {
        let state = checked.config.state_on_disk();
        if let Some(refused) = state.as_ref().filter(|state| state.refused()) {
            return Err(refused.clone().into());
        }
        out::print(check::told(&checked, state.as_ref()));
        return Ok(ExitCode::SUCCESS);
    }
    let config = checked.config;
    crate::log::start();
    for warning in &checked.warnings {
        tracing::warn!("{warning}");
    }
    justitia_agent::run(config, args.observe)?;
    Ok(ExitCode::SUCCESS)
}

pub fn status(args: &Status) -> anyhow::Result<ExitCode> {
    let config = args.config.load()?;
    let status = ask(&config.socket).map_err(|error| {
        anyhow::anyhow!(
            "no agent answers at {} ({error}): start one (as root: `sudo justitia run --observe` changes nothing), or \
             look with `sudo justitia top`",
            config.socket.display()
        )
    })?;
    if args.json {
        out::line(out::json(&status)?);
    } else {
        out::print(table::status(&status));
    }
    Ok(ExitCode::SUCCESS)
}

pub fn reset(args: &Reset) -> anyhow::Result<ExitCode> {
    // What is wrong with the rest of the configuration is no reason to leave anybody limited.
    let (state, errors) = Config::state_dir_of(args.config.config.as_deref());
    for error in errors {
        out::note(format_args!("the configuration: {error}"));
    }
    let fs = CgroupFs::discover()?;
    let done = give_back(&fs, &state, args.damaged)?;
    let damage = done.damage.as_ref();
    if args.json {
        let rows = done.returned.iter().map(table::returned_json);
        let rows: Vec<_> = rows.chain(damage.map(table::damage_json)).collect();
        out::tell(out::json(&rows)?);
    } else if done.returned.is_empty() && damage.is_none() {
        out::tell("nothing to give back");
    } else {
        let rows = done.returned.iter();
        rows.for_each(|r| out::tell(table::returned(r)));
    }
    let failed = |r: &&Returned| matches!(r.back, Back::Failed { .. });
    let failed = done.returned.iter().filter(failed).count();
    let failed = (failed > 0).then(|| {
        format!("{failed} knobs could not be given back; they stay in the ledger for the next try")
    });
    let wrong: Vec<String> = failed
        .into_iter()
        .chain(damage.map(table::damage))
        .collect();
    if wrong.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    Err(anyhow::anyhow!(wrong.join("\n")))
}
