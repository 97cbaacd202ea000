//! Listening, accepting, ending.

use super::catalogue::Table;
use super::connection::{Context, run};
use super::export::Export;
use super::tls::{TlsError, TlsFiles};
use super::transport::Transport;
use super::workers::Workers;
use parking_lot::{Condvar, Mutex};
use rustix::fs::Mode;
use rustix::net::{
    AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, shutdown, socket_with, sockopt,
};
use rustls::ServerConfig;
use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a server allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Clients at a time on a listener; more are turned away, except that a client that has not come to terms yet gives
    /// way to a new one.
    pub connections: usize,
    /// Of them, those of one VM.
    pub vm_connections: usize,
    /// Requests of a client that wait for a disk.
    pub in_flight: usize,
    /// Bytes of payload that they hold.
    pub in_flight_bytes: usize,
    /// Threads that wait for disks, for all clients together. One VM has at most a quarter of them.
    pub workers: usize,
    /// Threads that wait for the SSD store, for all clients together.
    pub ssd_workers: usize,
    /// Let images be read and written through io_uring, where the host has it; otherwise workers do it all.
    pub rings: bool,
    /// Time for a client to come to terms.
    pub negotiation: Duration,
    /// Time in which a client must take at least a part of the replies that wait for it.
    pub send: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            vm_connections: 64,
            in_flight: 128,
            in_flight_bytes: 32 << 20,
            workers: 64,
            ssd_workers: 16,
            rings: true,
            negotiation: Duration::from_secs(15),
            send: Duration::from_secs(120),
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
    /// Whoever writes the directory decides who is talked to.
    #[error(
        "cannot listen on {path}: expected a directory that only this user or root may write, found one of the user {uid} with mode {mode:03o}: choose another, such as one in /run or $XDG_RUNTIME_DIR"
    )]
    Directory {
        /// The socket.
        path: PathBuf,
        /// The owner of its directory.
        uid: u32,
        /// The mode of its directory.
        mode: u32,
    },
    /// A TCP port that would ask nobody for a certificate.
    #[error(
        "cannot listen on {address}: expected certificates of clients ([tls] with verify_clients) or `insecure = true`, found neither: whoever reaches the address could read and write every disk"
    )]
    Unauthenticated {
        /// The address.
        address: SocketAddr,
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
    ssd_workers: Workers,
    limits: Limits,
    tls: Option<Arc<ServerConfig>>,
    /// TLS asks clients for certificates.
    verifies: bool,
    clients: Arc<Clients>,
    listeners: Mutex<Vec<Listener>>,
}

/// What a listener asks of its clients.
#[derive(Clone, Copy)]
struct Access {
    /// TLS before anything else.
    tls_required: bool,
    /// A certificate, which says what they see.
    certified: bool,
}

struct Listener {
    socket: Arc<OwnedFd>,
    path: Option<PathBuf>,
    thread: std::thread::JoinHandle<()>,
}

#[derive(Default)]
struct Clients {
    sockets: Mutex<BTreeMap<u64, Client>>,
    next: AtomicU64,
    gone: Condvar,
    closing: AtomicBool,
}

struct Client {
    socket: Arc<OwnedFd>,
    /// It has not come to terms yet, and is the first to go when there are too many.
    negotiates: bool,
}

impl Server {
    /// A server that serves nothing yet and listens nowhere.
    ///
    /// # Errors
    /// When the certificates cannot be used.
    pub fn new(limits: Limits, tls: Option<&TlsFiles>) -> Result<Self, TlsError> {
        Ok(Self {
            exports: Arc::default(),
            workers: Workers::new(limits.workers, limits.workers / 4),
            // All of them wait for the same device: no part would be kept from others by it.
            ssd_workers: Workers::new(limits.ssd_workers, limits.ssd_workers),
            limits,
            tls: tls.map(TlsFiles::load).transpose()?,
            verifies: tls.is_some_and(|tls| tls.verify_clients),
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
            ssd_workers: self.ssd_workers.clone(),
            limits: self.limits,
            tls: self.tls.clone(),
            verifies: self.verifies,
            clients: Arc::default(),
            listeners: Mutex::default(),
        }
    }

    /// Serves `export` from now on; one of the same name is replaced for new clients.
    pub fn add(&self, export: impl Into<Arc<Export>>) {
        self.exports.add(export.into());
    }

    /// What is served, by name.
    #[must_use]
    pub fn exports(&self) -> Vec<Arc<Export>> {
        self.exports.all()
    }

    /// Clients at this moment.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.sockets.lock().len()
    }

    /// Listens on a unix socket that only this user can connect to, in a directory that no other user writes. A socket
    /// that nobody serves any more is replaced. TLS is offered there, not required.
    ///
    /// # Errors
    /// When something else is there, others may write the directory, or the system refuses.
    pub fn listen_unix(&self, path: &Path) -> Result<(), ListenError> {
        let socket = unix_listener(path)?;
        let access = Access {
            tls_required: false,
            certified: false,
        };
        self.listen(socket, Some(path), access)
            .map_err(|source| ListenError::Io {
                what: path.display().to_string(),
                source,
            })
    }

    /// Listens on a TCP address. Clients must show certificates, and see the disks of the VMs that these belong to. With
    /// `insecure` whoever can connect sees everything; TLS is then required if there are certificates. Returns the
    /// address, with the port that was chosen if it was 0.
    ///
    /// # Errors
    /// When certificates are wanted and not asked for, or the system refuses.
    pub fn listen_tcp(
        &self,
        address: SocketAddr,
        insecure: bool,
    ) -> Result<SocketAddr, ListenError> {
        if !insecure && !self.verifies {
            return Err(ListenError::Unauthenticated { address });
        }
        let access = Access {
            tls_required: self.tls.is_some(),
            certified: !insecure,
        };
        let listen = || {
            let listener = TcpListener::bind(address)?;
            let address = listener.local_addr()?;
            self.listen(listener.into(), None, access)?;
            Ok(address)
        };
        listen().map_err(|source| ListenError::Io {
            what: address.to_string(),
            source,
        })
    }

    fn listen(&self, socket: OwnedFd, path: Option<&Path>, access: Access) -> io::Result<()> {
        let socket = Arc::new(socket);
        let acceptor = Acceptor {
            socket: Arc::clone(&socket),
            tcp: path.is_none(),
            clients: Arc::clone(&self.clients),
            context: Arc::new(Context {
                exports: Arc::clone(&self.exports),
                certified: access.certified,
                workers: self.workers.clone(),
                ssd_workers: self.ssd_workers.clone(),
                limits: self.limits,
                tls: self.tls.clone(),
                tls_required: access.tls_required,
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
    /// Takes a client on; `false` when there are `most`, and none of them gives way.
    fn take_on(&self, id: u64, socket: &Arc<OwnedFd>, most: usize) -> bool {
        let mut sockets = self.sockets.lock();
        if sockets.len() >= most {
            let Some(oldest) = sockets.values_mut().find(|c| c.negotiates) else {
                return false;
            };
            // Cut off, it leaves by itself.
            oldest.negotiates = false;
            let _ = shutdown(&oldest.socket, Shutdown::Both);
        }
        let client = Client {
            socket: Arc::clone(socket),
            negotiates: true,
        };
        sockets.insert(id, client);
        true
    }

    /// A client has come to terms.
    fn agreed(&self, id: u64) {
        if let Some(client) = self.sockets.lock().get_mut(&id) {
            client.negotiates = false;
        }
    }

    fn end(&self, how: Shutdown, patience: Duration) {
        let deadline = Instant::now() + patience;
        let mut sockets = self.sockets.lock();
        for client in sockets.values() {
            // A client that is gone already is what we want.
            let _ = shutdown(&client.socket, how);
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
        let limits = self.context.limits;
        if self.tcp
            && let Err(e) = set_up_tcp(&socket, limits.send)
        {
            tracing::warn!("turned a client away: cannot set its socket up: {e}");
            return;
        }
        if !self.clients.take_on(id, &socket, limits.connections) {
            tracing::warn!(
                "turned a client away: {} are connected, which is the limit",
                limits.connections
            );
            return;
        }
        let context = Arc::clone(&self.context);
        let clients = Arc::clone(&self.clients);
        let started = std::thread::Builder::new()
            .name("justitia-nbd".into())
            .spawn(move || {
                let leaving = Leaving { id, clients };
                let agreed = || leaving.clients.agreed(id);
                if let Err(e) = run(Transport::new(socket), &context, agreed) {
                    tracing::info!("a client's connection broke: {e}");
                }
            });
        if let Err(e) = started {
            tracing::error!("cannot start a thread for a client: {e}");
            self.clients.sockets.lock().remove(&id);
        }
    }
}

/// Time without a sign of life before a client is asked for one.
const IDLE: Duration = Duration::from_secs(60);
/// Time between questions.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// Questions without an answer after which a client is gone.
const QUESTIONS: u32 = 6;

/// Lets replies go out at once, and notices when the client's machine is gone: whether nothing is under way to it, or
/// something that it does not acknowledge.
fn set_up_tcp(socket: &OwnedFd, send: Duration) -> rustix::io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, IDLE)?;
    sockopt::set_tcp_keepintvl(socket, ASK_AGAIN)?;
    sockopt::set_tcp_keepcnt(socket, QUESTIONS)?;
    let send = u32::try_from(send.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(socket, send)
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

/// Other users must not be able to put a socket of theirs in the place of this one.
fn check_directory(path: &Path) -> Result<(), ListenError> {
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let found = std::fs::metadata(directory).map_err(|source| ListenError::Io {
        what: path.display().to_string(),
        source,
    })?;
    let ours = rustix::process::geteuid().as_raw();
    if [0, ours].contains(&found.uid()) && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(ListenError::Directory {
        path: path.into(),
        uid: found.uid(),
        mode: found.mode() & 0o7777,
    })
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
    check_directory(path)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_over_tcp_are_asked_for_signs_of_life() {
        let server = Server::new(Limits::default(), None).unwrap();
        let address = server.listen_tcp("127.0.0.1:0".parse().unwrap(), true);
        let _client = std::net::TcpStream::connect(address.unwrap()).unwrap();
        while server.clients() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let clients = server.clients.sockets.lock();
        let socket = &clients.values().next().unwrap().socket;
        assert!(sockopt::socket_keepalive(socket).unwrap());
        let gone = sockopt::tcp_keepidle(socket).unwrap()
            + sockopt::tcp_keepintvl(socket).unwrap() * sockopt::tcp_keepcnt(socket).unwrap();
        assert_eq!(gone, Duration::from_secs(120));
        assert_eq!(sockopt::tcp_user_timeout(socket).unwrap(), 120_000);
    }
}
