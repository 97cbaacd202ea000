//! The control socket of a daemon: its server and its client.

#![deny(clippy::indexing_slicing)]

use super::api::{ControlRequest, ControlResponse};
use super::daemon::Daemon;
use super::error::ServeError;
use crate::frontend::{SocketAccess, Waker, unix_listener};
use crate::inherited;
use justitia_api::client;
use std::fs::DirBuilder;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

// The control socket: one JSON object a line, each answered by one line. Only this user and root may connect.

/// Maximum number of concurrent clients.
const MAX_CLIENTS: usize = 32;

/// The longest request, bytes.
const MAX_LINE: u64 = 64 << 10;

/// A control socket, and the thread that accepts its clients.
pub(in crate::serve) struct ControlServer {
    socket: OwnedFd,
    waker: Waker,
    /// Removed at the end; `None` for a socket that systemd has made.
    path: Option<PathBuf>,
    closing: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<()>,
}

impl ControlServer {
    /// Listens on `path`, for this user and root alone.
    ///
    /// # Errors
    /// When the socket, its directory or the thread cannot be made.
    pub(in crate::serve) fn start(path: &Path, daemon: Arc<Daemon>) -> Result<Self, ServeError> {
        let io = |what| move |e: io::Error| ServeError::Refused(format!("{what}: {e}"));
        make_directory_of(path).map_err(io("cannot make the control socket's directory"))?;
        let (socket, ours) = match inherited::take_unix(path) {
            Some(found) => (found.socket, found.ours),
            None => (unix_listener(path, SocketAccess::default())?, true),
        };
        let waker = Waker::new(&socket).map_err(io("cannot listen on the control socket"))?;
        let listener: UnixListener = socket
            .as_fd()
            .try_clone_to_owned()
            .map_err(io("cannot listen on the control socket"))?
            .into();
        let closing = Arc::new(AtomicBool::new(false));
        let (flag, woken) = (Arc::clone(&closing), waker.clone());
        let thread = std::thread::Builder::new()
            .name("justitia-ctl".into())
            .spawn(move || accept(&listener, &woken, &daemon, &flag))
            .map_err(io("cannot start the control thread"))?;
        Ok(Self {
            socket,
            waker,
            path: ours.then(|| path.to_owned()),
            closing,
            thread,
        })
    }

    /// Stops the accepting thread. Returns the socket, and its path if this daemon has made it.
    pub(in crate::serve) fn stop_keeping(self) -> (OwnedFd, Option<PathBuf>) {
        self.closing.store(true, Ordering::SeqCst);
        self.waker.wake();
        let _ = self.thread.join();
        (self.socket, self.path)
    }
}

fn accept(listener: &UnixListener, waker: &Waker, daemon: &Arc<Daemon>, closing: &AtomicBool) {
    let clients = Arc::new(AtomicUsize::new(0));
    loop {
        waker.wait(listener);
        if closing.load(Ordering::SeqCst) {
            return;
        }
        let Ok((stream, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if clients.fetch_add(1, Ordering::SeqCst) >= MAX_CLIENTS {
            clients.fetch_sub(1, Ordering::SeqCst);
            tracing::warn!("refused a control client: there are {MAX_CLIENTS}");
            continue;
        }
        let (daemon, connected) = (Arc::clone(daemon), Arc::clone(&clients));
        let started = std::thread::Builder::new()
            .name("justitia-ctl".into())
            .spawn(move || {
                if let Err(e) = serve(stream, &daemon) {
                    tracing::info!("a control client's connection broke: {e}");
                }
                connected.fetch_sub(1, Ordering::SeqCst);
            });
        if let Err(e) = started {
            clients.fetch_sub(1, Ordering::SeqCst);
            tracing::error!("cannot start a thread for a control client: {e}");
        }
    }
}

/// Serves one client, until it leaves.
fn serve(stream: UnixStream, daemon: &Daemon) -> io::Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(&stream)?;
    if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "the client is neither root nor this user",
        ));
    }
    // A client that stops in the middle must not hold a thread forever.
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
        let mut response = serde_json::to_vec(&respond(&line, daemon))?;
        response.push(b'\n');
        writer.write_all(&response)?;
        if !line.ends_with(b"\n") {
            return Ok(());
        }
    }
}

fn respond(line: &[u8], daemon: &Daemon) -> ControlResponse {
    let request: ControlRequest = match serde_json::from_slice(line) {
        Ok(request) => request,
        Err(e) => {
            return ControlResponse::Error(format!("expected a request as one line of JSON: {e}"));
        }
    };
    match daemon.answer(&request) {
        Ok(answer) => ControlResponse::Ok(answer),
        Err(e) => ControlResponse::Error(e.to_string()),
    }
}

// A client of the control socket.

/// The longest response that is taken, bytes.
const MAX_RESPONSE: u64 = 64 << 20;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No server answers on the socket.
    #[error(
        "cannot connect to {path}: {source}: is `justitia cache serve` running, with this control socket?"
    )]
    Connect {
        /// The socket.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The server refused, or its response cannot be read.
    #[error("{0}")]
    Refused(String),
}

/// The default path of the control socket: `/run/justitia/cache.sock` for root, `$XDG_RUNTIME_DIR/justitia-cache.sock` for
/// others, `/tmp/justitia-UID/cache.sock` where that is not set.
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

/// Makes the directory of a socket if it is missing, for this user alone.
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
    let mut stream = client::connect(path).map_err(|e| connect(client::hangs(e)))?;
    let wait = Some(Duration::from_secs(60));
    stream.set_read_timeout(wait).map_err(connect)?;
    stream.set_write_timeout(wait).map_err(connect)?;
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
        Err(_) => Err(ControlError::Refused(format!(
            "expected a line of JSON from {}, found {response:?}",
            path.display()
        ))),
    }
}
