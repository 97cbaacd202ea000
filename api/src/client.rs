//! The client's side of a status socket: connect, read one JSON document until the end.

use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use serde::de::DeserializeOwned;

use crate::Status;

/// An answer is not longer than this, bytes (5,000 tenants are about 2 MiB).
pub const MAX_ANSWER_BYTES: usize = 16 << 20;

/// How long [`ask`] waits for an answer. On a busy host the agent may get little of the processor, and while it starts it
/// answers no client.
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
    answer(&connect(path).map_err(hangs)?, timeout)
}

/// Connects to a listener, if it can take one more client at once.
///
/// # Errors
/// `WouldBlock` if as many clients wait to be accepted as it lets wait: a `connect` of the standard library would wait with them, without a
/// limit. Others as of `connect`.
pub fn connect(path: &Path) -> Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Why a daemon takes no client: of [`connect`]'s error. `WouldBlock` becomes [`ErrorKind::TimedOut`], in words.
#[must_use]
pub fn hangs(error: Error) -> Error {
    match error.kind() {
        ErrorKind::WouldBlock => Error::new(
            ErrorKind::TimedOut,
            "it runs, but takes no client: as many as may wait for it do so already, so it is busy, or hangs",
        ),
        _ => error,
    }
}

/// What it answers until `timeout` has passed.
pub(crate) fn answer<T: DeserializeOwned>(mut client: &UnixStream, timeout: Duration) -> Result<T> {
    let until = Instant::now() + timeout;
    let mut text = Vec::new();
    let mut part = vec![0; 64 << 10];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(busy(timeout));
        }
        // A timeout of 0 would be none.
        client.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
        match client.read(&mut part) {
            Ok(0) => break,
            Ok(read) => text.extend_from_slice(part.get(..read).unwrap_or_default()),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() != ErrorKind::WouldBlock => return Err(e),
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

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{bind, listen};
    use std::io::Write;

    #[test]
    fn a_daemon_that_takes_no_client_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let flags = SocketFlags::CLOEXEC;
        let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 1).unwrap();
        // As many as it lets wait, and more.
        let waiting: Vec<_> = (0..8).map_while(|_| connect(&path).ok()).collect();
        assert!((1..8).contains(&waiting.len()), "{}", waiting.len());
        let error = ask(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("takes no client"), "{error}");
        assert!(
            crate::control::is_starting(&path),
            "it has no control socket"
        );
    }

    #[test]
    fn an_answer_that_trickles_is_not_waited_for_without_end() {
        let (client, mut daemon) = UnixStream::pair().unwrap();
        let trickles = std::thread::spawn(move || {
            while daemon.write_all(b" ").is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let error = answer::<Status>(&client, Duration::from_millis(50)).unwrap_err();
        drop(client);
        trickles.join().unwrap();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
    }
}
