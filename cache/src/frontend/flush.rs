//! The flush of all disks when the daemon ends.

use super::volume::Volume;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, mpsc};
use std::time::Instant;

/// Flushes the disks that are writable, each on a thread of its own: one may hang. Those that have not answered at
/// `deadline` are left behind.
///
/// # Errors
/// When a disk cannot be flushed, or is left behind. The error names all of them.
pub(crate) fn flush_all(volumes: &[Arc<Volume>], deadline: Instant) -> io::Result<()> {
    let (answer, answers) = mpsc::channel();
    let mut waiting = BTreeMap::new();
    let mut failed = Vec::new();
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
            Err(e) => failed.push(format!("disk {:?}: {e}", volume.name())),
        }
    }
    drop(answer);
    while !waiting.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok((at, result)) = answers.recv_timeout(left) else {
            break;
        };
        if let (Some(name), Err(e)) = (waiting.remove(&at), result) {
            failed.push(format!("disk {name:?}: {e}"));
        }
    }
    let hung = waiting.values();
    failed.extend(hung.map(|name| format!("disk {name:?}: no answer, it was left behind")));
    if failed.is_empty() {
        return Ok(());
    }
    Err(io::Error::other(failed.join("; ")))
}
