//! The command line, and the validated configuration that follows from it.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{Parser, ValueEnum};

use crate::personality::Personality;
use crate::scale::Scale;
use crate::start::Start;
use crate::step::Step;

/// Runs a Filebench personality, scaled, and reports as JSON lines what the application saw.
///
/// Exit status: 0 when every operation succeeded, 3 when some failed (they are in the final line
/// and on stderr), 1 when the workload could not be set up.
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "`justitia-load block --help`: requests to one file, from a block trace or at random places.\n`justitia-load memory --help`: anonymous memory. `justitia-load names --help`: lookups of names that do not exist."
)]
pub(crate) struct Args {
    /// Which workload.
    #[arg(value_enum)]
    pub personality: Personality,

    /// Directory of the file set; made if it does not exist.
    #[arg(long)]
    pub dir: PathBuf,

    /// What to do, in this order: write the files, read them one by one, run.
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["prepare", "run"])]
    pub phase: Vec<Phase>,

    /// Files in the set.
    #[arg(long)]
    pub files: Option<u32>,

    /// Mean file size in bytes; k, m, g are powers of 1024.
    #[arg(long, value_parser = parse_size)]
    pub mean_size: Option<u64>,

    /// Files that exist at the start, in per cent of the set.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub preallocated: Option<u32>,

    /// Workers (reread: one per file, whatever is given).
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub threads: Option<u32>,

    /// Largest read or write in bytes.
    #[arg(long, value_parser = parse_size)]
    pub io_size: Option<u64>,

    /// Upper bound of an append in bytes; appends are uniform below it.
    #[arg(long, default_value = "16k", value_parser = parse_size)]
    pub append_size: u64,

    /// Bound on what all workers together transfer, in bytes per second; 0 is none.
    #[arg(long, default_value = "0", value_parser = parse_size)]
    pub rate: u64,

    /// Seed of the sizes, of which files exist at the start, and of the appends.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Read and write files past the page cache, all but the log; sizes and appends become whole pages.
    #[arg(long)]
    pub direct: bool,

    /// When it begins and how long it takes.
    #[command(flatten)]
    pub times: Times,
}

/// When a run begins, how long it takes, how often it is looked at.
#[derive(Debug, clap::Args)]
pub(crate) struct Times {
    /// Length of the run in seconds; reread ends earlier when all is read.
    #[arg(long, default_value = "20", value_parser = parse_seconds)]
    pub duration: f64,

    /// Seconds before the run that are not counted, as fio's ramp_time: what settles, settles here.
    #[arg(long, default_value = "0", value_parser = parse_seconds)]
    pub ramp: f64,

    /// Seconds between two interval lines; 0 is none.
    #[arg(long, default_value = "0.25", value_parser = parse_seconds)]
    pub interval: f64,

    /// What to wait for before the run.
    #[command(flatten)]
    pub start: Start,
}

/// A part of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Phase {
    /// Write the files that should exist and do not, delete those that should not.
    Prepare,
    /// Read every file once, one after the other.
    Warm,
    /// Run the workload.
    Run,
}

/// What to do, with every default filled in and checked.
#[derive(Debug)]
pub(crate) struct Config {
    /// The command line.
    pub args: Args,
    /// The personality's scale.
    pub scale: Scale,
}

impl Config {
    /// Fills in the personality's defaults.
    ///
    /// # Errors
    /// Numbers that the personality cannot run with.
    pub(crate) fn new(args: Args) -> Result<Self> {
        let defaults = args.personality.defaults();
        let mut scale = Scale {
            files: args.files.unwrap_or(defaults.files),
            mean_size: args.mean_size.unwrap_or(defaults.mean_size),
            preallocated: args.preallocated.unwrap_or(defaults.preallocated),
            threads: args.threads.unwrap_or(defaults.threads),
            io_size: args.io_size.unwrap_or(defaults.io_size),
            directory_width: defaults.directory_width,
        };
        if args.personality == Personality::Reread {
            scale.threads = scale.files;
        }
        check(&args, &scale)?;
        Ok(Self { args, scale })
    }

    /// Whether a phase was asked for.
    pub(crate) fn does(&self, phase: Phase) -> bool {
        self.args.phase.contains(&phase)
    }
}

fn check(args: &Args, scale: &Scale) -> Result<()> {
    ensure!(scale.files > 0, "--files: expected at least 1, found 0");
    for (name, bytes) in [
        ("--io-size", scale.io_size),
        ("--append-size", args.append_size),
    ] {
        ensure!(
            (1..=1 << 30).contains(&bytes),
            "{name}: expected 1 to 1g bytes, found {bytes}"
        );
    }
    check_balance(args.personality, scale)
}

/// Every worker may have one file taken: it must find another, or wait for ever.
fn check_balance(personality: Personality, scale: &Scale) -> Result<()> {
    let steps = personality.steps();
    let Some(pair) = steps
        .iter()
        .find(|step| matches!(step, Step::Create | Step::Delete))
    else {
        ensure!(
            scale.preallocated == 100,
            "--preallocated: {} only reads its files, expected 100, found {}",
            personality.name(),
            scale.preallocated
        );
        return Ok(());
    };
    let workers = scale.threads;
    let present = u32::try_from(u64::from(scale.files) * u64::from(scale.preallocated) / 100)?;
    let absent = scale.files.saturating_sub(present);
    if *pair == Step::Create {
        ensure!(
            absent >= workers && present > 0,
            "--files: {} files of which {}% exist leave {absent} to create, expected at least one \
             for each of the {workers} workers: more files, fewer workers or a lower --preallocated",
            scale.files,
            scale.preallocated
        );
    } else {
        ensure!(
            u64::from(present) >= 2 * u64::from(workers),
            "--files: {} files of which {}% exist are {present}, expected at least two for each of \
             the {workers} workers: more files, fewer workers or a higher --preallocated",
            scale.files,
            scale.preallocated
        );
    }
    Ok(())
}

/// Bytes, with a unit of 1024.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let expected = || format!("expected bytes such as 4096, 64k, 1m or 2g, found {text:?}");
    justitia_api::size::parse(text).ok_or_else(expected)
}

/// Seconds, not negative, below a century.
pub(crate) fn parse_seconds(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|seconds: &f64| (0.0..3.2e9).contains(seconds))
        .ok_or_else(|| format!("expected seconds such as 20 or 0.25, found {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(line: &str) -> Result<Config> {
        let words = ["justitia-load"].into_iter().chain(line.split_whitespace());
        Config::new(Args::try_parse_from(words)?)
    }

    #[test]
    fn every_personality_runs_with_its_defaults() {
        for personality in Personality::value_variants() {
            config(&format!("{} --dir /d", personality.name())).unwrap();
        }
    }

    #[test]
    fn impossible_numbers_are_refused_with_the_way_out() {
        for (line, expected) in [
            ("fileserver --files 10 --threads 6", "leave 2 to create"),
            ("webproxy --files 8 --threads 4", "at least two for each"),
            ("webserver --preallocated 80", "expected 100, found 80"),
            (
                "fileserver --append-size 2g",
                "--append-size: expected 1 to",
            ),
            ("fileserver --io-size 0", "--io-size: expected 1 to"),
            ("reread --files 0", "--files: expected at least 1"),
            ("reread --mean-size 12x", "found \"12x\""),
            ("reread --mean-size 99999999999g", "expected bytes"),
            ("reread --duration -1", "unexpected argument"),
            ("reread --duration nan", "expected seconds"),
        ] {
            let error = config(&format!("{line} --dir /d")).unwrap_err().to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    #[test]
    fn sizes_and_phases() {
        let config = config("reread --dir /d --mean-size 3M --files 4 --phase warm,run").unwrap();
        assert_eq!(config.scale.mean_size, 3 << 20);
        assert_eq!(config.scale.threads, 4);
        assert!(config.does(Phase::Warm) && !config.does(Phase::Prepare));
    }
}
