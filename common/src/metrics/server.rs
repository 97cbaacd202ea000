//! The listening socket, and the clients that are being served.

use std::collections::VecDeque;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use super::client;
use super::page::Page;
use super::peer::{Peer, Peers};

/// Clients that are served at one time. One more disconnects the oldest of the user or machine with the most: a client
/// that reads has its page within milliseconds.
pub(crate) const MAX_CLIENTS: usize = 16;
/// Of one user or machine. One more disconnects its own oldest.
pub(crate) const MAX_OF_ONE: usize = 4;
/// How long a new client waits for the thread of the disconnected one to end, before it is refused.
const EVICTION_TIMEOUT: Duration = Duration::from_millis(100);

/// An HTTP server of one page. It serves until it is dropped.
pub struct Server {
    address: SocketAddr,
    /// The write end of a pipe; closing it ends the thread.
    stop: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Serves what `text` returns at `address` (port 0: any free port): OpenMetrics, or an error, which is served with
    /// status 503. `text` is called on demand, at most once a second.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub fn start(
        address: SocketAddr,
        text: impl FnMut() -> Result<String, String> + Send + 'static,
    ) -> std::io::Result<Self> {
        let peers = Peers::new();
        Self::start_with(address, text, Box::new(move |client| peers.of(client)))
    }

    /// As [`Server::start`]; `identify` says which user or machine a client belongs to.
    pub(crate) fn start_with(
        address: SocketAddr,
        text: impl FnMut() -> Result<String, String> + Send + 'static,
        identify: Identify,
    ) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC)?;
        let page = Arc::new(Page::new(Box::new(text)));
        let thread = std::thread::Builder::new()
            .name("metrics".into())
            .spawn(move || listen(&listener, &stopped, &page, &identify))?;
        Ok(Self {
            address,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// The address that it listens at.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The connected clients, by number, the oldest first.
#[derive(Default)]
struct Clients {
    connected: Mutex<VecDeque<(u64, Peer, TcpStream)>>,
    removed: std::sync::Condvar,
}

impl Clients {
    fn connected(&self) -> MutexGuard<'_, VecDeque<(u64, Peer, TcpStream)>> {
        self.connected
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a client; disconnects another if there are too many. False if that one's thread does not end in time.
    fn admit(&self, number: u64, peer: Peer, client: TcpStream) -> bool {
        let mut connected = self.connected();
        if let Some(victim) = victim(&connected, peer) {
            let is_victim = |(other, ..): &(u64, Peer, TcpStream)| *other == victim;
            if let Some((.., victim)) = connected.iter().find(|one| is_victim(one)) {
                let _ = victim.shutdown(Shutdown::Both);
            }
            let stays = |connected: &mut VecDeque<_>| connected.iter().any(is_victim);
            let waited = self
                .removed
                .wait_timeout_while(connected, EVICTION_TIMEOUT, stays);
            connected = waited.unwrap_or_else(PoisonError::into_inner).0;
            if stays(&mut connected) {
                return false;
            }
        }
        connected.push_back((number, peer, client));
        true
    }

    fn remove(&self, number: u64) {
        self.connected().retain(|(other, ..)| *other != number);
        self.removed.notify_all();
    }

    fn disconnect_all(&self) {
        for (.., client) in self.connected().iter() {
            let _ = client.shutdown(Shutdown::Both);
        }
    }
}

/// The client to disconnect for one more of `peer`, if any: the oldest of `peer` if it has too many; else, if there are
/// too many in all, the oldest of the user or machine with the most.
fn victim(connected: &VecDeque<(u64, Peer, TcpStream)>, peer: Peer) -> Option<u64> {
    let count = |of: Peer| {
        connected
            .iter()
            .filter(|(_, other, _)| *other == of)
            .count()
    };
    let from = if count(peer) >= MAX_OF_ONE {
        peer
    } else if connected.len() >= MAX_CLIENTS {
        // Of several with as many, the first.
        let peers = connected.iter().rev().map(|(_, peer, _)| *peer);
        peers.max_by_key(|peer| count(*peer))?
    } else {
        return None;
    };
    let mut of_it = connected.iter().filter(|(_, other, _)| *other == from);
    of_it.next().map(|(number, ..)| *number)
}

/// Removes the client when its thread ends, by a panic too.
struct Connected<'a>(&'a Clients, u64);

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.0.remove(self.1);
    }
}

/// Says which user or machine a client belongs to; `None` if the client is gone.
pub(crate) type Identify = Box<dyn Fn(&TcpStream) -> Option<Peer> + Send>;

fn listen(listener: &TcpListener, stopped: &OwnedFd, page: &Arc<Page>, identify: &Identify) {
    let clients = Arc::new(Clients::default());
    for number in 0.. {
        let mut fds = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::new(stopped, PollFlags::IN),
        ];
        let polled = poll(&mut fds, None);
        if polled.is_ok() && !fds[1].revents().is_empty() {
            break;
        }
        let Ok((client, _)) = listener.accept() else {
            // For instance no free descriptors: try again later, without spinning.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let (Some(peer), Ok(handle)) = (identify(&client), client.try_clone()) else {
            continue;
        };
        // Inherited from the listener on some systems.
        if client.set_nonblocking(false).is_err() || !clients.admit(number, peer, handle) {
            continue;
        }
        let (page, serving) = (Arc::clone(page), Arc::clone(&clients));
        let spawned = std::thread::Builder::new()
            .name("metrics-client".into())
            .spawn(move || {
                let _connected = Connected(&serving, number);
                // An error concerns this client only.
                let _ = client::serve(&client, &page);
            });
        if spawned.is_err() {
            clients.remove(number);
        }
    }
    clients.disconnect_all();
}
