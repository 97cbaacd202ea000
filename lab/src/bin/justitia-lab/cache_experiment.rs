//! `justitia-lab cache experiment`.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use clap::{Args, ValueEnum};
use justitia_cache_lab::experiment::{self as experiments, Experiment as Definition, Measured};
use justitia_lab::cache_experiment::{describe_run, results, write_results};

use justitia_common::command::out;

/// Repeat DoubleDecker's experiments in this process, or run one of your own.
///
/// An experiment is a .toml file: VMs, containers with memory and SSD weights, what runs in them (models of Filebench's
/// webserver, webproxy, varmail and videoserver, each behind a page cache that puts what it evicts), ways of dividing the
/// cache that are compared, changes of weights meanwhile. `justitia-lab report --results DIRECTORY` makes a page of the
/// results.
#[derive(Args)]
pub(crate) struct Experiment {
    /// Which: a name from --list, or the path of a .toml file; all that are compiled in without
    experiments: Vec<String>,
    /// Lists the experiments that are compiled in
    #[arg(long)]
    list: bool,
    /// What a read of the disk takes, milliseconds, several times or with commas
    #[arg(long, value_delimiter = ',', value_parser = delay, default_value = "0.1,1,8")]
    delay: Vec<Duration>,
    /// How often each configuration runs
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    repeat: u32,
    /// The seed of the first repeat; the next has the next
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How time passes: virtual (each thread has a clock of its own, nobody sleeps), or real (threads that sleep)
    #[arg(long, value_enum, default_value_t = Clock::Virtual)]
    clock: Clock,
    /// What a file operation takes besides cache and disk, microseconds [default: the experiment's]
    #[arg(long, value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    operation_us: Option<u32>,
    /// Directory for the file of the SSD store
    #[arg(long, default_value = "/var/tmp")]
    directory: PathBuf,
    /// Directory into which a file of results is written for each experiment and delay
    #[arg(long)]
    results: Option<PathBuf>,
    /// Runs at a time; with the real clock one is best [default: one for each processor]
    #[arg(long)]
    jobs: Option<usize>,
    /// Print the results as JSON instead of tables
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Clock {
    Virtual,
    Real,
}

/// Milliseconds, 0 to a minute.
fn delay(text: &str) -> Result<Duration, String> {
    let milliseconds: f64 = text.parse().map_err(|e| format!("{e}"))?;
    if !(0.0..=60_000.0).contains(&milliseconds) {
        return Err("expected from 0 to 60000 milliseconds".to_owned());
    }
    Ok(Duration::from_micros(justitia_share::num::to_u64(
        milliseconds * 1000.0,
    )))
}

pub(crate) fn experiment(args: &Experiment) -> anyhow::Result<()> {
    if args.list {
        for experiment in Definition::shipped()? {
            out::line(format_args!("{:20} {}", experiment.name, experiment.title));
        }
        return Ok(());
    }
    // Everything is checked before anything runs.
    let mut experiments = if args.experiments.is_empty() {
        Definition::shipped()?
    } else {
        let found = args.experiments.iter().map(|name| Definition::find(name));
        found.collect::<Result<_, _>>()?
    };
    if let Some(micros) = args.operation_us {
        for experiment in &mut experiments {
            experiment.operation_us = micros;
        }
    }
    let mut all = Vec::new();
    let mut wrong = 0.0;
    for experiment in &experiments {
        let measured = measure(experiment, args)?;
        let found = measured.iter().filter_map(|run| run.values.get("wrong"));
        wrong += found.sum::<f64>();
        for delay in &args.delay {
            let milliseconds = delay.as_secs_f64() * 1000.0;
            let results = results(experiment, milliseconds, args.seed, &measured)?;
            if let Some(directory) = &args.results {
                let path = write_results(&results, directory)?;
                out::note(format_args!("results: {}", path.display()));
            }
            if !args.json {
                let one = std::slice::from_ref(&results);
                out::tell(justitia_lab::report::terminal(one));
            }
            all.push(results);
        }
    }
    if args.json {
        out::line(out::json(&all)?);
    }
    if wrong > 0.0 {
        bail!("{wrong} blocks were not what the guest had written or the disk held");
    }
    Ok(())
}

fn measure(experiment: &Definition, args: &Experiment) -> anyhow::Result<Vec<Measured>> {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let (clock, jobs) = match args.clock {
        Clock::Virtual => (experiments::Clock::Virtual, processors),
        Clock::Real => (experiments::Clock::Real, 1),
    };
    let options = experiments::Options {
        delays: args.delay.clone(),
        repeat: args.repeat,
        seed: args.seed,
        clock,
        directory: args.directory.clone(),
        jobs: args.jobs.unwrap_or(jobs),
    };
    let progress = |run: &Measured| {
        let line = describe_run(run);
        out::note(format_args!("{}: {line}", experiment.name));
    };
    Ok(experiments::run(experiment, &options, &progress)?)
}
