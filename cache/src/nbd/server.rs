//! Listening, accepting, ending.

use super::connection::{Context, Exports, run};
use super::export::Export;
use super::handshake::{Catalogue, Offer};
use super::tls::{TlsError, TlsFiles};
use super::transport::Transport;
use super::workers::Workers;
use parking_lot::{Condvar, Mutex, RwLock};
use rustix::fs::Mode;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, shutdown, socket_with, sockopt,
};
use rustls::ServerConfig;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a server allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Clients at a time; more are turned away.
    pub connections: usize,
    /// Requests of a client that wait for a disk.
    pub in_flight: usize,
    /// Bytes of payload that they hold.
    pub in_flight_bytes: usize,
    /// Threads that wait for disks, for all clients together.
    pub workers: usize,
    /// Let images be read and written through io_uring, where the host has it; otherwise workers do it all.
    pub rings: bool,
    /// Time for a client to come to terms.
    pub negotiation: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            in_flight: 128,
            in_flight_bytes: 32 << 20,
            workers: 64,
            rings: true,
            negotiation: Duration::from_secs(15),
        }
    }
}

/// Why a socket cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Somebody does already.
    #[error(
        "cannot listen on {path}: another server answers there: stop it, or choose another path"
    )]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// Something else has that name.
    #[error("cannot listen on {path}: expected a socket or nothing, found another kind of file")]
    NoSocket {
        /// The path.
        path: PathBuf,
    },
    /// The system refused.
    #[error("cannot listen on {what}: {source}")]
    Io {
        /// The socket or address.
        what: String,
        /// Why not.
        source: io::Error,
    },
}

/// An NBD server.
pub struct Server {
    exports: Arc<Table>,
    workers: Workers,
    limits: Limits,
    tls: Option<Arc<ServerConfig>>,
    clients: Arc<Clients>,
    listeners: Mutex<Vec<Listener>>,
}

struct Listener {
    socket: Arc<OwnedFd>,
    path: Option<PathBuf>,
    thread: std::thread::JoinHandle<()>,
}

#[derive(Default)]
struct Table {
    exports: RwLock<BTreeMap<String, Arc<Export>>>,
}

#[derive(Default)]
struct Clients {
    sockets: Mutex<HashMap<u64, Arc<OwnedFd>>>,
    next: AtomicU64,
    gone: Condvar,
    closing: AtomicBool,
}

impl Catalogue for Table {
    fn find(&self, name: &str) -> Option<Offer> {
        self.open(name).map(|e| e.offer())
    }

    fn list(&self) -> Vec<Offer> {
        self.exports.read().values().map(|e| e.offer()).collect()
    }
}

impl Exports for Table {
    /// The empty name is the export of that name or, if there is only one, that.
    fn open(&self, name: &str) -> Option<Arc<Export>> {
        let exports = self.exports.read();
        let only = || (name.is_empty() && exports.len() == 1).then(|| exports.values().next());
        exports.get(name).or_else(|| only().flatten()).cloned()
    }
}

impl Server {
    /// A server that serves nothing yet and listens nowhere.
    ///
    /// # Errors
    /// When the certificates cannot be used.
    pub fn new(limits: Limits, tls: Option<&TlsFiles>) -> Result<Self, TlsError> {
        Ok(Self {
            exports: Arc::default(),
            workers: Workers::new(limits.workers),
            limits,
            tls: tls.map(TlsFiles::load).transpose()?,
            clients: Arc::default(),
            listeners: Mutex::default(),
        })
    }

    /// Another server with the same limits, certificates and workers, which serves nothing yet.
    #[must_use]
    pub fn sibling(&self) -> Self {
        Self {
            exports: Arc::default(),
            workers: self.workers.clone(),
            limits: self.limits,
            tls: self.tls.clone(),
            clients: Arc::default(),
            listeners: Mutex::default(),
        }
    }

    /// Serves `export` from now on; one of the same name is replaced for new clients.
    pub fn add(&self, export: impl Into<Arc<Export>>) {
        let export = export.into();
        let name = export.name().to_owned();
        self.exports.exports.write().insert(name, export);
    }

    /// What is served, by name.
    #[must_use]
    pub fn exports(&self) -> Vec<Arc<Export>> {
        self.exports.exports.read().values().cloned().collect()
    }

    /// Clients at this moment.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.sockets.lock().len()
    }

    /// Listens on a unix socket that only this user can connect to. A socket that nobody serves any more is
    /// replaced. TLS is offered there, not required.
    ///
    /// # Errors
    /// When something else is there, or the system refuses.
    pub fn listen_unix(&self, path: &Path) -> Result<(), ListenError> {
        let socket = unix_listener(path)?;
        self.listen(socket, Some(path), false)
            .map_err(|source| ListenError::Io {
                what: path.display().to_string(),
                source,
            })
    }

    /// Listens on a TCP address; TLS is required if there are certificates. Returns the address, with the
    /// port that was chosen if it was 0.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn listen_tcp(&self, address: SocketAddr) -> Result<SocketAddr, ListenError> {
        let listen = || {
            let listener = TcpListener::bind(address)?;
            let address = listener.local_addr()?;
            self.listen(listener.into(), None, self.tls.is_some())?;
            Ok(address)
        };
        listen().map_err(|source| ListenError::Io {
            what: address.to_string(),
            source,
        })
    }

    fn listen(&self, socket: OwnedFd, path: Option<&Path>, tls_required: bool) -> io::Result<()> {
        let socket = Arc::new(socket);
        let acceptor = Acceptor {
            socket: Arc::clone(&socket),
            tcp: path.is_none(),
            clients: Arc::clone(&self.clients),
            context: Arc::new(Context {
                catalogue: self.exports.clone(),
                workers: self.workers.clone(),
                limits: self.limits,
                tls: self.tls.clone(),
                tls_required,
            }),
        };
        let thread = std::thread::Builder::new()
            .name("justitia-nbd".into())
            .spawn(move || acceptor.run())?;
        self.listeners.lock().push(Listener {
            socket,
            path: path.map(Path::to_owned),
            thread,
        });
        Ok(())
    }

    /// Ends: no new clients and no new requests; what is in flight is finished, its replies are sent, and
    /// all disks are flushed. Clients that do not take their replies within `patience` are cut off.
    ///
    /// # Errors
    /// When a disk could not be flushed.
    pub fn shut_down(&self, patience: Duration) -> io::Result<()> {
        self.clients.closing.store(true, Ordering::SeqCst);
        for listener in self.listeners.lock().drain(..) {
            // Wakes the thread that accepts.
            let _ = shutdown(&listener.socket, Shutdown::Both);
            let _ = listener.thread.join();
            if let Some(path) = listener.path {
                let _ = std::fs::remove_file(path);
            }
        }
        self.clients.end(Shutdown::Read, patience);
        self.clients.end(Shutdown::Both, Duration::from_secs(1));
        let mut done = Ok(());
        for export in self.exports() {
            if !export.is_read_only()
                && let Err(e) = export.served().disk().flush()
            {
                tracing::error!(export = export.name(), "cannot flush: {e}");
                done = Err(e);
            }
        }
        done
    }
}

impl Clients {
    fn end(&self, how: Shutdown, patience: Duration) {
        let deadline = Instant::now() + patience;
        let mut sockets = self.sockets.lock();
        for socket in sockets.values() {
            // A client that is gone already is what we want.
            let _ = shutdown(socket, how);
        }
        while !sockets.is_empty() && !self.gone.wait_until(&mut sockets, deadline).timed_out() {}
    }
}

struct Acceptor {
    socket: Arc<OwnedFd>,
    tcp: bool,
    clients: Arc<Clients>,
    context: Arc<Context>,
}

impl Acceptor {
    fn run(self) {
        loop {
            let accepted = accept_with(&self.socket, SocketFlags::CLOEXEC);
            if self.clients.closing.load(Ordering::SeqCst) {
                return;
            }
            match accepted {
                Ok(socket) => {
                    let id = self.clients.next.fetch_add(1, Ordering::Relaxed);
                    self.client(id, Arc::new(socket));
                }
                Err(e) => {
                    // Out of descriptors or the like: it passes.
                    tracing::warn!("cannot accept a client: {e}");
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    fn client(&self, id: u64, socket: Arc<OwnedFd>) {
        if self.tcp
            && let Err(e) = sockopt::set_tcp_nodelay(&socket, true)
        {
            tracing::debug!("no TCP_NODELAY: {e}");
        }
        {
            let mut sockets = self.clients.sockets.lock();
            if sockets.len() >= self.context.limits.connections {
                tracing::warn!(
                    "turned a client away: {} are connected, which is the limit",
                    sockets.len()
                );
                return;
            }
            sockets.insert(id, Arc::clone(&socket));
        }
        let context = Arc::clone(&self.context);
        let clients = Arc::clone(&self.clients);
        let started = std::thread::Builder::new()
            .name("justitia-nbd".into())
            .spawn(move || {
                let _leaving = Leaving { id, clients };
                if let Err(e) = run(Transport::new(socket), &context) {
                    tracing::info!("a client's connection broke: {e}");
                }
            });
        if let Err(e) = started {
            tracing::error!("cannot start a thread for a client: {e}");
            self.clients.sockets.lock().remove(&id);
        }
    }
}

/// Leaves the table of clients, also when the connection panicked.
struct Leaving {
    id: u64,
    clients: Arc<Clients>,
}

impl Drop for Leaving {
    fn drop(&mut self) {
        self.clients.sockets.lock().remove(&self.id);
        self.clients.gone.notify_all();
    }
}

/// A listening unix socket for this user alone, in the place of one that nobody serves any more.
///
/// # Errors
/// When something else is there, or the system refuses.
pub fn unix_listener(path: &Path) -> Result<OwnedFd, ListenError> {
    let io_error = |source: io::Error| ListenError::Io {
        what: path.display().to_string(),
        source,
    };
    let errno = |e: rustix::io::Errno| io_error(e.into());
    let new = || {
        socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
    };
    let address = SocketAddrUnix::new(path).map_err(errno)?;
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ListenError::NoSocket { path: path.into() });
        }
        Ok(_) => {
            if connect(&new().map_err(errno)?, &address).is_ok() {
                return Err(ListenError::InUse { path: path.into() });
            }
            std::fs::remove_file(path).map_err(io_error)?;
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(io_error(e)),
    }
    let socket = new().map_err(errno)?;
    bind(&socket, &address).map_err(errno)?;
    // Nobody can connect before listen, so nobody gets in before this.
    rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR).map_err(errno)?;
    listen(&socket, 128).map_err(errno)?;
    Ok(socket)
}
