//! `justitia-load block`: requests to one file, as a block device gets them: replayed from a trace, or at
//! random places. With direct I/O by default.

mod blkparse;
mod csv;
mod line;
mod replay;
mod trace;

#[cfg(test)]
mod synthetic;

use std::fs::{self, File};
use std::io::BufReader;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;
use rustix::fs::OFlags;

use self::line::SECTOR;
use self::replay::{Job, PIECE, Source, Trace, Worker, parse_speed};
use self::trace::Format;
use crate::aligned::Aligned;
use crate::args::{Phase, Times, parse_size};
use crate::counters::{Counters, Timings};
use crate::measure::{Workload, drive};
use crate::pace::Pacer;

/// The subcommand's name.
pub(crate) const NAME: &str = "block";

/// At most this many of a trace's requests are used: each takes 32 bytes.
const MOST_REQUESTS: usize = 1_000_000;

/// Sends requests to one file: those of a block trace, or random ones. Reports as JSON lines.
///
/// Exit status: 0 when every request succeeded, 3 when some failed, 1 when the workload could not be set up.
#[derive(Debug, Parser)]
#[command(version, name = "justitia-load block")]
pub(crate) struct Args {
    /// Directory of the file; made if it does not exist.
    #[arg(long)]
    dir: PathBuf,

    /// What to do, in this order: write the file, run. `warm` does nothing.
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["prepare", "run"])]
    phase: Vec<Phase>,

    /// Size of the file in bytes; requests beyond its end go around. k, m, g are powers of 1024.
    #[arg(long, default_value = "192m", value_parser = parse_size)]
    size: u64,

    /// Replay this trace, from its beginning again at its end.
    #[arg(long, requires = "format", required_unless_present = "random")]
    trace: Option<PathBuf>,

    /// The trace's format.
    #[arg(long, value_enum)]
    format: Option<Format>,

    /// Send requests when they were sent, so many times as fast; without it, as soon as a worker is free.
    #[arg(long, value_parser = parse_speed, requires = "trace")]
    speed: Option<f64>,

    /// Instead of a trace: random places; so many of a hundred requests read.
    #[arg(long, conflicts_with = "trace", value_parser = clap::value_parser!(u32).range(0..=100))]
    random: Option<u32>,

    /// Size of random requests in bytes.
    #[arg(long, default_value = "64k", value_parser = parse_size)]
    io_size: u64,

    /// Random places are multiples of so many bytes (default: of the requests' size).
    #[arg(long, value_parser = parse_size, requires = "random")]
    step: Option<u64>,

    /// Before the random places, all of them once, in their order.
    #[arg(long, requires = "random")]
    sweep: bool,

    /// Bound on what all workers together transfer, in bytes per second; 0 is none.
    #[arg(long, default_value = "0", value_parser = parse_size)]
    rate: u64,

    /// Workers: how many requests may be outstanding.
    #[arg(long, default_value = "16", value_parser = clap::value_parser!(u32).range(1..=1024))]
    depth: u32,

    /// Through the page cache.
    #[arg(long)]
    buffered: bool,

    /// Seed of the random places and of what is written.
    #[arg(long, default_value_t = 1)]
    seed: u64,

    /// When it begins and how long it takes.
    #[command(flatten)]
    times: Times,
}

/// Does the phases. Returns whether every request succeeded; `interrupt` ends the run.
///
/// # Errors
/// The trace cannot be read, the file not be written or opened, or standard output not be written.
pub(crate) fn run(args: &Args, interrupt: &Arc<AtomicBool>) -> Result<bool> {
    check(args)?;
    crate::directory::check(&args.dir)?;
    let path = args.dir.join(NAME);
    if args.phase.contains(&Phase::Prepare) {
        fs::create_dir_all(&args.dir).with_context(|| format!("make {}", args.dir.display()))?;
        write(&path, args).with_context(|| format!("write {}", path.display()))?;
    }
    if !args.phase.contains(&Phase::Run) {
        args.times.start.ready()?;
        return Ok(true);
    }
    let length = fs::metadata(&path).map_or(0, |found| found.len());
    ensure!(
        length >= args.size,
        "expected {} with at least {} bytes, found {length}: do --phase prepare first",
        path.display(),
        args.size
    );
    replay(args, path, interrupt)
}

fn check(args: &Args) -> Result<()> {
    ensure!(
        args.size >= PIECE && args.size.is_multiple_of(SECTOR),
        "--size: expected at least 1m, in whole sectors of 512 bytes, found {}",
        args.size
    );
    ensure!(
        (SECTOR..=args.size).contains(&args.io_size) && args.io_size.is_multiple_of(SECTOR),
        "--io-size: expected 512 bytes to --size, in whole sectors of 512 bytes, found {}",
        args.io_size
    );
    let step = args.step.unwrap_or(args.io_size);
    ensure!(
        (args.io_size..=args.size).contains(&step) && step.is_multiple_of(SECTOR),
        "--step: expected --io-size to --size, in whole sectors of 512 bytes, found {step}"
    );
    Ok(())
}

/// Writes the whole file: what is read must be on the device, and what is overwritten allocated.
fn write(path: &Path, args: &Args) -> Result<()> {
    let buffer = Aligned::noise(&mut ChaCha8Rng::seed_from_u64(args.seed), PIECE);
    let file = File::create(path)?;
    let mut offset = 0;
    while offset < args.size {
        let piece = buffer.first(args.size - offset);
        file.write_all_at(piece, offset)?;
        offset += u64::try_from(piece.len())?;
    }
    Ok(())
}

fn source(args: &Args) -> Result<Source> {
    let (Some(path), Some(format)) = (&args.trace, args.format) else {
        return Ok(Source::Random {
            read_percent: args.random.unwrap_or(50),
            bytes: args.io_size,
            step: args.step.unwrap_or(args.io_size),
            unswept: AtomicU64::new(if args.sweep { 0 } else { u64::MAX }),
        });
    };
    let file = regular(path)?;
    let requests = trace::read(BufReader::new(file), format, MOST_REQUESTS)
        .with_context(|| format!("read {}", path.display()))?;
    Ok(Source::Trace(Trace {
        requests,
        speed: args.speed,
        taken: Mutex::default(),
    }))
}

/// Opens the regular file at `path`.
fn regular(path: &Path) -> Result<File> {
    // A pipe without a writer blocks the open, and a device is read for ever.
    let file = File::options()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(path)
        .with_context(|| format!("open {}", path.display()))?;
    ensure!(
        file.metadata()?.is_file(),
        "expected a regular file with a trace, found something else at {}",
        path.display()
    );
    Ok(file)
}

fn replay(args: &Args, path: PathBuf, interrupt: &Arc<AtomicBool>) -> Result<bool> {
    let counters: Arc<Counters> = Arc::default();
    let job = Arc::new(Job {
        counters: Arc::clone(&counters),
        source: source(args)?,
        path,
        size: args.size,
        direct: !args.buffered,
        pacer: (args.rate > 0).then(|| Pacer::new(args.rate)),
        seed: args.seed,
        began: OnceLock::new(),
    });
    let mut timings = Vec::new();
    let mut workers = Vec::new();
    for id in 0..args.depth {
        let own = Arc::new(Timings::default());
        let worker = Worker::new(Arc::clone(&job), Arc::clone(&own), id)
            .with_context(|| format!("open {}", job.path.display()))?;
        timings.push(own);
        workers.push(|| worker.run());
    }
    let workload = Workload {
        name: NAME,
        seed: args.seed,
        counters: &counters,
        timings: &timings,
    };
    drive(&workload, workers, &args.times, interrupt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_that_never_ends_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).unwrap();
        for path in [&pipe, Path::new("/dev/zero"), dir.path()] {
            let (sender, receiver) = std::sync::mpsc::channel();
            let path = path.to_owned();
            std::thread::spawn(move || sender.send(regular(&path).map_err(|e| e.to_string())));
            let refused = receiver.recv_timeout(std::time::Duration::from_secs(20));
            let error = refused.expect("an answer").unwrap_err();
            assert!(
                error.starts_with("expected a regular file with a trace"),
                "{error}"
            );
        }
    }
}
