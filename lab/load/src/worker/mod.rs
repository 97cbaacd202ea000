//! A worker: one thread that repeats a personality's steps.

mod files;
mod stream;

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use justitia_share::num::{to_f64, to_u64};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::aligned::{ALIGNMENT, Aligned};
use crate::counters::{Counters, Timings};
use crate::fileset::FileSet;
use crate::pace::{Pacer, sleep_until};
use crate::rotation::Index;
use crate::step::Step;

/// Pause after a failed operation, so that a full disk does not make a busy loop.
const AFTER_ERROR: Duration = Duration::from_millis(5);
/// How long [`Step::Pause`] sleeps.
const PAUSE: Duration = Duration::from_millis(20);

/// What a worker shares with the others that repeat the same steps.
pub(crate) struct Job {
    /// Where it counts.
    pub counters: Arc<Counters>,
    /// What it works on.
    pub files: Arc<FileSet>,
    /// What it repeats.
    pub steps: Vec<Step>,
    /// What it writes: as long as the largest write, incompressible.
    pub content: Arc<Aligned>,
    /// Whether files are read and written past the page cache; the log is not.
    pub direct: bool,
    /// Largest read, and largest write of a whole file, in bytes.
    pub io_size: u64,
    /// Upper bound of an append in bytes.
    pub append_size: u64,
    /// The log of [`Step::AppendLog`].
    pub log: PathBuf,
    /// The bound on its transfers.
    pub pacer: Option<Arc<Pacer>>,
    /// The seed of the appends.
    pub seed: u64,
}

/// One worker's own state.
pub(crate) struct Worker {
    job: Arc<Job>,
    timings: Arc<Timings>,
    id: u32,
    rng: ChaCha8Rng,
    buffer: Aligned,
    open: Option<(Index, File, PathBuf)>,
    stream: Option<Stream>,
    log: Option<File>,
    /// A creation or deletion of this loop failed: its counterpart is left out, so that the
    /// number of files stays what it was.
    unpaired: bool,
}

/// The worker's own file, and how far it has been read.
struct Stream {
    file: File,
    path: PathBuf,
    offset: u64,
}

/// Whether the worker goes on.
#[derive(PartialEq, Eq)]
enum Next {
    GoOn,
    End,
}

impl Worker {
    /// Worker number `id`; `timings` are its own.
    pub(crate) fn new(job: Arc<Job>, timings: Arc<Timings>, id: u32) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(job.seed);
        rng.set_stream(u64::from(id) + 2);
        Self {
            buffer: Aligned::zeroed(job.io_size),
            job,
            timings,
            id,
            rng,
            open: None,
            stream: None,
            log: None,
            unpaired: false,
        }
    }

    /// Repeats the steps until the run is over or there is nothing left to do.
    pub(crate) fn run(mut self) {
        let job = Arc::clone(&self.job);
        'run: loop {
            self.unpaired = false;
            for step in &job.steps {
                if job.counters.stopped() || self.step(*step) == Next::End {
                    break 'run;
                }
            }
            job.counters.loops.fetch_add(1, Ordering::Relaxed);
        }
        if let Some((index, ..)) = self.open.take() {
            job.files.closed(index);
        }
        job.counters.active.fetch_sub(1, Ordering::Relaxed);
    }

    fn step(&mut self, step: Step) -> Next {
        match step {
            Step::Create => self.create(),
            Step::Open => self.open(),
            Step::WriteWhole => self.write_whole(),
            Step::ReadWhole => self.read_whole(),
            Step::Append => self.append(),
            Step::Fsync => self.fsync(),
            Step::Close => self.close(),
            Step::Delete => self.delete(),
            Step::Stat => self.stat(),
            Step::Rename => self.rename(),
            Step::Mkdir => {
                let path = self.own_directory();
                self.attempt(Step::Mkdir, &path, || fs::create_dir(&path));
            }
            Step::Rmdir => {
                let path = self.own_directory();
                self.attempt(Step::Rmdir, &path, || fs::remove_dir(&path));
            }
            Step::AppendLog => self.append_log(),
            Step::ReadOnce => return self.read_once(),
            Step::Pause => {
                let counters = &self.job.counters;
                sleep_until(Instant::now() + PAUSE, &|| counters.stopped());
            }
            // No personality has them: they are of the other workloads' own workers.
            Step::Read | Step::Write | Step::Touch | Step::Lookup => {}
        }
        Next::GoOn
    }

    /// Where [`Step::Mkdir`] makes a directory: one that a process that was killed cannot have left.
    fn own_directory(&self) -> PathBuf {
        let name = format!("made-{}-{}", std::process::id(), self.id);
        self.job.files.directory().join(name)
    }

    /// Filebench draws appends uniformly below their size, so that the mean is half of it. Direct I/O appends whole pages.
    fn append_amount(&mut self) -> u64 {
        // 53 random bits as a fraction of 1.
        let fraction = to_f64(self.rng.next_u64() >> 11) / to_f64(1 << 53);
        let amount = to_u64((fraction * to_f64(self.job.append_size)).floor());
        if self.job.direct {
            amount.next_multiple_of(ALIGNMENT)
        } else {
            amount
        }
    }

    fn pace(&self, bytes: u64) {
        if let Some(pacer) = &self.job.pacer {
            pacer.take(bytes, &|| self.job.counters.stopped());
        }
    }

    /// Does an operation, times it, counts it, and says if it failed.
    fn attempt<T>(
        &mut self,
        step: Step,
        path: &std::path::Path,
        operation: impl FnOnce() -> io::Result<T>,
    ) -> Option<T> {
        let start = Instant::now();
        let result = operation();
        match result {
            Ok(value) => {
                self.timings.record(step, start.elapsed());
                self.job.counters.operations.fetch_add(1, Ordering::Relaxed);
                Some(value)
            }
            Err(error) => {
                self.job
                    .counters
                    .failed(step, &path.to_string_lossy(), &error);
                std::thread::sleep(AFTER_ERROR);
                None
            }
        }
    }
}
