//! A worker: one thread that repeats a personality's steps.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use justitia_share::num::{to_f64, to_u64};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::counters::{Counters, Timings};
use crate::fileset::{FileSet, Index};
use crate::pace::{Pacer, sleep_until};
use crate::personality::Step;

/// Pause after a failed operation, so that a full disk is not asked a million times a second.
const AFTER_ERROR: Duration = Duration::from_millis(5);

/// What a worker shares with the others of its kind.
pub struct Job {
    /// Where it counts.
    pub counters: Arc<Counters>,
    /// What it works on.
    pub files: Arc<FileSet>,
    /// What it repeats.
    pub steps: Vec<Step>,
    /// What it writes: as long as the largest write, incompressible.
    pub content: Arc<[u8]>,
    /// Largest read, and largest write of a whole file, in bytes.
    pub io_size: u64,
    /// Upper bound of an append in bytes.
    pub append_size: u64,
    /// The log of [`Step::AppendLog`].
    pub log: PathBuf,
    /// The bound on its transfers.
    pub pacer: Option<Arc<Pacer>>,
    /// How long [`Step::Pause`] sleeps.
    pub pause: Duration,
    /// How much of its file [`Step::ReadOnce`] reads, in bytes.
    pub limit: u64,
    /// The seed of the appends.
    pub seed: u64,
}

/// One worker's own state.
pub struct Worker {
    job: Arc<Job>,
    timings: Arc<Timings>,
    id: u32,
    rng: ChaCha8Rng,
    buffer: Vec<u8>,
    open: Option<(Index, File, PathBuf)>,
    stream: Option<Stream>,
    log: Option<File>,
    /// A creation or deletion of this loop failed: its counterpart is left out, so that the
    /// number of files stays what it was.
    unpaired: bool,
}

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
    pub fn new(job: Arc<Job>, timings: Arc<Timings>, id: u32) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(job.seed);
        rng.set_stream(u64::from(id) + 2);
        Self {
            // Zeroed lazily by the kernel: only what is read into takes memory.
            buffer: vec![0; usize::try_from(job.io_size).unwrap_or(job.content.len())],
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
    pub fn run(mut self) {
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
            Step::ReadNext => return self.read_stream(step),
            Step::ReadOnce => return self.read_stream(step),
            Step::Pause => {
                let counters = &self.job.counters;
                sleep_until(Instant::now() + self.job.pause, &|| counters.stopped());
            }
            // No personality has them: they are of `block`'s own workers.
            Step::Read | Step::Write => {}
        }
        Next::GoOn
    }

    fn create(&mut self) {
        if self.unpaired {
            return;
        }
        let job = Arc::clone(&self.job);
        let Some(index) = job.files.take_absent(&|| job.counters.stopped()) else {
            return;
        };
        let path = job.files.path(index);
        let file = self.attempt(Step::Create, &path, || {
            OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .open(&path)
        });
        job.files.created(index, file.is_some());
        self.unpaired = file.is_none();
        self.open = file.map(|file| (index, file, path));
    }

    fn open(&mut self) {
        let job = Arc::clone(&self.job);
        let Some(index) = job.files.take_present(&|| job.counters.stopped()) else {
            return;
        };
        let path = job.files.path(index);
        let file = self.attempt(Step::Open, &path, || {
            OpenOptions::new().read(true).write(true).open(&path)
        });
        match file {
            Some(file) => self.open = Some((index, file, path)),
            None => job.files.closed(index),
        }
    }

    fn write_whole(&mut self) {
        let Some((index, file, path)) = self.open.take() else {
            return;
        };
        let job = Arc::clone(&self.job);
        let size = job.files.size(index);
        self.pace(size);
        self.attempt(Step::WriteWhole, &path, || {
            let mut offset = 0;
            while offset < size && !job.counters.stopped() {
                let chunk = first(&job.content, (size - offset).min(job.io_size));
                offset += write_all(&file, chunk, offset, &job.counters.written)?;
            }
            Ok(())
        });
        self.open = Some((index, file, path));
    }

    fn read_whole(&mut self) {
        let Some((index, file, path)) = self.open.take() else {
            return;
        };
        let job = Arc::clone(&self.job);
        self.pace(job.files.size(index));
        let mut buffer = std::mem::take(&mut self.buffer);
        self.attempt(Step::ReadWhole, &path, || {
            let mut offset = 0;
            while !job.counters.stopped() {
                match read(&file, &mut buffer, offset, &job.counters.read)? {
                    0 => break,
                    n => offset += n,
                }
            }
            Ok(())
        });
        self.buffer = buffer;
        self.open = Some((index, file, path));
    }

    fn append(&mut self) {
        let Some((index, mut file, path)) = self.open.take() else {
            return;
        };
        let job = Arc::clone(&self.job);
        let amount = self.append_amount();
        self.pace(amount);
        self.attempt(Step::Append, &path, || {
            let end = file.seek(SeekFrom::End(0))?;
            write_all(
                &file,
                first(&job.content, amount),
                end,
                &job.counters.written,
            )
        });
        self.open = Some((index, file, path));
    }

    fn append_log(&mut self) {
        let job = Arc::clone(&self.job);
        let amount = self.append_amount();
        self.pace(amount);
        let log = self.log.take();
        self.log = self.attempt(Step::AppendLog, &job.log, || {
            let log = match log {
                Some(log) => log,
                None => OpenOptions::new()
                    .append(true)
                    .create(true)
                    .open(&job.log)?,
            };
            // The offset is ignored for a file opened for appending.
            write_all(&log, first(&job.content, amount), 0, &job.counters.written)?;
            Ok(log)
        });
    }

    fn fsync(&mut self) {
        let Some((index, file, path)) = self.open.take() else {
            return;
        };
        self.attempt(Step::Fsync, &path, || file.sync_all());
        self.open = Some((index, file, path));
    }

    fn close(&mut self) {
        let Some((index, file, path)) = self.open.take() else {
            return;
        };
        self.attempt(Step::Close, &path, || {
            drop(file);
            Ok(())
        });
        self.job.files.closed(index);
    }

    fn delete(&mut self) {
        if self.unpaired {
            return;
        }
        let job = Arc::clone(&self.job);
        let Some(index) = job.files.take_idle(&|| job.counters.stopped()) else {
            return;
        };
        let path = job.files.path(index);
        let done = self.attempt(Step::Delete, &path, || fs::remove_file(&path));
        self.unpaired = done.is_none();
        job.files.deleted(index, done.is_some());
    }

    fn stat(&mut self) {
        let job = Arc::clone(&self.job);
        let Some(index) = job.files.take_present(&|| job.counters.stopped()) else {
            return;
        };
        let path = job.files.path(index);
        self.attempt(Step::Stat, &path, || fs::metadata(&path));
        job.files.closed(index);
    }

    fn rename(&mut self) {
        let job = Arc::clone(&self.job);
        let stop = || job.counters.stopped();
        let Some(from) = job.files.take_idle(&stop) else {
            return;
        };
        let Some(to) = job.files.take_absent(&stop) else {
            job.files.deleted(from, false);
            return;
        };
        let (old, new) = (job.files.path(from), job.files.path(to));
        let done = self.attempt(Step::Rename, &old, || fs::rename(&old, &new));
        job.files.deleted(from, done.is_some());
        job.files.created(to, done.is_some());
        if done.is_some() {
            job.files.closed(to);
        }
    }

    /// Where [`Step::Mkdir`] makes a directory: one that a process that was killed cannot have left.
    fn own_directory(&self) -> PathBuf {
        let name = format!("made-{}-{}", std::process::id(), self.id);
        self.job.files.directory().join(name)
    }

    /// Reads on in the worker's own file: the one with its number, around the set.
    fn read_stream(&mut self, step: Step) -> Next {
        let job = Arc::clone(&self.job);
        if self.stream.is_none() {
            let path = job.files.path(self.id % job.files.len().max(1));
            let file = self.attempt(Step::Open, &path, || File::open(&path));
            let Some(file) = file else {
                return Next::End;
            };
            if step == Step::ReadOnce {
                // What is read ahead and not yet asked for when the time is up would be the disk's work
                // without being the application's.
                let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random);
            }
            self.stream = Some(Stream {
                file,
                path,
                offset: 0,
            });
        }
        let Some(mut stream) = self.stream.take() else {
            return Next::End;
        };
        let left = match step {
            Step::ReadOnce => job.limit.saturating_sub(stream.offset),
            _ => u64::MAX,
        };
        let mut buffer = std::mem::take(&mut self.buffer);
        let window = first_mut(&mut buffer, left);
        self.pace(u64::try_from(window.len()).unwrap_or(u64::MAX));
        let mut offset = stream.offset;
        let got = self.attempt(step, &stream.path, || {
            let mut n = read(&stream.file, window, offset, &job.counters.read)?;
            if n == 0 && step == Step::ReadNext {
                // Around the end within one operation: finding it must not cost the rate.
                offset = 0;
                n = read(&stream.file, window, offset, &job.counters.read)?;
            }
            offset += n;
            Ok(n)
        });
        self.buffer = buffer;
        stream.offset = offset;
        let ended = got.is_none_or(|n| n == 0) || stream.offset >= job.limit;
        self.stream = Some(stream);
        if ended && step == Step::ReadOnce {
            Next::End
        } else {
            Next::GoOn
        }
    }

    /// Filebench draws appends uniformly below their size, so that the mean is half of it.
    fn append_amount(&mut self) -> u64 {
        // 53 random bits as a fraction of 1.
        let fraction = to_f64(self.rng.next_u64() >> 11) / to_f64(1 << 53);
        to_u64((fraction * to_f64(self.job.append_size)).floor())
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

/// At most the first `length` bytes.
fn first(content: &[u8], length: u64) -> &[u8] {
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    content.get(..length).unwrap_or(content)
}

fn first_mut(content: &mut [u8], length: u64) -> &mut [u8] {
    let length = usize::try_from(length)
        .unwrap_or(usize::MAX)
        .min(content.len());
    content.split_at_mut(length).0
}

/// Writes all of `chunk`, counting what is accepted as it is; the bytes written.
fn write_all(file: &File, chunk: &[u8], offset: u64, written: &AtomicU64) -> io::Result<u64> {
    let mut done = 0;
    while let Some(rest) = chunk.get(done..).filter(|rest| !rest.is_empty()) {
        let at = offset + u64::try_from(done).unwrap_or(u64::MAX);
        match file.write_at(rest, at) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(n) => {
                done += n;
                written.fetch_add(u64::try_from(n).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(u64::try_from(done).unwrap_or(u64::MAX))
}

/// Reads once, counting what came; 0 at the end of the file.
fn read(file: &File, buffer: &mut [u8], offset: u64, counter: &AtomicU64) -> io::Result<u64> {
    loop {
        match file.read_at(buffer, offset) {
            Ok(n) => {
                let n = u64::try_from(n).unwrap_or(u64::MAX);
                counter.fetch_add(n, Ordering::Relaxed);
                return Ok(n);
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
