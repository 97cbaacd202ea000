//! `justitia cache bench`: the NBD front end beside others.
//!
//! The client is fio, the same for all servers, and the runs of the servers alternate, so that what the
//! machine does meanwhile hits them alike. Runs of one round are compared, and the median of these ratios is
//! reported.

use super::config::Config;
use super::service::{ServeError, Service};
use super::size::Size;
use crate::bench::Spread;
use justitia_share::num::to_f64;
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
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

/// What was measured: 4 KiB random reads a second at queue depth 32.
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
            }
        }
        Ok(())
    }
}

/// A server under test, and where it listens.
enum Running {
    Ours(Service),
    Theirs(Child),
}

struct Subject {
    name: &'static str,
    socket: PathBuf,
    running: Running,
}

impl Subject {
    fn stop(self) -> Result<(), BenchError> {
        match self.running {
            Running::Ours(service) => service.shut_down(Duration::from_secs(5))?,
            Running::Theirs(mut child) => {
                child.kill()?;
                child.wait()?;
            }
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
    let sections = vec![hits(dir, &image, options)?, misses(dir, &image, options)?];
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
            fio(subject, "write", "1M", options, false)?;
        }
        fio(subject, "read", "1M", options, false)?;
    }
    compare(
        "hits: 4 KiB random reads, queue depth 32",
        subjects,
        options,
    )
}

fn misses(dir: &Path, image: &Path, options: &Options) -> Result<Section, BenchError> {
    let copy = dir.join("theirs");
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
    compare(
        "misses: 4 KiB random reads, queue depth 32",
        vec![cached, uncached],
        options,
    )
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
        })
        .collect();
    for _ in 0..options.runs.max(1) {
        for (subject, row) in subjects.iter().zip(&mut rows) {
            row.runs
                .push(fio(subject, "randread", "4k", options, true)?);
        }
    }
    for subject in subjects {
        subject.stop()?;
    }
    Ok(Section { title, rows })
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
        running: Running::Theirs(child),
    })
}

/// Runs fio; returns its reads a second.
fn fio(
    subject: &Subject,
    how: &str,
    block: &str,
    options: &Options,
    timed: bool,
) -> Result<f64, BenchError> {
    let error = |why: String| BenchError::Program {
        program: "fio".into(),
        why,
    };
    let report = subject.socket.with_extension("json");
    let mut command = Command::new("fio");
    command
        .args(["--name=bench", "--ioengine=nbd", "--iodepth=32"])
        .args(["--randrepeat=0", "--norandommap", "--output-format=json"])
        .arg(format!(
            "--uri=nbd+unix:///?socket={}",
            subject.socket.display()
        ))
        .arg(format!("--rw={how}"))
        .arg(format!("--bs={block}"))
        .arg(format!("--size={}", options.size.0))
        .arg(format!("--output={}", report.display()))
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    if timed {
        command.args(["--time_based", &format!("--runtime={}", options.seconds)]);
    }
    let done = command.output().map_err(|e| error(e.to_string()))?;
    if !done.status.success() {
        return Err(error(String::from_utf8_lossy(&done.stderr).into_owned()));
    }
    let text = std::fs::read(&report)?;
    let json: serde_json::Value =
        serde_json::from_slice(&text).map_err(|e| error(e.to_string()))?;
    let job = &json["jobs"][0]["read"];
    let milliseconds = job["runtime"].as_u64().unwrap_or(0);
    let reads = job["total_ios"].as_u64().unwrap_or(0);
    if timed && (reads == 0 || milliseconds == 0) {
        return Err(error("no reads in its report".into()));
    }
    Ok(to_f64(reads) * 1000.0 / to_f64(milliseconds.max(1)))
}
