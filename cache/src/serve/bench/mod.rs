//! `justitia cache bench`: the NBD front end beside others, and the SSD store beside its device.
//!
//! The client is fio, the same for all servers, and the runs of the servers alternate, so that what the
//! machine does meanwhile hits them alike. Runs of one round are compared, and the median of these ratios is
//! reported.

mod fio;
mod ssd;

use super::config::Config;
use super::error::ServeError;
use super::service::Service;
use super::size::Size;
use crate::bench::Spread;
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// What to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Where the image lies.
    pub directory: PathBuf,
    /// Bytes of the image.
    pub size: Size,
    /// Runs of each, of which the median is taken.
    pub runs: usize,
    /// Seconds of a run.
    pub seconds: u32,
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// The server under test.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The cache under test.
    #[error(transparent)]
    Cache(#[from] crate::error::CacheError),
    /// A program did not do its part.
    #[error("expected {program} to run, found: {why}")]
    Program {
        /// Which.
        program: String,
        /// What it said.
        why: String,
    },
    /// A file.
    #[error("cannot prepare the image: {0}")]
    Io(#[from] io::Error),
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct Report {
    sections: Vec<Section>,
}

#[derive(Clone, Debug)]
struct Section {
    title: &'static str,
    /// The first is ours.
    rows: Vec<Row>,
}

#[derive(Clone, Debug)]
struct Row {
    name: &'static str,
    runs: Vec<f64>,
    /// Processor time of the server for a request, microseconds; only of ours, which is this process.
    cost: Vec<f64>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for section in &self.sections {
            writeln!(f, "\n{}", section.title)?;
            let ours = section.rows.first().map_or(&[][..], |row| &row.runs);
            for row in &section.rows {
                let rate = Spread::of(row.runs.clone());
                let ratio = Spread::of(ours.iter().zip(&row.runs).map(|(o, r)| o / r).collect());
                writeln!(
                    f,
                    "  {:<36} {:>9.0}/s ({:.0} to {:.0})  ours is {ratio} times that",
                    row.name, rate.median, rate.low, rate.high
                )?;
                if !row.cost.is_empty() {
                    let cost = Spread::of(row.cost.clone());
                    writeln!(f, "  {:<36} {cost} us of processor time a request", "")?;
                }
            }
        }
        Ok(())
    }
}

/// A server under test, and where it listens.
enum Running {
    Ours(Service),
    Theirs(Other),
}

/// A server of others, which ends with this.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Subject {
    name: &'static str,
    socket: PathBuf,
    running: Running,
}

impl Subject {
    /// Lets fio at it; requests a second.
    fn fio(
        &self,
        how: &str,
        block: &str,
        options: &Options,
        timed: bool,
    ) -> Result<f64, BenchError> {
        let uri = format!("--uri=nbd+unix:///?socket={}", self.socket.display());
        let target = ["--ioengine=nbd", "--iodepth=32", &uri];
        fio::run(&target, how, block, options, timed)
    }

    fn stop(self) -> Result<(), BenchError> {
        match self.running {
            Running::Ours(service) => service.shut_down(Duration::from_secs(5))?,
            Running::Theirs(other) => drop(other),
        }
        // The others leave their sockets behind.
        let _ = std::fs::remove_file(self.socket);
        Ok(())
    }
}

/// Measures.
///
/// # Errors
/// When fio or the image cannot be had.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    let scratch = tempfile::tempdir_in(&options.directory)?;
    let dir = scratch.path();
    let image = dir.join("image");
    fill(&image, options.size.0)?;
    let mut sections = vec![
        hits(dir, &image, options)?,
        misses(
            "misses: 4 KiB random reads, queue depth 32",
            dir,
            &image,
            options,
        )?,
    ];
    sections.extend(ssd::against_the_device(dir, options)?);
    // Where the disk takes no time, what the cache costs shows most.
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        let scratch = tempfile::tempdir_in(memory)?;
        let image = scratch.path().join("image");
        fill(&image, options.size.0)?;
        let title = "misses, the image in memory (tmpfs)";
        sections.push(misses(title, scratch.path(), &image, options)?);
    }
    Ok(Report { sections })
}

/// Random bytes, so that no layer below finds holes or zeroes to shorten its way.
fn fill(image: &Path, size: u64) -> io::Result<()> {
    let mut from = io::Read::take(std::fs::File::open("/dev/urandom")?, size);
    let mut to = std::fs::File::create(image)?;
    io::copy(&mut from, &mut to)?;
    to.flush()?;
    to.sync_all()
}

fn hits(dir: &Path, image: &Path, options: &Options) -> Result<Section, BenchError> {
    let mut subjects = vec![ours(dir, image, "justitia, all in the cache", |config| {
        // Twice the image: what is measured are hits, not what fits.
        config.cache.memory_bytes = options.size.0 * 2;
    })?];
    let copy = dir.join("theirs");
    std::fs::copy(image, &copy)?;
    let size = options.size.0.to_string();
    let socket = dir.join("nbdkit.sock");
    let nbdkit = Command::new("nbdkit")
        .args(["-f", "-U"])
        .arg(&socket)
        .args(["memory", &size])
        .spawn();
    subjects.extend(theirs("nbdkit, memory plugin", socket, nbdkit));
    let socket = dir.join("qemu.sock");
    let qemu = Command::new("qemu-nbd")
        .args(["-f", "raw", "-t", "-k"])
        .arg(&socket)
        .arg(&copy)
        .spawn();
    subjects.extend(theirs("qemu-nbd, image in the page cache", socket, qemu));
    for subject in &subjects {
        if subject.name.starts_with("nbdkit") {
            subject.fio("write", "1M", options, false)?;
        }
        subject.fio("read", "1M", options, false)?;
    }
    compare(
        "hits: 4 KiB random reads, queue depth 32",
        subjects,
        options,
    )
}

fn misses(
    title: &'static str,
    dir: &Path,
    image: &Path,
    options: &Options,
) -> Result<Section, BenchError> {
    let copy = dir.join("theirs");
    std::fs::copy(image, &copy)?;
    let cached = ours(
        dir,
        image,
        "justitia, a cache of 1/64 of the image",
        |config| {
            config.cache.memory_bytes = options.size.0 / 64;
        },
    )?;
    let uncached = ours(dir, &copy, "justitia, the image uncached", |config| {
        for disk in config.vms.iter_mut().flat_map(|vm| &mut vm.disks) {
            disk.mode = None;
        }
    })?;
    compare(title, vec![cached, uncached], options)
}

fn compare(
    title: &'static str,
    subjects: Vec<Subject>,
    options: &Options,
) -> Result<Section, BenchError> {
    let mut rows: Vec<Row> = subjects
        .iter()
        .map(|s| Row {
            name: s.name,
            runs: Vec::new(),
            cost: Vec::new(),
        })
        .collect();
    for _ in 0..options.runs.max(1) {
        for (subject, row) in subjects.iter().zip(&mut rows) {
            let before = processor_time();
            let rate = subject.fio("randread", "4k", options, true)?;
            let spent = processor_time() - before;
            row.runs.push(rate);
            if matches!(subject.running, Running::Ours(_)) {
                row.cost
                    .push(spent * 1e6 / (rate * f64::from(options.seconds.max(1))));
            }
        }
    }
    for subject in subjects {
        subject.stop()?;
    }
    Ok(Section { title, rows })
}

/// Seconds of processor time that this process has had, its children not included.
fn processor_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default().as_secs_f64()
}

fn ours(
    dir: &Path,
    image: &Path,
    name: &'static str,
    change: impl FnOnce(&mut Config),
) -> Result<Subject, BenchError> {
    let socket = dir.join(format!("{}.sock", name.len()));
    let mut config = Config::of_image(image, "bench", &socket);
    change(&mut config);
    Ok(Subject {
        name,
        socket,
        running: Running::Ours(Service::start(&config)?),
    })
}

/// A server that is compared with, if it is installed.
fn theirs(name: &'static str, socket: PathBuf, child: io::Result<Child>) -> Option<Subject> {
    let child = child
        .inspect_err(|e| tracing::warn!("not compared with {name}: {e}"))
        .ok()?;
    let deadline = Instant::now() + Duration::from_secs(10);
    // Looked at, not connected to: they would complain of a client that leaves at once.
    while !socket.exists() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(20));
    }
    std::thread::sleep(Duration::from_millis(200));
    Some(Subject {
        name,
        socket,
        running: Running::Theirs(Other(child)),
    })
}
