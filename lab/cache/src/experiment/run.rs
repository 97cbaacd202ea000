//! Runs of an experiment: every configuration, delay and repeat.

use super::clock::Clock;
use super::error::ExperimentError;
use super::measured::Measured;
use super::spec::{Configuration, Experiment};
use super::world::World;
use justitia_share::num::to_f64;
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How an experiment is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// What a read of the disk takes, each.
    pub delays: Vec<Duration>,
    /// How often each configuration runs.
    pub repeat: u32,
    /// The seed of the first repeat.
    pub seed: u64,
    /// How time passes.
    pub clock: Clock,
    /// Where the SSD store's file is.
    pub directory: PathBuf,
    /// Runs at a time.
    pub jobs: usize,
}

/// One run that is to be made.
struct Job<'a> {
    configuration: &'a Configuration,
    delay: Duration,
    repeat: u32,
}

/// Runs everything; `progress` is told of each run that ended. In the order of delays, repeats, configurations.
///
/// # Errors
/// When the cache refuses something, or `options.directory` takes no files.
pub fn run(
    experiment: &Experiment,
    options: &Options,
    progress: &(dyn Fn(&Measured) + Sync),
) -> Result<Vec<Measured>, ExperimentError> {
    let mut jobs = Vec::new();
    for delay in &options.delays {
        for repeat in 0..options.repeat {
            jobs.extend(experiment.configuration.iter().map(|configuration| Job {
                configuration,
                delay: *delay,
                repeat,
            }));
        }
    }
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..options.jobs.max(1) {
            scope.spawn(|| {
                while let Some((at, job)) = take(&next, &jobs) {
                    let found = one(experiment, options, job);
                    if let Ok(found) = &found {
                        progress(found);
                    }
                    done.lock().push((at, found));
                }
            });
        }
    });
    let mut done = done.into_inner();
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, found)| found).collect()
}

fn take<'a, 'b>(next: &AtomicUsize, jobs: &'a [Job<'b>]) -> Option<(usize, &'a Job<'b>)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    jobs.get(at).map(|job| (at, job))
}

fn one(
    experiment: &Experiment,
    options: &Options,
    job: &Job<'_>,
) -> Result<Measured, ExperimentError> {
    let directory = tempfile::Builder::new()
        .prefix("justitia-experiment-")
        .tempdir_in(&options.directory);
    let directory = directory.map_err(|e| {
        ExperimentError::Refused(format!(
            "expected a directory for the SSD store in which files can be made, found {}: {e}",
            options.directory.display()
        ))
    })?;
    let ssd = directory.path().join("ssd");
    let seed = options.seed.wrapping_add(job.repeat.into());
    let world = World::new(
        experiment,
        job.configuration,
        (job.delay, options.clock == Clock::Virtual),
        seed,
        &ssd,
    )?;
    let record = options.clock.run(&world)?;
    let micros = u64::try_from(job.delay.as_micros()).unwrap_or(u64::MAX);
    let how = (to_f64(micros) / 1000.0, options.clock, job.repeat);
    Ok(Measured::new(&world, record, how))
}
