//! What the exports of one VM have in common.

use super::workers::Lane;
use crate::Weight;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A VM, as the server knows it. Its exports share its part of the workers and its limit of connections, and the same
/// clients see them.
#[derive(Default)]
pub struct Tenant {
    /// Names in the certificates of its clients.
    clients: Vec<String>,
    /// Its requests that wait for a worker, for an image.
    pub(super) disk: Arc<Lane>,
    /// Those that wait for one for the SSD store.
    pub(super) ssd: Arc<Lane>,
    connections: AtomicUsize,
}

impl Tenant {
    /// A VM whose disks may be used by clients with one of these names in their certificates.
    #[must_use]
    pub fn new(clients: Vec<String>) -> Self {
        Self {
            clients,
            ..Self::default()
        }
    }

    /// The weight with which its requests wait for workers, from now on.
    pub fn set_weight(&self, weight: Weight) {
        self.disk.set_weight(weight);
        self.ssd.set_weight(weight);
    }

    /// May a client whose certificate has these names use its disks?
    pub(super) fn admits(&self, names: &[String]) -> bool {
        names.iter().any(|name| self.clients.contains(name))
    }

    /// Counts a connection until the seat is dropped; `None` when it has `most`.
    pub(super) fn seat(self: &Arc<Self>, most: usize) -> Option<Seat> {
        let taken = self
            .connections
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| {
                (n < most).then_some(n + 1)
            });
        taken.ok().map(|_| Seat(Arc::clone(self)))
    }
}

/// One of a VM's connections.
pub(super) struct Seat(Arc<Tenant>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::SeqCst);
    }
}
