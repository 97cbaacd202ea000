//! The client's side of the status socket: connect, read one JSON document until the end.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::Status;

/// An answer is not longer than this, bytes (5,000 tenants are about 2 MiB).
pub const MAX_ANSWER_BYTES: usize = 16 << 20;

/// Asks the agent that listens at `path`.
///
/// # Errors
/// If none does, or its answer is not understood.
pub fn ask(path: &Path) -> std::io::Result<Status> {
    let client = UnixStream::connect(path)?;
    client.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut text = Vec::new();
    // One byte more, and what an agent of another version tells beyond is not taken for a broken one.
    let longest = u64::try_from(MAX_ANSWER_BYTES).unwrap_or(u64::MAX);
    client.take(longest + 1).read_to_end(&mut text)?;
    if text.len() > MAX_ANSWER_BYTES {
        return Err(std::io::Error::other(format!(
            "expected an answer of at most {} MiB, found more: is it an agent of this version that listens there?",
            MAX_ANSWER_BYTES >> 20
        )));
    }
    serde_json::from_slice(&text).map_err(std::io::Error::other)
}
