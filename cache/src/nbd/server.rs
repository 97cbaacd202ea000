//! The server: its exports, its listeners, its end.

use super::clients::{Clients, Peer};
use super::connection::{go_on, run};
use super::export::{Context, Limits};
use super::export::{Export, ExportRegistry};
use super::negotiate::PROTOCOL;
use super::transport::{TlsError, TlsFiles, Transport};
use crate::connections::{ConnectionState, LeftConnection};
use crate::frontend::{
    Executor, ListenError, LogLimit, SocketAccess, Volume, Waker, reopen_to, unix_listener,
};
use crate::inherited::{self, SpareSockets};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::net::{Shutdown, SocketFlags, accept_with, sockopt};
use rustls::ServerConfig;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// An NBD server.
pub struct Server {
    exports: Arc<ExportRegistry>,
    executor: Executor,
    limits: Limits,
    tls: Option<Arc<ServerConfig>>,
    /// TLS asks clients for certificates.
    verifies: bool,
    clients: Arc<Clients>,
    listeners: Mutex<Vec<Listener>>,
    /// The daemon's inherited sockets, to listen on and to give back.
    spare: SpareSockets,
}

/// A listener's demands on its clients.
#[derive(Clone, Copy)]
struct Access {
    /// TLS before anything else.
    tls_required: bool,
    /// Clients must show a certificate, which decides which exports they see.
    certified: bool,
}

/// The address of a listener.
enum Place {
    Unix {
        path: PathBuf,
        /// This process has made it, and removes it at the end.
        ours: bool,
    },
    Tcp(SocketAddr),
}

struct Listener {
    socket: Arc<OwnedFd>,
    waker: Waker,
    place: Place,
    acceptor: Arc<Acceptor>,
    thread: std::thread::JoinHandle<()>,
}

impl Server {
    /// A server that serves nothing yet and listens nowhere.
    ///
    /// # Errors
    /// When the certificates cannot be used.
    pub fn new(limits: Limits, tls: Option<&TlsFiles>) -> Result<Self, TlsError> {
        Ok(Self {
            exports: Arc::default(),
            executor: Executor::new(&limits.io),
            limits,
            tls: tls.map(TlsFiles::load).transpose()?,
            verifies: tls.is_some_and(|tls| tls.verify_clients),
            clients: Arc::default(),
            listeners: Mutex::default(),
            spare: SpareSockets::default(),
        })
    }

    /// Another server with the same limits, certificates and worker threads, and no exports yet.
    #[must_use]
    pub fn sibling(&self) -> Self {
        Self {
            exports: Arc::default(),
            executor: self.executor.clone(),
            limits: self.limits,
            tls: self.tls.clone(),
            verifies: self.verifies,
            clients: Arc::default(),
            listeners: Mutex::default(),
            spare: self.spare.clone(),
        }
    }

    /// Unused listening sockets of another process, which this server and its siblings may use.
    pub(crate) const fn spare_sockets(&self) -> &SpareSockets {
        &self.spare
    }

    /// The threads that wait for disks, for servers of other protocols.
    pub(crate) fn executor(&self) -> Executor {
        self.executor.clone()
    }

    /// Adds an export. It replaces one of the same name for new clients.
    pub fn add(&self, export: impl Into<Arc<Export>>) {
        self.exports.add(export.into());
    }

    /// Removes a volume. Clients that have opened it continue until [its gates](Volume::gates) are closed.
    pub(crate) fn remove(&self, volume: &Arc<Volume>) {
        self.exports.remove(volume);
    }

    /// The exported volumes, by name.
    #[must_use]
    pub fn volumes(&self) -> Vec<Arc<Volume>> {
        let exports = self.exports.all();
        exports.iter().map(|e| Arc::clone(e.volume())).collect()
    }

    /// Removes all exports.
    pub(crate) fn forget(&self) {
        self.exports.clear();
    }

    /// The number of connected clients.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// Listens on a unix socket that only this user can connect to, in a directory that no other user writes. A dead socket at
    /// the path is replaced. TLS is offered there, not required.
    ///
    /// # Errors
    /// When another file is at the path, others may write the directory, or the system refuses.
    pub fn listen_unix(&self, path: &Path) -> Result<(), ListenError> {
        self.listen_unix_as(path, SocketAccess::default())
    }

    /// As [`listen_unix`](Self::listen_unix), for those who have access to the socket. A socket of somebody else that this
    /// process has inherited keeps the owner and mode that it has.
    ///
    /// # Errors
    /// As there, and when this user may not give the socket away.
    pub fn listen_unix_as(&self, path: &Path, who: SocketAccess) -> Result<(), ListenError> {
        let access = Access {
            tls_required: false,
            certified: false,
        };
        let (socket, ours) = match inherited::take_unix(path).or_else(|| self.spare.take_unix(path))
        {
            Some(found) => {
                if found.ours {
                    reopen_to(path, who);
                }
                (found.socket, found.ours)
            }
            None => (unix_listener(path, who)?, true),
        };
        let place = Place::Unix {
            path: path.to_owned(),
            ours,
        };
        self.listen(socket, place, access)
            .map_err(|e| ListenError::new(path.display(), e))
    }

    /// Gives its unix sockets to those who have access to them from now on. Those of somebody else stay as they are.
    pub(crate) fn reopen_to(&self, who: SocketAccess) {
        for listener in &*self.listeners.lock() {
            if let Place::Unix { path, ours: true } = &listener.place {
                reopen_to(path, who);
            }
        }
    }

    /// Listens on a TCP address. Clients must show certificates, and see the disks of the VMs that these belong to. With
    /// `insecure` every client sees every disk; TLS is then required if there are certificates. Returns the address,
    /// with the port that was chosen if it was 0.
    ///
    /// # Errors
    /// When the address needs client certificates and TLS does not ask for them, or the system refuses.
    pub fn listen_tcp(
        &self,
        address: SocketAddr,
        insecure: bool,
    ) -> Result<SocketAddr, ListenError> {
        if !insecure && !self.verifies {
            let why = "expected certificates of clients ([tls] with verify_clients) or `insecure = true`, found neither: every client that reaches the address could read and write every disk";
            return Err(ListenError::new(address, why));
        }
        let access = Access {
            tls_required: self.tls.is_some(),
            certified: !insecure,
        };
        let listen = || {
            let inherited = inherited::take_tcp(address);
            let listener = match inherited.or_else(|| self.spare.take_tcp(address)) {
                Some(found) => TcpListener::from(found.socket),
                None => TcpListener::bind(address)?,
            };
            let address = listener.local_addr()?;
            self.listen(listener.into(), Place::Tcp(address), access)?;
            Ok(address)
        };
        listen().map_err(|e: io::Error| ListenError::new(address, e))
    }

    fn listen(&self, socket: OwnedFd, place: Place, access: Access) -> io::Result<()> {
        let waker = Waker::new(&socket)?;
        let socket = Arc::new(socket);
        let acceptor = Arc::new(Acceptor {
            socket: Arc::clone(&socket),
            waker: waker.clone(),
            tcp: matches!(place, Place::Tcp(_)),
            clients: Arc::clone(&self.clients),
            context: Arc::new(Context {
                exports: Arc::clone(&self.exports),
                certified: access.certified,
                executor: self.executor.clone(),
                limits: self.limits,
                tls: self.tls.clone(),
                tls_required: access.tls_required,
                waker: waker.clone(),
                log: LogLimit::default(),
            }),
        });
        let accepting = Arc::clone(&acceptor);
        let thread = std::thread::Builder::new()
            .name("justitia-nbd".into())
            .spawn(move || accepting.run())?;
        self.listeners.lock().push(Listener {
            socket,
            waker,
            place,
            acceptor,
            thread,
        });
        Ok(())
    }

    /// Stops taking clients and requests. Requests in flight are finished, and their replies sent. Sockets of another process
    /// become [spare](Self::spare_sockets).
    pub(crate) fn close(&self) {
        for (socket, path) in self.close_keeping(false) {
            match (path, socket.try_clone()) {
                (Some(path), _) => drop(std::fs::remove_file(path)),
                (None, Ok(socket)) => self.spare.keep(socket),
                (None, Err(e)) => tracing::warn!("cannot keep a socket that was inherited: {e}"),
            }
        }
    }

    /// Stops taking clients and requests. Requests in flight are finished, and their replies sent. Returns the listening
    /// sockets, with the paths of those that it has made. Clients that connect to them wait until the next daemon accepts them.
    ///
    /// With `leaving`, clients that have negotiated without TLS are not disconnected, but [left](Self::take_left).
    pub(crate) fn close_keeping(&self, leaving: bool) -> Vec<(Arc<OwnedFd>, Option<PathBuf>)> {
        self.clients.close(leaving);
        let listeners = std::mem::take(&mut *self.listeners.lock());
        listeners.iter().for_each(|listener| listener.waker.wake());
        let kept = listeners.into_iter().map(|listener| {
            let _ = listener.thread.join();
            let path = match listener.place {
                Place::Unix { path, ours } => ours.then_some(path),
                Place::Tcp(_) => None,
            };
            (listener.socket, path)
        });
        let kept = kept.collect();
        if leaving {
            self.clients.shutdown_rest(Shutdown::Read);
        } else {
            self.clients.shutdown(Shutdown::Read);
        }
        kept
    }

    /// Resumes the clients that the last daemon has left, and that have connected to this server's addresses. Their exports
    /// must be served by now.
    pub(crate) fn go_on(&self) {
        for listener in &*self.listeners.lock() {
            listener.acceptor.take(match &listener.place {
                Place::Unix { path, .. } => inherited::take_unix_connections(PROTOCOL, path),
                Place::Tcp(address) => inherited::take_tcp_connections(PROTOCOL, *address),
            });
        }
    }

    /// The connections that [`close_keeping`](Self::close_keeping) has left.
    pub(crate) fn take_left(&self) -> Vec<LeftConnection> {
        self.clients.take_kept()
    }

    /// Disconnects clients that do not take their replies.
    pub(crate) fn cut_off(&self) {
        self.clients.shutdown(Shutdown::Both);
    }

    /// Waits until all clients have left, or until `deadline`.
    pub(crate) fn wait(&self, deadline: Instant) {
        self.clients.wait(deadline);
    }

    /// Closes, cuts off and waits: clients have `timeout` to take their replies.
    #[cfg(test)]
    pub(crate) fn shut_down(&self, timeout: Duration) {
        self.close();
        self.wait(Instant::now() + timeout);
        self.cut_off();
        self.wait(Instant::now() + Duration::from_secs(60));
    }
}

// The thread of a listener: accepts clients, each of which gets a thread of its own.

/// Time without traffic after which TCP sends a keepalive probe.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
/// Time between probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Probes without an answer after which a client counts as gone.
const KEEPALIVE_PROBES: u32 = 6;

pub(super) struct Acceptor {
    pub(super) socket: Arc<OwnedFd>,
    pub(super) waker: Waker,
    pub(super) tcp: bool,
    pub(super) clients: Arc<Clients>,
    pub(super) context: Arc<Context>,
}

impl Acceptor {
    /// Accepts clients until the server closes.
    pub(super) fn run(&self) {
        loop {
            self.waker.wait(&self.socket);
            if self.clients.is_closing() {
                return;
            }
            match accept_with(&self.socket, SocketFlags::CLOEXEC) {
                Ok(socket) => self.start_client(Arc::new(socket), None),
                // The client has left again.
                Err(Errno::AGAIN) => {}
                Err(e) => {
                    // A temporary shortage, for example of descriptors.
                    tracing::warn!("cannot accept a client: {e}");
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    /// Resumes clients that the last daemon has left.
    pub(super) fn take(&self, left: Vec<LeftConnection>) {
        for connection in left {
            let LeftConnection { socket, state, .. } = connection;
            self.start_client(Arc::new(socket), Some(state));
        }
    }

    /// Serves a client. It negotiates, unless the last daemon has left its state.
    fn start_client(&self, socket: Arc<OwnedFd>, left: Option<ConnectionState>) {
        let limits = self.context.limits;
        let peer = Peer::of(&socket, self.tcp);
        if self.tcp
            && let Err(e) = set_up_tcp(&socket, limits.send)
        {
            return self.refused(&peer, &format!("cannot set its socket up: {e}"));
        }
        let Some(entry) = self.clients.add(&socket, limits.connections) else {
            let connected = limits.connections;
            return self.refused(
                &peer,
                &format!("{connected} are connected, which is the limit"),
            );
        };
        if left.is_some() {
            // Do it before its thread runs: the server may be closed again by then.
            entry.agreed(false);
        }
        let context = Arc::clone(&self.context);
        let started = std::thread::Builder::new()
            .name("justitia-nbd".into())
            .spawn(move || {
                let served = match left {
                    Some(state) => go_on(socket, state, &context, &entry),
                    None => run(Transport::new(socket), &context, &entry),
                };
                if let Err(e) = served
                    && let Some(left_out) = context.log.permit()
                {
                    tracing::info!(%peer, "a client's connection broke: {e}{left_out}");
                }
            });
        if let Err(e) = started {
            tracing::error!("cannot start a thread for a client: {e}");
        }
    }

    fn refused(&self, peer: &Peer, why: &str) {
        if let Some(left_out) = self.context.log.permit() {
            tracing::warn!(%peer, "refused a client: {why}{left_out}");
        }
    }
}

/// Disables Nagle's algorithm, and detects a dead client machine: an idle connection by keepalive probes, a busy one by the
/// user timeout of unacknowledged data.
fn set_up_tcp(socket: &OwnedFd, send: Duration) -> rustix::io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)?;
    let send = u32::try_from(send.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(socket, send)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt;

    #[test]
    fn tcp_clients_get_keepalive_and_a_user_timeout() {
        let server = Server::new(Limits::default(), None).unwrap();
        let address = server.listen_tcp("127.0.0.1:0".parse().unwrap(), true);
        let _client = std::net::TcpStream::connect(address.unwrap()).unwrap();
        while server.clients() == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let socket = server.clients.first_socket().unwrap();
        assert!(sockopt::socket_keepalive(&socket).unwrap());
        let gone = sockopt::tcp_keepidle(&socket).unwrap()
            + sockopt::tcp_keepintvl(&socket).unwrap() * sockopt::tcp_keepcnt(&socket).unwrap();
        assert_eq!(gone, Duration::from_secs(120));
        assert_eq!(sockopt::tcp_user_timeout(&socket).unwrap(), 120_000);
    }
}
