//! Tracks connected clients; disconnects them, or leaves them to the next daemon.

use crate::connections::LeftConnection;
use parking_lot::{Condvar, Mutex};
use rustix::net::{Shutdown, getpeername, shutdown, sockopt};
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Instant;

/// Clients are accepted.
const OPEN: u8 = 0;
/// No more clients are accepted, and all are disconnected.
const CLOSING: u8 = 1;
/// As before, but connections are left to the next daemon.
const LEAVING: u8 = 2;

/// The clients of a server.
#[derive(Default)]
pub(super) struct Clients {
    sockets: Mutex<BTreeMap<u64, Client>>,
    next: AtomicU64,
    left: Condvar,
    /// [`OPEN`], [`CLOSING`] or [`LEAVING`].
    phase: AtomicU8,
    kept: Mutex<Vec<LeftConnection>>,
}

struct Client {
    socket: Arc<OwnedFd>,
    /// It still negotiates: it is disconnected first when there are too many.
    negotiating: bool,
    /// It may be left to the next daemon: it has negotiated, without TLS, and its socket is not shut down.
    may_stay: bool,
    /// Its socket was shut down.
    shut: bool,
}

impl Client {
    fn shut_down(&mut self, how: Shutdown) {
        (self.may_stay, self.shut) = (false, true);
        // It fails if the client has left already.
        let _ = shutdown(&self.socket, how);
    }
}

/// A client's entry. Dropping this removes it, also after a panic of the connection.
pub(super) struct ClientEntry {
    id: u64,
    clients: Arc<Clients>,
}

impl Clients {
    /// Adds a client. At `limit` clients it disconnects the oldest negotiating one; without any it returns `None`.
    pub(super) fn add(
        self: &Arc<Self>,
        socket: &Arc<OwnedFd>,
        limit: usize,
    ) -> Option<ClientEntry> {
        let mut sockets = self.sockets.lock();
        if sockets.len() >= limit {
            let oldest = sockets.values_mut().find(|c| c.negotiating)?;
            // Its thread removes the entry.
            oldest.negotiating = false;
            oldest.shut_down(Shutdown::Both);
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let client = Client {
            socket: Arc::clone(socket),
            negotiating: true,
            may_stay: false,
            shut: false,
        };
        sockets.insert(id, client);
        Some(ClientEntry {
            id,
            clients: Arc::clone(self),
        })
    }

    /// The number of connected clients.
    pub(super) fn len(&self) -> usize {
        self.sockets.lock().len()
    }

    /// Stops accepting clients. With `leaving`, connected clients are left to the next daemon once their requests are answered,
    /// where possible.
    pub(super) fn close(&self, leaving: bool) {
        let phase = if leaving { LEAVING } else { CLOSING };
        self.phase.store(phase, Ordering::SeqCst);
    }

    pub(super) fn is_closing(&self) -> bool {
        self.phase.load(Ordering::SeqCst) != OPEN
    }

    /// Shuts every client's socket down.
    pub(super) fn shutdown(&self, how: Shutdown) {
        let mut sockets = self.sockets.lock();
        sockets
            .values_mut()
            .for_each(|client| client.shut_down(how));
    }

    /// Shuts down the sockets of clients that cannot be left to the next daemon.
    pub(super) fn shutdown_rest(&self, how: Shutdown) {
        let mut sockets = self.sockets.lock();
        let rest = sockets.values_mut().filter(|client| !client.may_stay);
        rest.for_each(|client| client.shut_down(how));
    }

    /// The connections that are left to the next daemon.
    pub(super) fn take_kept(&self) -> Vec<LeftConnection> {
        std::mem::take(&mut self.kept.lock())
    }

    /// Waits until all clients have left, or until `deadline`.
    pub(super) fn wait(&self, deadline: Instant) {
        let mut sockets = self.sockets.lock();
        while !sockets.is_empty() && !self.left.wait_until(&mut sockets, deadline).timed_out() {}
    }

    #[cfg(test)]
    pub(super) fn first_socket(&self) -> Option<Arc<OwnedFd>> {
        let sockets = self.sockets.lock();
        sockets.values().next().map(|c| Arc::clone(&c.socket))
    }
}

impl ClientEntry {
    /// The client has negotiated.
    pub(super) fn agreed(&self, secure: bool) {
        if let Some(client) = self.clients.sockets.lock().get_mut(&self.id) {
            client.negotiating = false;
            client.may_stay = !secure && !client.shut;
        }
    }

    /// Is the connection to be left to the next daemon now?
    pub(super) fn is_leaving(&self) -> bool {
        self.clients.phase.load(Ordering::SeqCst) == LEAVING && self.may_stay()
    }

    /// Must the connection's thread be woken when the server ends? Not once its socket is shut down: that wakes it.
    pub(super) fn wants_to_know(&self) -> bool {
        match self.clients.phase.load(Ordering::SeqCst) {
            OPEN => true,
            LEAVING => self.may_stay(),
            _ => false,
        }
    }

    fn may_stay(&self) -> bool {
        let sockets = self.clients.sockets.lock();
        sockets.get(&self.id).is_some_and(|client| client.may_stay)
    }

    /// Leaves the connection to the next daemon, unless its socket was shut down meanwhile.
    pub(super) fn leave(&self, connection: LeftConnection) {
        let sockets = self.clients.sockets.lock();
        if sockets.get(&self.id).is_some_and(|client| client.may_stay) {
            self.clients.kept.lock().push(connection);
        }
    }
}

impl Drop for ClientEntry {
    fn drop(&mut self) {
        self.clients.sockets.lock().remove(&self.id);
        self.clients.left.notify_all();
    }
}

// A client's identity for the log.

/// The other side of a client's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// Its address.
    Tcp(SocketAddr),
    /// Its process and user.
    Unix { pid: i32, uid: u32 },
    /// It has left already.
    Unknown,
}

impl Peer {
    /// The peer of a TCP socket, or of a unix socket.
    pub(super) fn of(socket: &OwnedFd, tcp: bool) -> Self {
        if tcp {
            let address = getpeername(socket).ok().flatten();
            let address = address.and_then(|any| SocketAddr::try_from(any).ok());
            return address.map_or(Self::Unknown, Self::Tcp);
        }
        sockopt::socket_peercred(socket).map_or(Self::Unknown, |of| Self::Unix {
            pid: of.pid.as_raw_nonzero().get(),
            uid: of.uid.as_raw(),
        })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix { pid, uid } => write!(f, "process {pid} of user {uid}"),
            Self::Unknown => write!(f, "a client that has left"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Peer, *};
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    #[test]
    fn clients_that_have_negotiated_without_tls_may_stay() {
        let clients = Arc::<Clients>::default();
        let enter = |agreed: Option<bool>| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let entry = clients.add(&Arc::new(ours.into()), 10).unwrap();
            agreed.into_iter().for_each(|secure| entry.agreed(secure));
            theirs.set_nonblocking(true).unwrap();
            (entry, theirs)
        };
        let all = [None, Some(true), Some(false)].map(enter);
        assert!(all.iter().all(|(entry, _)| !entry.is_leaving()));
        clients.close(true);
        clients.shutdown_rest(Shutdown::Both);
        // One that ends its negotiation at this moment: its socket is shut down already.
        all[0].0.agreed(false);
        let stays: Vec<_> = all.iter().map(|(entry, _)| entry.is_leaving()).collect();
        assert_eq!(stays, [false, false, true]);
        let is_cut_off = |mut theirs: &UnixStream| matches!(theirs.read(&mut [0; 1]), Ok(0));
        let cut_off: Vec<_> = all.iter().map(|(_, theirs)| is_cut_off(theirs)).collect();
        assert_eq!(cut_off, [true, true, false]);
    }

    #[test]
    fn a_peer_is_its_address_or_its_process() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let pid = i32::try_from(std::process::id()).unwrap();
        let uid = rustix::process::geteuid().as_raw();
        assert_eq!(Peer::of(&ours.into(), false), Peer::Unix { pid, uid });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, from) = listener.accept().unwrap();
        assert_eq!(client.local_addr().unwrap(), from);
        assert_eq!(Peer::of(&server.into(), true), Peer::Tcp(from));
    }
}
