//! The measurements over NBD.

use super::compare::{compare, scratch};
use super::misses::Misses;
use super::options::{BenchError, Options};
use super::report::{Report, Section};
use super::ssd;
use super::subject::{Subject, ours, theirs};
use std::path::Path;
use std::process::Command;

/// Measures.
///
/// # Errors
/// When fio or the image cannot be had.
pub fn run(options: &Options) -> Result<Report, BenchError> {
    let (scratch, image) = scratch(&options.directory, options.size.0)?;
    let dir = scratch.path();
    let misses = Misses {
        options,
        serve: |dir, image, name, change| ours(dir, image, name, change),
        measure: random_reads,
    };
    let title = "misses: 4 KiB random reads, queue depth 32";
    let mut sections = vec![hits(dir, &image, options)?, misses.of(title, dir, &image)?];
    sections.extend(ssd::against_the_device(dir, options)?);
    sections.extend(misses.in_memory("misses, the image in memory (tmpfs)")?);
    Ok(Report { sections })
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
    compare(title, subjects, options, |subject| {
        random_reads(subject, options)
    })
}

fn random_reads(subject: &Subject, options: &Options) -> Result<f64, BenchError> {
    subject.fio("randread", "4k", options, true)
}
