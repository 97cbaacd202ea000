//! What the volumes of one VM share.

use super::budget::Budget;
use super::tags::PoolTags;
use super::workers::VmQueue;
use justitia_share::Weight;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A VM, as front ends know it. Its volumes share its part of the worker threads, its limit of connections and its budget,
/// and the same clients see them.
pub struct Tenant {
    /// Names in the certificates of its clients.
    clients: Vec<String>,
    /// Its requests that wait for a thread that reads or writes an image.
    pub(super) disk_queue: Arc<VmQueue>,
    /// Its requests that wait for a thread that reads the SSD store.
    pub(super) ssd_queue: Arc<VmQueue>,
    /// The pools of its containers, for front ends whose requests have tags.
    pub(crate) tags: PoolTags,
    connections: AtomicUsize,
    /// What its front ends may map and open.
    pub(crate) budget: Arc<Budget>,
}

impl Default for Tenant {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl Tenant {
    /// A VM whose volumes may be used by clients with one of these names in their certificates.
    #[must_use]
    pub fn new(clients: Vec<String>) -> Self {
        Self {
            clients,
            disk_queue: Arc::default(),
            ssd_queue: Arc::default(),
            tags: PoolTags::default(),
            connections: AtomicUsize::new(0),
            budget: Budget::of_vm(),
        }
    }

    /// Sets the weight with which its requests wait for worker threads, from now on.
    pub fn set_weight(&self, weight: Weight) {
        self.disk_queue.set_weight(weight);
        self.ssd_queue.set_weight(weight);
    }

    /// May a client whose certificate has these names use its volumes?
    pub(crate) fn admits(&self, names: &[String]) -> bool {
        names.iter().any(|name| self.clients.contains(name))
    }

    /// Counts a connection until the permit is dropped; `None` when there are `limit` already.
    pub(crate) fn connect(self: &Arc<Self>, limit: usize) -> Option<ConnectionPermit> {
        let counted = self
            .connections
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| {
                (n < limit).then_some(n + 1)
            });
        counted.ok().map(|_| ConnectionPermit(Arc::clone(self)))
    }
}

/// One of a VM's connections.
pub(crate) struct ConnectionPermit(Arc<Tenant>);

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::SeqCst);
    }
}
