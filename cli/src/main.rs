//! The `justitia` command.

#![deny(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod agent;
mod cache;
mod curves;
mod doctor;
mod explain;
mod generate;
mod guest;
mod lab;
mod log;
mod out;
mod record;
mod source;
mod top;

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
    Status(agent::Status),
    Top(top::Top),
    Explain(explain::Explain),
    Record(record::Record),
    Curve(curves::Curve),
    Whatif(curves::Whatif),
    Reset(agent::Reset),
    Doctor(doctor::Doctor),
    Lab(lab::Lab),
    Cache(cache::Cache),
    Guest(guest::Guest),
    #[command(hide = true)]
    Watchdog(agent::Watchdog),
    #[command(hide = true)]
    RechargeHelper(agent::RechargeHelper),
    #[command(hide = true)]
    Generate(generate::Generate),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run(args) => agent::run(&args),
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
        Command::Lab(args) => lab::lab(&args),
        Command::Guest(args) => guest::guest(&args),
        Command::Generate(args) => generate::generate(&args, &Cli::command()),
        Command::Cache(args) => cache::cache(&args).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        out::note(format_args!("justitia: {}", error_text(&error)));
        ExitCode::FAILURE
    })
}

/// The error with its causes, each once: some say theirs themselves. Whatever they quote does nothing to a terminal.
fn error_text(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.contains(&cause) {
            let colon = if text.is_empty() { "" } else { ": " };
            text = format!("{text}{colon}{cause}");
        }
    }
    justitia_api::escape::plain_lines(&text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cause_is_told_once() {
        let refused = || anyhow::anyhow!("permission denied");
        let error = refused().context("the directory /x: permission denied");
        assert_eq!(error_text(&error), "the directory /x: permission denied");
        assert_eq!(
            error_text(&refused().context("reading y")),
            "reading y: permission denied"
        );
    }

    #[test]
    fn what_an_error_quotes_does_nothing_to_a_terminal() {
        let error = anyhow::anyhow!("no agent at /\x1b[2J\u{9b}x").context("two\nlines\u{202e}");
        assert_eq!(
            error_text(&error),
            "two\nlines\\u{202e}: no agent at /\\u{1b}[2J\\u{9b}x"
        );
    }
}
