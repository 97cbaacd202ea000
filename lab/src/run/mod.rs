//! Running an experiment: every configuration as often as asked, each time in a fresh guest on a fresh
//! disk, in random order.

mod attempt;
mod options;
mod order;
mod ready;
mod results;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::experiment::{Configuration, Experiment};
use crate::host::LabDir;
use crate::protocol::{Measurements, RunRequest};
use crate::report::schema::{Outcome, Results, Run};
pub use options::{Options, Progress};

/// Runs an experiment and writes the results as it goes.
///
/// # Errors
/// Nothing can be run at all. A run that fails is part of the results.
pub fn run(
    experiment: &Experiment,
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<(Results, PathBuf)> {
    let configurations = configurations(experiment, options)?;
    let repeat = options.repeat.unwrap_or(experiment.repeat);
    ensure!(repeat > 0, "expected at least one repeat, found 0");
    let lab = LabDir::find()?;
    ready::check(experiment, options, &lab)?;
    let mut results = results::empty(experiment, &configurations, options)?;
    let order = order::order(&configurations, &options.mglru, repeat, options.seed);
    let begin = Instant::now();
    for (number, (configuration, mglru, repeat)) in order.iter().enumerate() {
        let label = match mglru {
            None => configuration.label.clone(),
            Some(true) => format!("{}, MGLRU on", configuration.label),
            Some(false) => format!("{}, MGLRU off", configuration.label),
        };
        let left = order::left(begin.elapsed(), number, order.len());
        let title = format!(
            "{} [{}/{}] {label}, repeat {}{left}",
            experiment.name,
            number + 1,
            order.len(),
            repeat + 1,
        );
        let request = || RunRequest {
            experiment: experiment.clone(),
            configuration: configuration.clone(),
            mglru: *mglru,
            // The same for all configurations of a repeat: they get the same files.
            seed: options.seed.wrapping_add(u64::from(*repeat)) % (1 << 31),
        };
        let outcome = attempt::run_once(&request, options, &mut results.machine, &title, progress);
        results.runs.push(match outcome {
            Ok(measurements) => measured(&configuration.id, *repeat, measurements),
            Err(error) => {
                progress.note(&format!("{title}: failed: {error:#}"));
                Run {
                    mglru: *mglru,
                    outcome: attempt::failed(&error),
                    ..measured(&configuration.id, *repeat, Measurements::default())
                }
            }
        });
        results::write(&results, &lab)?;
    }
    let path = results::write(&results, &lab)?;
    Ok((results, path))
}

/// The configurations that the options name; the experiment's own if they name none.
fn configurations(experiment: &Experiment, options: &Options) -> Result<Vec<Configuration>> {
    match options.configurations.as_slice() {
        [] => experiment
            .configurations
            .iter()
            .map(|id| Configuration::find(id).map_err(anyhow::Error::msg))
            .collect(),
        chosen => Ok(chosen.to_vec()),
    }
}

fn measured(configuration: &str, repeat: u32, measurements: Measurements) -> Run {
    Run {
        configuration: configuration.to_owned(),
        mglru: measurements.mglru,
        repeat,
        outcome: Outcome::Measured,
        tenants: measurements.tenants,
        values: measurements.values,
        timeline: measurements.timeline,
        curves: measurements.curves,
    }
}

/// A random seed, short enough to be typed again.
#[must_use]
pub fn random_seed() -> u64 {
    fastrand::u64(1..1_000_000)
}

/// Whether a run did not measure what it should.
#[must_use]
pub fn any_failed(results: &Results) -> bool {
    results
        .runs
        .iter()
        .any(|run| run.outcome != Outcome::Measured)
}
