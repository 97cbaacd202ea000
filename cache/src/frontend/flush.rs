//! The flush of all disks when the daemon ends.

use super::volume::Volume;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, mpsc};
use std::time::Instant;

/// What [`flush_each`] could not do, in one error.
///
/// # Errors
/// When there is any.
pub(crate) fn said(failed: &BTreeMap<String, String>) -> io::Result<()> {
    if failed.is_empty() {
        return Ok(());
    }
    let each = failed
        .iter()
        .map(|(name, why)| format!("disk {name:?}: {why}"));
    Err(io::Error::other(each.collect::<Vec<_>>().join("; ")))
}

/// Flushes the disks that are writable, each on a thread of its own: one may hang. Those that have not answered at
/// `deadline` are left behind. Returns the names of the disks that could not be flushed, and why.
pub(crate) fn flush_each(volumes: &[Arc<Volume>], deadline: Instant) -> BTreeMap<String, String> {
    let (answer, answers) = mpsc::channel();
    let mut waiting = BTreeMap::new();
    let mut failed = BTreeMap::new();
    for (at, volume) in volumes.iter().enumerate() {
        if volume.is_read_only() {
            continue;
        }
        let (flushed, answer) = (Arc::clone(volume), answer.clone());
        let started = std::thread::Builder::new()
            .name("justitia-flush".into())
            .spawn(move || {
                // Nobody waits for it any more where it was left behind.
                let _ = answer.send((at, flushed.backend().disk().flush()));
            });
        match started {
            Ok(_) => _ = waiting.insert(at, volume.name()),
            Err(e) => _ = failed.insert(volume.name().to_owned(), e.to_string()),
        }
    }
    drop(answer);
    while !waiting.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok((at, result)) = answers.recv_timeout(left) else {
            break;
        };
        if let (Some(name), Err(e)) = (waiting.remove(&at), result) {
            failed.insert(name.to_owned(), e.to_string());
        }
    }
    let hung = waiting.values();
    let why = "no answer, it was left behind";
    failed.extend(hung.map(|name| ((*name).to_owned(), why.to_owned())));
    failed
}
