//! The client's side of a status socket: connect, read one JSON document until the end.

use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;

use crate::Status;

/// An answer is not longer than this, bytes (5,000 tenants are about 2 MiB).
pub const MAX_ANSWER_BYTES: usize = 16 << 20;

/// How long [`ask`] waits for an answer. On a busy host the agent may get little of the processor, and while it starts it
/// answers nobody.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Asks the agent that listens at `path`, and waits [`ANSWER_TIMEOUT`] for its answer.
///
/// # Errors
/// As of [`ask_within`].
pub fn ask(path: &Path) -> Result<Status> {
    ask_within(path, ANSWER_TIMEOUT)
}

/// Asks the daemon that listens at `path`, and waits for its whole answer until `timeout` has passed.
///
/// # Errors
/// If none does, or its answer is not understood. [`ErrorKind::TimedOut`]: one has the socket open, but is busy or hangs.
pub fn ask_within<T: DeserializeOwned>(path: &Path, timeout: Duration) -> Result<T> {
    answer(&UnixStream::connect(path)?, timeout)
}

/// What it answers until `timeout` has passed.
pub(crate) fn answer<T: DeserializeOwned>(mut client: &UnixStream, timeout: Duration) -> Result<T> {
    let until = Instant::now() + timeout;
    let mut text = Vec::new();
    let mut part = vec![0; 64 << 10];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        // A timeout of 0 would be none.
        client.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match client.read(&mut part) {
            Ok(0) => break,
            Ok(read) => text.extend_from_slice(part.get(..read).unwrap_or_default()),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() != ErrorKind::WouldBlock => return Err(e),
            Err(_) if left.is_zero() => return Err(busy(timeout)),
            Err(_) => {}
        }
        // What a daemon of another version tells beyond is not taken for a broken one.
        if text.len() > MAX_ANSWER_BYTES {
            return Err(Error::other(format!(
                "expected an answer of at most {} MiB, found more: is it a daemon of this version that listens there?",
                MAX_ANSWER_BYTES >> 20
            )));
        }
    }
    serde_json::from_slice(&text).map_err(Error::other)
}

fn busy(timeout: Duration) -> Error {
    let what = format!("it runs, but has not answered within {timeout:?}: it is busy, or hangs");
    Error::new(ErrorKind::TimedOut, what)
}
