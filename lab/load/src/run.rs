//! From the configuration to the last line.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::aligned::{ALIGNMENT, Aligned};
use crate::args::{Config, Phase};
use crate::counters::{Counters, Timings};
use crate::fileset::FileSet;
use crate::measure::{Measured, spawn};
use crate::output::Line;
use crate::pace::Pacer;
use crate::sizes;
use crate::start::Start;
use crate::whole_file::read_file;
use crate::worker::{Job, Worker};

/// Does the phases. Returns whether every operation succeeded; `interrupt` ends the run.
///
/// # Errors
/// The workload cannot be set up, or its output cannot be written.
pub(crate) fn run(config: &Config, interrupt: &Arc<AtomicBool>) -> Result<bool> {
    let files = Arc::new(open(config)?);
    let content = Arc::new(content(config));
    if config.does(Phase::Prepare) {
        let bytes = content.first(u64::MAX);
        files.prepare(config.scale.preallocated, config.args.seed, bytes)?;
    }
    if config.does(Phase::Warm) {
        let mut buffer = vec![0; content.first(u64::MAX).len()];
        for index in files.indices() {
            let path = files.path(index);
            read_file(&path, &mut buffer).with_context(|| format!("read {}", path.display()))?;
        }
    }
    let start = &config.args.times.start;
    if config.does(Phase::Run) {
        // Workers would wait for a file until the end, and report that nothing failed.
        ensure!(
            files.existing() > 0,
            "expected files in {}, found none: do --phase prepare first",
            files.directory().display()
        );
        execute(config, &files, &content, start, interrupt)
    } else {
        start.ready()?;
        Ok(true)
    }
}

fn open(config: &Config) -> Result<FileSet> {
    let Config { args, scale } = config;
    let distribution = args.personality.sizes();
    let mut sizes = sizes::draw(distribution, scale.mean_size, scale.files, args.seed);
    if args.direct {
        for size in &mut sizes {
            *size = size.next_multiple_of(ALIGNMENT);
        }
    }
    FileSet::open(args.dir.join("files"), scale.directory_width, sizes)
}

/// Noise for the largest write.
fn content(config: &Config) -> Aligned {
    let largest = config.scale.io_size.max(config.args.append_size);
    Aligned::noise(&mut ChaCha8Rng::seed_from_u64(config.args.seed), largest)
}

/// The workers of a run, with what they count.
struct Crew {
    counters: Arc<Counters>,
    timings: Vec<Arc<Timings>>,
    workers: Vec<Worker>,
}

fn crew(config: &Config, files: &Arc<FileSet>, content: &Arc<Aligned>) -> Crew {
    let Config { args, scale } = config;
    let counters: Arc<Counters> = Arc::default();
    let job = Arc::new(Job {
        counters: Arc::clone(&counters),
        files: Arc::clone(files),
        steps: args.personality.steps(),
        content: Arc::clone(content),
        direct: args.direct,
        io_size: scale.io_size,
        append_size: args.append_size,
        log: args.dir.join("log"),
        pacer: (args.rate > 0).then(|| Arc::new(Pacer::new(args.rate))),
        seed: args.seed,
    });
    let (timings, workers): (Vec<_>, Vec<_>) = (0..scale.threads)
        .map(|id| {
            let timings = Arc::new(Timings::default());
            let worker = Worker::new(Arc::clone(&job), Arc::clone(&timings), id);
            (timings, worker)
        })
        .unzip();
    counters.active.store(workers.len(), Ordering::Relaxed);
    Crew {
        counters,
        timings,
        workers,
    }
}

fn execute(
    config: &Config,
    files: &Arc<FileSet>,
    content: &Arc<Aligned>,
    start: &Start,
    interrupt: &Arc<AtomicBool>,
) -> Result<bool> {
    fs::create_dir_all(&config.args.dir)
        .with_context(|| format!("make {}", config.args.dir.display()))?;
    let mut crew = crew(config, files, content);
    let workers = crew.workers.drain(..);
    let go = spawn(workers.map(|worker| || worker.run()).collect())?;
    let interrupted = || interrupt.load(Ordering::Relaxed);
    if !start.wait(&interrupted)? {
        crew.counters.stop.store(true, Ordering::Relaxed);
    }
    Line::Start {
        personality: config.args.personality.name(),
        threads: config.scale.threads,
        files: files.len(),
        existing: files.existing(),
        seed: config.args.seed,
    }
    .print()?;
    go.wait();
    let measured = Measured {
        name: config.args.personality.name(),
        counters: &crew.counters,
        timings: &crew.timings,
        interrupted: &interrupted,
    };
    let last = measured.run(&config.args.times)?;
    let good = last.errors == 0;
    Line::Final(last).print()?;
    Ok(good)
}
