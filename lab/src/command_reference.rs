//! Man pages, shell completions and reference documents, from the definitions in the code.

use std::path::Path;

use anyhow::Context;
use clap::{Command, ValueEnum};
use clap_complete::{Shell, generate_to};
use clap_markdown::{MarkdownOptions, help_markdown_command_custom};

/// Writes those of the program of this name into a directory: `man/*.1`, `completions/*` and `reference/*.md`. `cli`: the
/// name of the document about its command line. `documents`: names and texts of others.
///
/// # Errors
/// What cannot be written.
pub fn write(
    into: &Path,
    name: &'static str,
    program: &Command,
    cli: &str,
    documents: &[(&str, String)],
) -> anyhow::Result<()> {
    let [man, completions, reference] =
        ["man", "completions", "reference"].map(|name| into.join(name));
    for dir in [&man, &completions, &reference] {
        std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    }
    let shown = shown(name, program);
    clap_mangen::generate_to(shown.clone(), &man).context("writing man pages")?;
    for shell in Shell::value_variants() {
        generate_to(*shell, &mut shown.clone(), name, &completions)
            .with_context(|| format!("writing completions of {shell}"))?;
    }
    for (document, text) in documents {
        write_document(&reference, document, text)?;
    }
    write_document(&reference, cli, &markdown(&shown))
}

fn write_document(dir: &Path, name: &str, text: &str) -> anyhow::Result<()> {
    let file = dir.join(name);
    std::fs::write(&file, text).with_context(|| format!("writing {}", file.display()))
}

/// The program without its hidden subcommands.
fn shown(name: &'static str, program: &Command) -> Command {
    let visible = program.get_subcommands().filter(|c| !c.is_hide_set());
    Command::new(name)
        .version(env!("CARGO_PKG_VERSION"))
        .about(program.get_about().cloned().unwrap_or_default())
        .long_about(program.get_long_about().cloned().unwrap_or_default())
        .subcommand_required(true)
        .disable_help_subcommand(true)
        .subcommands(visible.cloned())
}

/// The reference document of the command line.
fn markdown(program: &Command) -> String {
    let options = MarkdownOptions::new()
        .title("Command line".to_owned())
        .show_footer(false);
    let text = help_markdown_command_custom(program, &options);
    let made = "<!-- Made by `make reference` from the definitions of --help; do not edit. -->";
    let text = text.replacen(
        "# Command line\n",
        &format!("# Command line\n\n{made}\n"),
        1,
    );
    let lines = text.lines().map(str::trim_end);
    lines.collect::<Vec<_>>().join("\n") + "\n"
}
