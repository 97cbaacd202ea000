//! The clients that are connected, and how they are disconnected.

use parking_lot::{Condvar, Mutex};
use rustix::net::{Shutdown, shutdown};
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// The clients of a server.
#[derive(Default)]
pub(super) struct Clients {
    sockets: Mutex<BTreeMap<u64, Client>>,
    next: AtomicU64,
    left: Condvar,
    closing: AtomicBool,
}

struct Client {
    socket: Arc<OwnedFd>,
    /// It is the first to be disconnected when there are too many.
    negotiating: bool,
}

/// A client's entry, which is removed when this is dropped, also when the connection panicked.
pub(super) struct ClientEntry {
    id: u64,
    clients: Arc<Clients>,
}

impl Clients {
    /// Adds a client; `None` when there are `limit`, and none of them negotiates, which would be disconnected for it.
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
            let _ = shutdown(&oldest.socket, Shutdown::Both);
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let client = Client {
            socket: Arc::clone(socket),
            negotiating: true,
        };
        sockets.insert(id, client);
        Some(ClientEntry {
            id,
            clients: Arc::clone(self),
        })
    }

    /// Clients at this moment.
    pub(super) fn len(&self) -> usize {
        self.sockets.lock().len()
    }

    /// No more clients are accepted.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    /// Shuts every client's socket down.
    pub(super) fn shutdown(&self, how: Shutdown) {
        for client in self.sockets.lock().values() {
            // An error says that the client has left already.
            let _ = shutdown(&client.socket, how);
        }
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
    pub(super) fn agreed(&self) {
        if let Some(client) = self.clients.sockets.lock().get_mut(&self.id) {
            client.negotiating = false;
        }
    }
}

impl Drop for ClientEntry {
    fn drop(&mut self) {
        self.clients.sockets.lock().remove(&self.id);
        self.clients.left.notify_all();
    }
}
