//! Subjects in turn, on the same image.

use super::options::{BenchError, Options};
use super::report::{Row, Section};
use super::subject::{Running, Subject, processor_time};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A directory below another, which is removed when it is dropped, and in it an image of `size` bytes.
pub(super) fn scratch(directory: &Path, size: u64) -> io::Result<(TempDir, PathBuf)> {
    let scratch = tempfile::tempdir_in(directory)?;
    let image = scratch.path().join("image");
    fill(&image, size)?;
    Ok((scratch, image))
}

/// Random bytes, so that no layer below finds holes or zeroes to shorten its way.
fn fill(image: &Path, size: u64) -> io::Result<()> {
    let mut from = io::Read::take(std::fs::File::open("/dev/urandom")?, size);
    let mut to = std::fs::File::create(image)?;
    io::copy(&mut from, &mut to)?;
    to.flush()?;
    to.sync_all()
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
