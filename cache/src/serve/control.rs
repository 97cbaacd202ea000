//! The control socket: one JSON object a line, each answered by one line. Only this user and root may ask.

use super::service::{ServeError, Stats};
use super::size::Size;
use crate::{Policy, StoreKind};
use serde::{Deserialize, Serialize};
use std::fs::DirBuilder;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest question.
const MAX_LINE: u64 = 64 << 10;
/// The longest answer that a client takes.
const MAX_ANSWER: u64 = 64 << 20;

/// What may be asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Ask {
    /// Everything there is to tell.
    Stats,
    /// Change a VM.
    SetVm {
        /// Its name.
        vm: String,
        /// Its new weight.
        weight: Option<u64>,
        /// Its new eviction policy.
        policy: Option<Policy>,
    },
    /// Change a pool (SET_CG_WEIGHT ⟨T, W⟩), or make a new one (CREATE_CGROUP).
    SetPool {
        /// The VM.
        vm: String,
        /// The pool's name.
        pool: String,
        /// Its new weight.
        weight: Option<u64>,
        /// Its new store.
        store: Option<StoreKind>,
        /// There is none of that name yet: make it.
        #[serde(default)]
        create: bool,
    },
    /// Remove a pool and its blocks (DESTROY_CGROUP).
    DestroyPool {
        /// The VM.
        vm: String,
        /// The pool's name.
        pool: String,
    },
    /// Change the size of a store.
    SetStore {
        /// Which.
        store: StoreKind,
        /// Its new size.
        size: Size,
    },
}

/// An answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reply {
    /// Done; for `stats`, what there is to tell.
    Ok(serde_json::Value),
    /// Refused, and why.
    Error(String),
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// Nobody is there.
    #[error(
        "cannot ask {path}: {source}: is `justitia cache serve` running, with this control socket?"
    )]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The answer is none.
    #[error("expected a line of JSON from {path}, found {found:?}")]
    Answer {
        /// The socket.
        path: PathBuf,
        /// What came.
        found: String,
    },
    /// The server refused.
    #[error("{0}")]
    Refused(String),
}

/// Where the control socket is unless it is configured: `/run/justitia/cache.sock` for root,
/// `$XDG_RUNTIME_DIR/justitia-cache.sock` for others, `/tmp/justitia-UID/cache.sock` where that is not set.
#[must_use]
pub fn default_control_path() -> PathBuf {
    let user = rustix::process::geteuid();
    if user.is_root() {
        return PathBuf::from("/run/justitia/cache.sock");
    }
    if let Some(dir) = std::env::var_os("XDG_RUNTIME_DIR") {
        return PathBuf::from(dir).join("justitia-cache.sock");
    }
    let dir = format!("justitia-{}", user.as_raw());
    std::env::temp_dir().join(dir).join("cache.sock")
}

/// Makes the directory of a socket, if there is none, for this user alone.
///
/// # Errors
/// When it cannot be made.
pub fn make_directory_of(socket: &Path) -> io::Result<()> {
    match socket.parent() {
        Some(dir) => DirBuilder::new().recursive(true).mode(0o700).create(dir),
        None => Ok(()),
    }
}

/// Asks the server behind `path`.
///
/// # Errors
/// When nobody answers, or the server refuses.
pub fn ask(path: &Path, question: &Ask) -> Result<serde_json::Value, AskError> {
    let connect = |source| AskError::Connect {
        path: path.into(),
        source,
    };
    let mut stream = UnixStream::connect(path).map_err(connect)?;
    let wait = Some(Duration::from_secs(60));
    stream.set_read_timeout(wait).map_err(connect)?;
    let mut line = serde_json::to_vec(question).map_err(|e| connect(e.into()))?;
    line.push(b'\n');
    stream.write_all(&line).map_err(connect)?;
    let mut answer = String::new();
    BufReader::new(stream.take(MAX_ANSWER))
        .read_line(&mut answer)
        .map_err(connect)?;
    match serde_json::from_str(&answer) {
        Ok(Reply::Ok(value)) => Ok(value),
        Ok(Reply::Error(why)) => Err(AskError::Refused(why)),
        Err(_) => Err(AskError::Answer {
            path: path.into(),
            found: answer,
        }),
    }
}

/// What answers.
pub trait Answers: Send + Sync {
    /// Everything there is to tell.
    fn stats(&self) -> Stats;
    /// Does what was asked.
    fn change(&self, ask: &Ask) -> Result<(), ServeError>;
}

/// Answers one client, until it leaves.
pub fn answer(stream: UnixStream, from: &dyn Answers) -> io::Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(&stream)?;
    if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the client is neither root nor this user",
        ));
    }
    // A client that does not go on must not hold a thread for ever.
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    stream.set_write_timeout(Some(Duration::from_secs(60)))?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    loop {
        let mut line = Vec::new();
        let count = (&mut reader).take(MAX_LINE).read_until(b'\n', &mut line)?;
        if count == 0 {
            return Ok(());
        }
        let mut reply = serde_json::to_vec(&respond(&line, from))?;
        reply.push(b'\n');
        writer.write_all(&reply)?;
        if !line.ends_with(b"\n") {
            return Ok(());
        }
    }
}

fn respond(line: &[u8], from: &dyn Answers) -> Reply {
    let ask = match serde_json::from_slice(line) {
        Ok(ask) => ask,
        Err(e) => return Reply::Error(format!("expected a question as one line of JSON: {e}")),
    };
    if ask == Ask::Stats {
        return match serde_json::to_value(from.stats()) {
            Ok(value) => Reply::Ok(value),
            Err(e) => Reply::Error(e.to_string()),
        };
    }
    match from.change(&ask) {
        Ok(()) => Reply::Ok(serde_json::Value::Null),
        Err(e) => Reply::Error(e.to_string()),
    }
}
