//! From the configuration to the last line.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::aligned::{ALIGNMENT, Aligned};
use crate::args::{Config, Phase};
use crate::counters::{Counters, Timings};
use crate::fileset::FileSet;
use crate::measure::{Measured, spawn};
use crate::output::Line;
use crate::pace::Pacer;
use crate::personality::Personality;
use crate::residency;
use crate::sizes;
use crate::start::{Start, monotonic};
use crate::step::Step;
use crate::whole_file::read_file;
use crate::worker::{Job, Worker};

/// The files of a workload.
struct Sets {
    /// Those that are written and deleted, or all.
    main: Arc<FileSet>,
    /// Videoserver's active videos.
    active: Option<Arc<FileSet>>,
}

impl Sets {
    fn all(&self) -> Vec<&FileSet> {
        let active = self.active.as_deref();
        [&*self.main].into_iter().chain(active).collect()
    }
}

/// Does the phases. Returns whether every operation succeeded; `interrupt` ends the run.
///
/// # Errors
/// The workload cannot be set up, or its output cannot be written.
pub(crate) fn run(config: &Config, interrupt: &Arc<AtomicBool>) -> Result<bool> {
    let sets = open_sets(config)?;
    let content = Arc::new(content(config));
    if config.does(Phase::Prepare) {
        let (seed, sync) = (config.args.seed, config.args.sync);
        let bytes = content.first(u64::MAX);
        sets.main
            .prepare(config.scale.preallocated, seed, bytes, sync)?;
        if let Some(active) = &sets.active {
            active.prepare(100, seed, bytes, sync)?;
        }
    }
    if config.does(Phase::Warm) {
        let mut buffer = vec![0; content.first(u64::MAX).len()];
        for set in sets.all() {
            for index in set.indices() {
                let path = set.path(index);
                read_file(&path, &mut buffer)
                    .with_context(|| format!("read {}", path.display()))?;
            }
        }
    }
    if config.does(Phase::Residency) {
        Line::residency(0.0, sample(&sets)?).print()?;
    }
    let start = config.args.times.start();
    if config.does(Phase::Run) {
        // Workers would wait for a file until the end, and report that nothing failed.
        if let Some(set) = sets.all().iter().find(|set| set.existing() == 0) {
            bail!(
                "expected files in {}, found none: do --phase prepare first",
                set.directory().display()
            );
        }
        execute(config, &sets, &content, &start, interrupt)
    } else {
        start.ready()?;
        Ok(true)
    }
}

fn open_sets(config: &Config) -> Result<Sets> {
    let personality = config.args.personality;
    let open = |name: &str, files, seed| {
        let mut sizes = sizes::draw(personality.sizes(), config.scale.mean_size, files, seed);
        if config.args.direct {
            for size in &mut sizes {
                *size = size.next_multiple_of(ALIGNMENT);
            }
        }
        let directory = config.args.dir.join(name);
        FileSet::open(directory, config.scale.directory_width, sizes).map(Arc::new)
    };
    let seed = config.args.seed;
    let active = match config.scale.active_files {
        0 => None,
        files => Some(open("active", files, seed.wrapping_add(1))?),
    };
    Ok(Sets {
        main: open("files", config.scale.files, seed)?,
        active,
    })
}

/// Noise for the largest write.
fn content(config: &Config) -> Aligned {
    let largest = config.scale.io_size.max(config.scale.append_size);
    Aligned::noise(&mut ChaCha8Rng::seed_from_u64(config.args.seed), largest)
}

fn sample(sets: &Sets) -> Result<residency::Residency> {
    residency::sample(&sets.all()).context("look at what of the files is in the page cache")
}

/// The workers of a run, with what they count.
struct Crew {
    counters: Arc<Counters>,
    timings: Vec<Arc<Timings>>,
    workers: Vec<Worker>,
}

fn crew(config: &Config, sets: &Sets, content: &Arc<Aligned>) -> Crew {
    let personality = config.args.personality;
    let mut crew = Crew {
        counters: Arc::default(),
        timings: Vec::new(),
        workers: Vec::new(),
    };
    let pacer = (config.scale.rate > 0).then(|| Arc::new(Pacer::new(config.scale.rate)));
    let job = |steps: Vec<Step>, files: &Arc<FileSet>, pacer| {
        Arc::new(Job {
            counters: Arc::clone(&crew.counters),
            files: Arc::clone(files),
            steps,
            content: Arc::clone(content),
            direct: config.args.direct,
            io_size: config.scale.io_size,
            append_size: config.scale.append_size,
            log: config.args.dir.join("log"),
            pacer,
            pause: Duration::from_secs_f64(config.scale.replace_every),
            limit: config.args.limit.unwrap_or(u64::MAX),
            seed: config.args.seed,
        })
    };
    let readers = sets.active.as_ref().unwrap_or(&sets.main);
    let main = job(personality.steps(), readers, pacer);
    let writer = match personality {
        Personality::Videoserver => Some(job(personality.writer_steps(), &sets.main, None)),
        _ => None,
    };
    let jobs = (0..config.scale.threads).map(|_| &main).chain(&writer);
    for (id, job) in (0..).zip(jobs) {
        let timings = Arc::new(Timings::default());
        crew.timings.push(Arc::clone(&timings));
        crew.workers.push(Worker::new(Arc::clone(job), timings, id));
    }
    crew.counters
        .active
        .store(crew.workers.len(), Ordering::Relaxed);
    crew
}

fn execute(
    config: &Config,
    sets: &Sets,
    content: &Arc<Aligned>,
    start: &Start,
    interrupt: &Arc<AtomicBool>,
) -> Result<bool> {
    fs::create_dir_all(&config.args.dir)
        .with_context(|| format!("make {}", config.args.dir.display()))?;
    let mut crew = crew(config, sets, content);
    let workers = crew.workers.drain(..);
    let go = spawn(workers.map(|worker| || worker.run()).collect())?;
    let interrupted = || interrupt.load(Ordering::Relaxed);
    if !start.wait(&interrupted)? {
        crew.counters.stop.store(true, Ordering::Relaxed);
    }
    Line::Start {
        personality: config.args.personality.name(),
        threads: config.scale.threads,
        files: sets.all().iter().map(|set| set.len()).sum(),
        existing: sets.all().iter().map(|set| set.existing()).sum(),
        seed: config.args.seed,
        monotonic_ns: monotonic(),
    }
    .print()?;
    go.wait();
    let measured = Measured {
        name: config.args.personality.name(),
        counters: &crew.counters,
        timings: &crew.timings,
        sample: &|| sample(sets),
        interrupted: &interrupted,
    };
    let last = measured.run(&config.args.times)?;
    let good = last.errors == 0;
    Line::Final(last).print()?;
    Ok(good)
}
