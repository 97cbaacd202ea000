//! From the configuration to the last line.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::args::{Config, Phase, nanoseconds};
use crate::counters::{Counters, Timings, Totals};
use crate::fileset::{FileSet, read_file};
use crate::output::{Final, Line, by_operation, failures};
use crate::pace::Pacer;
use crate::personality::{Personality, Step};
use crate::residency;
use crate::sizes;
use crate::start::{Start, monotonic};
use crate::worker::{Job, Worker};

/// Longest sleep without a look at signals and workers.
const SLICE: Duration = Duration::from_millis(50);
/// How long workers may take to finish the operation that they are in at the end, which then counts
/// by operation but not in the totals; one that the kernel holds up for longer is left to the end of
/// the process.
const GRACE: Duration = Duration::from_secs(1);
/// Workers have shallow stacks, and a guest little memory.
const STACK: usize = 128 << 10;

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
pub fn run(config: &Config, interrupt: &Arc<AtomicBool>) -> Result<bool> {
    let sets = open_sets(config)?;
    let content = content(config)?;
    if config.does(Phase::Prepare) {
        let (seed, sync) = (config.args.seed, config.args.sync);
        sets.main
            .prepare(config.scale.preallocated, seed, &content, sync)?;
        if let Some(active) = &sets.active {
            active.prepare(100, seed, &content, sync)?;
        }
    }
    if config.does(Phase::Warm) {
        let mut buffer = vec![0; content.len()];
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
    let start = Start {
        ready: config.args.ready.clone(),
        wait_for: config.args.wait_for.clone(),
        at: config.args.start_at.map(nanoseconds),
    };
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
        let sizes = sizes::draw(personality.sizes(), config.scale.mean_size, files, seed);
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

/// Noise for the largest write: neither compression nor deduplication below makes it smaller.
fn content(config: &Config) -> Result<Arc<[u8]>> {
    let largest = config.scale.io_size.max(config.scale.append_size);
    let mut content = vec![0; usize::try_from(largest)?];
    ChaCha8Rng::seed_from_u64(config.args.seed).fill_bytes(&mut content);
    Ok(content.into())
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

fn crew(config: &Config, sets: &Sets, content: &Arc<[u8]>) -> Crew {
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
    content: &Arc<[u8]>,
    start: &Start,
    interrupt: &Arc<AtomicBool>,
) -> Result<bool> {
    let mut crew = crew(config, sets, content);
    let interrupted = || interrupt.load(Ordering::Relaxed);
    fs::create_dir_all(&config.args.dir)
        .with_context(|| format!("make {}", config.args.dir.display()))?;
    // Threads exist before the start, so that starting them is not part of the run.
    let go = Arc::new(std::sync::Barrier::new(crew.workers.len() + 1));
    for (id, worker) in crew.workers.drain(..).enumerate() {
        let go = Arc::clone(&go);
        std::thread::Builder::new()
            .name(format!("worker-{id}"))
            .stack_size(STACK)
            .spawn(move || {
                go.wait();
                worker.run();
            })
            .context("start a worker thread")?;
    }
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
    let before = ramp(config, &crew, &interrupted);
    let began = Instant::now();
    let totals = watch(config, sets, &crew.counters, began, before, &interrupted)?;
    let totals = totals.since(before);
    let seconds = began.elapsed().as_secs_f64();
    let patience = Instant::now() + GRACE;
    while crew.counters.active.load(Ordering::Relaxed) > 0 && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(5));
    }
    let last = Final {
        personality: config.args.personality.name(),
        seconds,
        interrupted: interrupted(),
        loops: crew.counters.loops.load(Ordering::Relaxed),
        operations: totals.operations,
        read_bytes: totals.read,
        written_bytes: totals.written,
        errors: totals.errors,
        by_operation: by_operation(crew.timings.iter().map(|t| &**t)),
        failures: failures(&crew.counters),
    };
    Line::Final(last).print()?;
    Ok(totals.errors == 0)
}

/// Lets pass what is not counted: the totals at its end.
fn ramp(config: &Config, crew: &Crew, interrupted: &dyn Fn() -> bool) -> Totals {
    let end = Instant::now() + Duration::from_secs_f64(config.args.ramp);
    while Instant::now() < end && !interrupted() {
        std::thread::sleep(end.saturating_duration_since(Instant::now()).min(SLICE));
    }
    for timings in &crew.timings {
        timings.clear();
    }
    crew.counters.totals()
}

/// Prints lines until the run is over. The totals at its end, which the intervals and those `before` add up
/// to.
fn watch(
    config: &Config,
    sets: &Sets,
    counters: &Counters,
    began: Instant,
    mut before: Totals,
    interrupted: &dyn Fn() -> bool,
) -> Result<Totals> {
    let deadline = began + Duration::from_secs_f64(config.args.duration);
    let mut intervals = Ticker::new(began, config.args.interval);
    let mut samples = Ticker::new(began, config.args.residency);
    let over = |now: Instant| {
        now >= deadline || interrupted() || counters.active.load(Ordering::Relaxed) == 0
    };
    loop {
        let now = Instant::now();
        let t = (now - began).as_secs_f64();
        let over = over(now);
        // First, so that each worker is at most one operation ahead of the totals.
        counters.stop.store(over, Ordering::Relaxed);
        let totals = counters.totals();
        if intervals.due(now) || (over && config.args.interval > 0.0) {
            Line::interval(t, before, totals).print()?;
            before = totals;
        }
        if over {
            return Ok(totals);
        }
        if samples.due(now) {
            Line::residency(t, sample(sets)?).print()?;
        }
        let wake = [Some(deadline), intervals.next, samples.next];
        let wake = wake.into_iter().flatten().min().unwrap_or(deadline);
        let left = wake.saturating_duration_since(Instant::now());
        std::thread::sleep(left.min(SLICE));
    }
}

/// Something that is due again and again.
struct Ticker {
    period: Duration,
    next: Option<Instant>,
}

impl Ticker {
    /// Every `seconds`, 0 for never.
    fn new(began: Instant, seconds: f64) -> Self {
        let period = Duration::from_secs_f64(seconds);
        Self {
            period,
            next: (!period.is_zero()).then(|| began + period),
        }
    }

    /// Whether it is due; ticks that were missed are not made up for.
    fn due(&mut self, now: Instant) -> bool {
        match self.next {
            Some(next) if now >= next => {
                let mut following = next + self.period;
                if following <= now {
                    following = now + self.period;
                }
                self.next = Some(following);
                true
            }
            _ => false,
        }
    }
}

/// Whether `path` names a place that can hold the files: said before anything is written.
///
/// # Errors
/// It exists and is no directory.
pub fn check_directory(path: &Path) -> Result<()> {
    if path.exists() && !path.is_dir() {
        bail!("--dir: expected a directory, {} is none", path.display());
    }
    Ok(())
}
