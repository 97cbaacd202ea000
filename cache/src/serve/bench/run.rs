//! The measurements over NBD.

use super::options::{BenchError, Options};
use super::report::{Report, Row, Section};
use super::ssd;
use super::subject::{Running, Subject, ours, processor_time, theirs};
use std::io::{self, Write};
use std::path::Path;
use std::process::Command;

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
pub(super) fn fill(image: &Path, size: u64) -> io::Result<()> {
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
    let title = "hits: 4 KiB random reads, queue depth 32";
    compare(title, subjects, options, random_reads(options))
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
    let subjects = vec![cached, uncached];
    compare(title, subjects, options, random_reads(options))
}

fn random_reads(options: &Options) -> impl Fn(&Subject) -> Result<f64, BenchError> + '_ {
    |subject| subject.fio("randread", "4k", options, true)
}

/// Measures the subjects in turn; requests a second.
pub(super) fn compare(
    title: &'static str,
    subjects: Vec<Subject>,
    options: &Options,
    measure: impl Fn(&Subject) -> Result<f64, BenchError>,
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
            let rate = measure(subject)?;
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
