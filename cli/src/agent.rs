//! `run`, `status`, `reset`, `doctor`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use justitia_agent::config::{Checked, Config};
use justitia_agent::knobs::reset as reset_knobs;
use justitia_agent::knobs::watchdog::{TIMEOUT, interrupt, watch};
use justitia_agent::knobs::{KnobStoreError, preview_reset};
use justitia_api::Status as AgentStatus;
use justitia_api::client::ask;
use justitia_api::control::is_starting;
use justitia_api::escape::plain_lines;
use justitia_kernel::cgroup::CgroupFs;

use justitia_common::command::out;
use justitia_common::toml_file::TomlError;

mod check;
mod status;
mod table;

/// The configuration, where one is wanted.
#[derive(Args)]
pub(crate) struct ConfigArgs {
    /// Configuration file [default: /etc/justitia/justitia.toml, if it exists]; FILE.d/*.toml are read after it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl ConfigArgs {
    pub(crate) fn load(&self) -> anyhow::Result<Config> {
        Ok(self.check()?.config)
    }

    /// The file that is named, if one is.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    fn check(&self) -> anyhow::Result<Checked> {
        Config::check(self.path()).map_err(wrong)
    }
}

/// The error of a configuration with these errors.
fn wrong(errors: Vec<TomlError>) -> anyhow::Error {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    anyhow::anyhow!("the configuration has errors:\n{}", lines.join("\n"))
}

/// Divide the page cache by the cgroups' weights, until stopped.
///
/// Each cgroup with the memory controller is a tenant. Its weight is that of a [[tenant]] rule of the configuration, else what
/// was declared to its container's runtime or in its unit, else that of io.bfq.weight or io.weight, else 100. While memory is
/// free, nothing is reclaimed. When it gets short, page cache is reclaimed from tenants that hold more than their entitlement
/// (what their weights give them of it); memory.low protects what the others use of theirs from the kernel's own reclaim.
///
/// On SIGTERM or SIGINT every knob gets its original value back, and so when the terminal is closed at which it was started.
/// After a SIGKILL the next start restores them, or `justitia reset`. On SIGHUP the configuration is read again, as by
/// `justitia reload`.
///
/// A configuration is optional: /etc/justitia/justitia.toml shows every key with its default. `--check-config` says every
/// error in it. Only root may be able to write it.
///
/// JUSTITIA_LOG sets what is logged: error, warn, info (the default), debug (a line for every decision), trace.
#[derive(Args)]
pub(crate) struct Run {
    /// Change nothing; `justitia status` and `justitia explain` show what would be done, and why
    #[arg(long)]
    observe: bool,
    /// Check the configuration and exit: list the files that are read, and each error and warning with file and line
    #[arg(long)]
    check_config: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Show what the running agent knows of every tenant: weight, page cache, entitlement, bandwidth.
///
/// A container is shown by its name, a pod by its namespace and name, a virtual machine and a unit by its name, any other
/// cgroup by its path; `--json` and `explain` have the paths. FROM says where the weight comes from: a rule of the
/// configuration, what the container's or machine's runtime was told, IOWeight= of the unit, the file of the cgroup, that of
/// its only child; `-`: nobody has set one. On a narrow terminal columns are left out: first PROTECTED and RECLAIMED, then PV,
/// IMAGE, FROM, WRITE/s and READ/s. A pipe gets all of them.
///
/// CACHE is the page cache that a tenant holds, WSS its working set size: the cache that it uses again and again (`-`: not
/// known). ENTITLED is its entitlement: the cache that its weight entitles it to. EXCESS is the cache above its entitlement: it
/// is reclaimed when memory is short. PROTECTED is the cache that memory.low keeps from the kernel's reclaim, for an inner node
/// the sum of its leaves'. RECLAIMED is what the agent has reclaimed. READ/s and WRITE/s are what applications read and wrote,
/// from the cache or the disk; HIT% is the part of the reads that the cache served.
///
/// A tenant is backlogged if in the last 10 s it wanted more I/O than it got: docs/guide/operate.md (Terms) says how that is
/// known, `justitia explain TENANT` what it was. An inner node is backlogged if a leaf below it is. PV is the mean distance of
/// the bytes that the backlogged tenants below read and wrote from what their weights say; 0 is exact. Without `[io]` nothing
/// divides these bytes.
#[derive(Args)]
pub(crate) struct Status {
    /// As JSON, with all fields
    #[arg(long)]
    json: bool,
    /// Tenants without process and cache, too, and the cgroups that runtimes make inside containers and machines
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Restore the knobs that a killed agent has left to their original values.
///
/// A knob that another writer has set since is left. Knobs that could not be restored, lines of a corrupt knob journal, and
/// records of a newer version, which are kept, are listed, and the exit code is 1. Of the configuration only `state_dir` is used, the directory of the journal; errors in the
/// rest are shown and ignored.
#[derive(Args)]
pub(crate) struct Reset {
    /// If the journal is corrupt: restore the knobs whose entries are intact, and move the file aside
    #[arg(long, alias = "damaged")]
    salvage: bool,
    /// Change nothing; list what would be restored
    #[arg(long)]
    dry_run: bool,
    /// As JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Restore the limits of an agent that hangs or is gone: started by the agent itself.
#[derive(Args)]
pub(crate) struct Watchdog {
    /// The state directory of the agent
    state: std::path::PathBuf,
    /// The agent's process
    agent: u32,
}

/// Read a file from within a cgroup, which is then charged for its pages: started by the agent itself.
#[derive(Args)]
pub(crate) struct RechargeHelper {
    /// The agent's process
    parent: u32,
}

pub(crate) fn recharge_helper(args: &RechargeHelper) -> anyhow::Result<ExitCode> {
    justitia_agent::recharge::run_helper(args.parent)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn watchdog(args: &Watchdog) -> anyhow::Result<ExitCode> {
    let fs = CgroupFs::discover()?;
    let report = |done: Result<Vec<_>, KnobStoreError>| match done {
        Ok(restored) if restored.is_empty() => {}
        Ok(restored) => out::note(format_args!(
            "justitia watchdog: the agent hangs or is gone; {} knobs were checked and restored",
            restored.len()
        )),
        Err(error) => out::note(format_args!(
            "justitia watchdog: {}",
            plain_lines(&error.to_string())
        )),
    };
    let pipe = std::io::stdin();
    let interrupt = || interrupt(args.agent);
    watch(&fs, &args.state, pipe.lock(), TIMEOUT, interrupt, report)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn run(args: &Run) -> anyhow::Result<ExitCode> {
    // What it says is done with root's power.
    let checked = Config::check_owned(args.config.path()).map_err(wrong)?;
    if args.check_config {
        let state = checked.config.state_on_disk();
        if let Some(refused) = state.as_ref().filter(|state| state.refused()) {
            return Err(refused.clone().into());
        }
        out::print(check::text(&checked, state.as_ref()));
        return Ok(ExitCode::SUCCESS);
    }
    let config = checked.config;
    crate::log::start();
    for warning in &checked.warnings {
        tracing::warn!("{warning}");
    }
    justitia_agent::run(config, args.config.path(), args.observe)?;
    Ok(ExitCode::SUCCESS)
}

/// Asks the agent. One that is starting is waited for, which is said.
pub(crate) fn ask_agent(socket: &Path) -> std::io::Result<AgentStatus> {
    note_start(socket);
    ask(socket)
}

/// Says that the agent is starting, if so.
pub(crate) fn note_start(socket: &Path) {
    if is_starting(socket) {
        out::note("justitia: the agent is starting: waiting for its answer");
    }
}

/// Why there is no answer, and what to do.
pub(crate) fn unanswered(socket: &Path, error: &std::io::Error) -> anyhow::Error {
    if is_starting(socket) {
        return anyhow::anyhow!(
            "the agent at {} is starting: give the command again in a moment",
            socket.display()
        );
    }
    let socket = socket.display();
    if error.kind() == std::io::ErrorKind::PermissionDenied {
        return anyhow::anyhow!(
            "an agent may run, but only root may ask it at {socket} ({error}): give the command with sudo"
        );
    }
    if error.kind() == std::io::ErrorKind::TimedOut {
        return anyhow::anyhow!(
            "the agent at {socket} does not answer: {error}. Ask again when the host is less busy; if it stays so, its log \
             may say why (`journalctl -u justitia`)"
        );
    }
    anyhow::anyhow!(
        "no agent answers at {socket} ({error}): start one (as root: `sudo justitia run --observe` changes nothing), or look \
         with `sudo justitia top`"
    )
}

pub(crate) fn status(args: &Status) -> anyhow::Result<ExitCode> {
    let config = args.config.load()?;
    let status = ask_agent(&config.socket).map_err(|error| unanswered(&config.socket, &error))?;
    if args.json {
        out::line(out::json(&status)?);
    } else {
        out::print(page(&status, args.all));
    }
    Ok(ExitCode::SUCCESS)
}

/// A status as text, as wide as the terminal; `all` tenants, or those that matter.
pub(crate) fn page(status: &AgentStatus, all: bool) -> String {
    let layout = status::Layout {
        all,
        width: justitia_view::table::terminal_width(),
    };
    status::text(status, layout)
}

pub(crate) fn reset(args: &Reset) -> anyhow::Result<ExitCode> {
    // Errors in the rest of the configuration must not keep a limit in place.
    let (state, errors) = Config::state_dir_of(args.config.config.as_deref());
    for error in errors {
        out::note(format_args!("the configuration: {error}"));
    }
    let fs = CgroupFs::discover()?;
    let reset = if args.dry_run {
        preview_reset
    } else {
        reset_knobs
    };
    let done = reset(&fs, &state, args.salvage)?;
    let corruption = done.corruption.as_ref();
    let unknown = done.unknown > 0;
    if args.json {
        let rows = done.restored.iter();
        let rows = rows.map(|r| table::restored_json(r, args.dry_run));
        let rows: Vec<_> = rows
            .chain(corruption.map(|found| table::corruption_json(found, args.dry_run)))
            .chain(unknown.then(|| table::unknown_json(done.unknown)))
            .collect();
        out::tell(out::json(&rows)?);
    } else if done.restored.is_empty() && corruption.is_none() && done.unknown == 0 {
        out::tell("nothing to restore");
    } else {
        let rows = done.restored.iter();
        rows.for_each(|r| out::tell(table::restored(r, args.dry_run)));
    }
    let failed = done.restored.iter().filter(|r| r.outcome.is_failed());
    let failed = failed.count();
    let failed = (failed > 0 && !args.dry_run).then(|| {
        format!(
            "{failed} knobs could not be restored; they stay in the knob journal for the next try"
        )
    });
    let errors: Vec<String> = failed
        .into_iter()
        .chain(corruption.map(|found| table::corruption(found, args.dry_run)))
        .chain(unknown.then(|| table::unknown(done.unknown)))
        .collect();
    if errors.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    Err(anyhow::anyhow!(errors.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_may_not_be_asked_is_told_from_none() {
        let text = |kind: std::io::ErrorKind| {
            unanswered(Path::new("/run/x.sock"), &kind.into()).to_string()
        };
        let denied = text(std::io::ErrorKind::PermissionDenied);
        assert!(denied.starts_with("an agent may run, but only root may ask it at /run/x.sock ("));
        let busy = text(std::io::ErrorKind::TimedOut);
        assert!(
            busy.starts_with("the agent at /run/x.sock does not answer: "),
            "{busy}"
        );
        for kind in [
            std::io::ErrorKind::NotFound,
            std::io::ErrorKind::ConnectionRefused,
        ] {
            assert!(text(kind).starts_with("no agent answers at /run/x.sock ("));
        }
    }
}
