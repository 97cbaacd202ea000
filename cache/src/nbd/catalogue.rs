//! What is served, and what of it a client sees.

use super::export::Export;
use super::handshake::{Catalogue, Offer};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The exports of a server, by name.
#[derive(Default)]
pub struct Table(RwLock<BTreeMap<String, Arc<Export>>>);

impl Table {
    /// Serves `export` from now on, in the place of one of the same name.
    pub fn add(&self, export: Arc<Export>) {
        let name = export.name().to_owned();
        self.0.write().insert(name, export);
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Export>> {
        self.0.read().values().cloned().collect()
    }
}

/// Who a client is, as far as that decides what it sees.
pub enum Identity {
    /// Whoever can connect sees everything.
    Anybody,
    /// The names in its certificate; none before it has shown one.
    Certified(Vec<String>),
}

/// What one client sees.
pub struct View {
    pub table: Arc<Table>,
    pub identity: Identity,
}

impl View {
    fn shows(&self, export: &Export) -> bool {
        match &self.identity {
            Identity::Anybody => true,
            Identity::Certified(names) => export.tenant.admits(names),
        }
    }

    /// The export of that name; for the empty name, the only one that the client sees.
    pub fn open(&self, name: &str) -> Option<Arc<Export>> {
        let exports = self.table.0.read();
        if let Some(export) = exports.get(name) {
            return self.shows(export).then(|| Arc::clone(export));
        }
        let mut seen = exports.values().filter(|e| self.shows(e));
        let first = seen.next().filter(|_| name.is_empty())?;
        seen.next().is_none().then(|| Arc::clone(first))
    }
}

impl Catalogue for View {
    fn find(&self, name: &str) -> Option<Offer> {
        self.open(name).map(|e| e.offer())
    }

    fn list(&self) -> Vec<Offer> {
        let exports = self.table.0.read();
        let seen = exports.values().filter(|e| self.shows(e));
        seen.map(|e| e.offer()).collect()
    }
}
