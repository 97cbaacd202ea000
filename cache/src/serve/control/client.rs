//! A client of the control socket.

use crate::serve::api::{ControlRequest, ControlResponse};
use std::fs::DirBuilder;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest response that is taken, bytes.
const MAX_RESPONSE: u64 = 64 << 20;

/// Why a request was not answered, or refused.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No server answers there.
    #[error(
        "cannot connect to {path}: {source}: is `justitia cache serve` running, with this control socket?"
    )]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The response cannot be read.
    #[error("expected a line of JSON from {path}, found {found:?}")]
    Response {
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

/// Sends a request to the server behind `path`, and waits up to a minute for the response.
///
/// # Errors
/// When no server answers, or it refuses.
pub fn send_request(
    path: &Path,
    request: &ControlRequest,
) -> Result<serde_json::Value, ControlError> {
    let connect = |source| ControlError::Connect {
        path: path.into(),
        source,
    };
    let mut stream = UnixStream::connect(path).map_err(connect)?;
    let wait = Some(Duration::from_secs(60));
    stream.set_read_timeout(wait).map_err(connect)?;
    let mut line = serde_json::to_vec(request).map_err(|e| connect(e.into()))?;
    line.push(b'\n');
    stream.write_all(&line).map_err(connect)?;
    let mut response = String::new();
    BufReader::new(stream.take(MAX_RESPONSE))
        .read_line(&mut response)
        .map_err(connect)?;
    match serde_json::from_str(&response) {
        Ok(ControlResponse::Ok(value)) => Ok(value),
        Ok(ControlResponse::Error(why)) => Err(ControlError::Refused(why)),
        Err(_) => Err(ControlError::Response {
            path: path.into(),
            found: response,
        }),
    }
}
