//! The `justitia-lab` command.

#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod bench;
mod cache_experiment;
mod vm;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use justitia_agent::{config, status::metrics};
use justitia_lab::{command_reference, experiment};

/// Experiments on a stock kernel in a virtual machine, and with the hypervisor cache.
///
/// Kernels, images and results are kept in $JUSTITIA_LAB_DIR [default: `lab` in the target directory of the build that
/// runs, else justitia/lab in $XDG_CACHE_HOME or ~/.cache]; all of it can be deleted at any time.
///
/// An experiment is a .toml file. With base = "NAME" it takes everything from another experiment: a shipped one, or a .toml
/// file in the same directory. Each of its own keys replaces that of the base; of a table ([disk], [workload]) single keys
/// are replaced, an array ([[tenant]], [[phase]]) as a whole.
#[allow(
    rustdoc::broken_intra_doc_links,
    reason = "the help's text: brackets are those of TOML"
)]
#[derive(Parser)]
#[command(name = "justitia-lab", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(vm::Run),
    Ordinary(vm::Ordinary),
    /// Lists the experiments, what they compare, and how long each takes.
    List,
    Show(vm::Show),
    Report(vm::Report),
    Shell(vm::Shell),
    /// Measures the hypervisor cache.
    #[command(subcommand)]
    Cache(Cache),
    /// Writes man pages, shell completions and reference documents of `justitia` and `justitia-lab`, for packagers.
    #[command(hide = true)]
    Generate {
        /// The directory to write into: man/*.1, completions/* and reference/*.md
        #[arg(value_name = "DIR")]
        into: PathBuf,
    },
}

#[derive(Subcommand)]
enum Cache {
    Bench(bench::Bench),
    Experiment(cache_experiment::Experiment),
}

fn main() -> ExitCode {
    let done = |done: anyhow::Result<()>| done.map(|()| ExitCode::SUCCESS);
    justitia_common::command::end(match Cli::parse().command {
        Command::Run(args) => vm::run(&args),
        Command::Ordinary(args) => vm::ordinary(&args),
        Command::List => vm::list(),
        Command::Show(args) => vm::show(&args),
        Command::Report(args) => vm::render(&args),
        Command::Shell(args) => vm::shell(&args),
        Command::Cache(Cache::Bench(args)) => done(bench::bench(&args)),
        Command::Cache(Cache::Experiment(args)) => done(cache_experiment::experiment(&args)),
        Command::Generate { into } => done(generate(&into)),
    })
}

/// Writes the documents of both programs.
fn generate(into: &Path) -> anyhow::Result<()> {
    let documents = [
        ("configuration.md", config::reference::markdown()),
        ("metrics.md", metrics::markdown()),
    ];
    let lab = [("experiment.md", experiment::reference::markdown())];
    command_reference::write(
        into,
        "justitia",
        &justitia::definition(),
        "cli.md",
        &documents,
    )?;
    command_reference::write(into, "justitia-lab", &Cli::command(), "lab.md", &lab)
}
