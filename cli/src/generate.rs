//! Man pages, shell completions and the reference documents, from the definitions that the program itself uses.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Command, ValueEnum};
use clap_complete::{Shell, generate_to};
use clap_markdown::{MarkdownOptions, help_markdown_command_custom};
use justitia_agent::config::reference::markdown as configuration;
use justitia_agent::report::metrics::reference::markdown as metrics;
use justitia_lab::experiment::reference::markdown as experiment;

/// Write man pages, shell completions and reference documents, for packagers.
#[derive(Args)]
pub(crate) struct Generate {
    /// The directory to write into: man/*.1, completions/* and reference/*.md
    #[arg(value_name = "DIR")]
    into: PathBuf,
}

pub(crate) fn generate(args: &Generate, command: &Command) -> anyhow::Result<ExitCode> {
    let [man, completions, reference] =
        ["man", "completions", "reference"].map(|name| args.into.join(name));
    for dir in [&man, &completions, &reference] {
        std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    }
    let shown = shown(command);
    clap_mangen::generate_to(shown.clone(), &man).context("writing man pages")?;
    for shell in Shell::value_variants() {
        generate_to(*shell, &mut shown.clone(), "justitia", &completions)
            .with_context(|| format!("writing completions of {shell}"))?;
    }
    write(&reference, "configuration.md", &configuration())?;
    write(&reference, "metrics.md", &metrics())?;
    write(&reference, "experiment.md", &experiment())?;
    write(&reference, "cli.md", &cli(&shown))?;
    Ok(ExitCode::SUCCESS)
}

fn write(dir: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let file = dir.join(name);
    std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))
}

/// The command without its hidden subcommands.
fn shown(command: &Command) -> Command {
    let visible = command.get_subcommands().filter(|c| !c.is_hide_set());
    Command::new("justitia")
        .version(env!("CARGO_PKG_VERSION"))
        .about(command.get_about().cloned().unwrap_or_default())
        .long_about(command.get_long_about().cloned().unwrap_or_default())
        .subcommand_required(true)
        .disable_help_subcommand(true)
        .subcommands(visible.cloned())
}

/// `docs/reference/cli.md`.
fn cli(command: &Command) -> String {
    let options = MarkdownOptions::new()
        .title("Command line".to_owned())
        .show_footer(false);
    let text = help_markdown_command_custom(command, &options);
    let made = "<!-- Made by `make reference` from the definitions of --help; do not edit. -->";
    let text = text.replacen(
        "# Command line\n",
        &format!("# Command line\n\n{made}\n"),
        1,
    );
    let lines = text.lines().map(str::trim_end);
    lines.collect::<Vec<_>>().join("\n") + "\n"
}
