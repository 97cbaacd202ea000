//! Man pages and shell completions, from the definitions that `--help` is made of.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Command, ValueEnum};
use clap_complete::{Shell, generate_to};

/// Write man pages and shell completions, for packagers.
#[derive(Args)]
pub struct Papers {
    /// The directory to write into: man/*.1 and completions/*
    #[arg(value_name = "DIR")]
    into: PathBuf,
}

pub fn write(args: &Papers, command: &Command) -> anyhow::Result<ExitCode> {
    let man = args.into.join("man");
    let completions = args.into.join("completions");
    for dir in [&man, &completions] {
        std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    }
    // What packagers use is no command of the users'.
    let mut shown = Command::new("justitia");
    shown = shown
        .version(env!("CARGO_PKG_VERSION"))
        .about(command.get_about().cloned().unwrap_or_default())
        .long_about(command.get_long_about().cloned().unwrap_or_default())
        .subcommand_required(true)
        .disable_help_subcommand(true)
        .subcommands(
            command
                .get_subcommands()
                .filter(|c| !c.is_hide_set())
                .cloned(),
        );
    clap_mangen::generate_to(shown.clone(), &man).context("writing man pages")?;
    for shell in Shell::value_variants() {
        generate_to(*shell, &mut shown.clone(), "justitia", &completions)
            .with_context(|| format!("writing completions of {shell}"))?;
    }
    Ok(ExitCode::SUCCESS)
}
