//! The `justitia` command, as a library: the lab writes its man pages, completions and reference document.

#![deny(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod agent;
mod cache;
mod control;
mod curves;
mod doctor;
mod explain;
mod guest;
mod host;
mod log;
mod record;
mod source;
mod top;
mod watch;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Makes I/O weights hold for what applications see.
///
/// A cgroup's weight is its io.weight or io.bfq.weight, as `docker run --blkio-weight` and systemd's `IOWeight=` set it. The
/// kernel applies it to a disk's queue. Justitia applies it to the page cache, too, and on request to buffered writes.
///
/// Start with `justitia doctor`: it says what this host supports. Then `sudo justitia run --observe` changes nothing and
/// shows in `justitia status` what would be done. `sudo justitia run` does it, and restores every value when it ends.
#[derive(Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(agent::Run),
    Reload(control::Reload),
    Release(control::Release),
    Take(control::Take),
    Status(agent::Status),
    Top(top::Top),
    Explain(explain::Explain),
    Record(record::Record),
    Curve(curves::Curve),
    Whatif(curves::Whatif),
    Reset(agent::Reset),
    Doctor(doctor::Doctor),
    Cache(cache::Cache),
    Guest(guest::Guest),
    Host(host::Host),
    #[command(hide = true)]
    Watchdog(agent::Watchdog),
    #[command(hide = true)]
    RechargeHelper(agent::RechargeHelper),
}

/// The definition of its command line.
#[must_use]
pub fn definition() -> clap::Command {
    Cli::command()
}

/// Does what the arguments of this process say.
#[must_use]
pub fn main() -> ExitCode {
    justitia_common::command::end(match Cli::parse().command {
        Command::Run(args) => agent::run(&args),
        Command::Reload(args) => control::reload(&args),
        Command::Release(args) => control::release(&args),
        Command::Take(args) => control::take(&args),
        Command::Status(args) => agent::status(&args),
        Command::Top(args) => top::top(&args),
        Command::Explain(args) => explain::explain(&args),
        Command::Record(args) => record::record(&args),
        Command::Curve(args) => curves::curve(&args),
        Command::Whatif(args) => curves::whatif(&args),
        Command::Reset(args) => agent::reset(&args),
        Command::Watchdog(args) => agent::watchdog(&args),
        Command::RechargeHelper(args) => agent::recharge_helper(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Guest(args) => guest::guest(&args),
        Command::Host(args) => host::host(&args),
        Command::Cache(args) => cache::cache(&args).map(|()| ExitCode::SUCCESS),
    })
}
