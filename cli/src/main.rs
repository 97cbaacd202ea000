//! The `justitia` command.

mod agent;
mod cache;
mod lab;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Makes I/O weights hold for what applications see.
///
/// Weights are read from where people set them already (io.weight, io.bfq.weight: `docker run
/// --blkio-weight`, systemd `IOWeight=`). `justitia doctor` says what this host can do, `sudo justitia run
/// --observe` shows what would be done, `sudo justitia run` does it.
#[derive(Parser)]
#[command(version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(agent::Run),
    Status(agent::Status),
    Reset(agent::Reset),
    Doctor(agent::Doctor),
    Lab(lab::Lab),
    Cache(cache::Cache),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run(args) => agent::run(&args),
        Command::Status(args) => agent::status(&args),
        Command::Reset(args) => agent::reset(&args),
        Command::Doctor(args) => agent::doctor(&args),
        Command::Lab(args) => lab::lab(&args),
        Command::Cache(args) => cache::cache(&args).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        eprintln!("justitia: {error:#}");
        ExitCode::FAILURE
    })
}
