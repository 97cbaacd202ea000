//! What is served, and what of it a client sees.

use super::export::Export;
use super::handshake::{ExportInfo, ExportLookup};
use crate::frontend::{LogLimit, Volume};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The exports of a server, by name.
#[derive(Default)]
pub(super) struct ExportRegistry(RwLock<BTreeMap<String, Arc<Export>>>, LogLimit);

impl ExportRegistry {
    /// Serves `export` from now on, in the place of one of the same name.
    pub(super) fn add(&self, export: Arc<Export>) {
        let name = export.volume().name().to_owned();
        self.0.write().insert(name, export);
    }

    /// Serves a volume no more: no client opens it from now on.
    pub(super) fn remove(&self, volume: &Arc<Volume>) {
        self.0
            .write()
            .retain(|_, export| !Arc::ptr_eq(export.volume(), volume));
    }

    /// Serves nothing any more.
    pub(super) fn clear(&self) {
        self.0.write().clear();
    }

    /// All exports, by name.
    pub(super) fn all(&self) -> Vec<Arc<Export>> {
        self.0.read().values().cloned().collect()
    }
}

/// What is known of a client that decides what it sees.
pub(super) enum Identity {
    /// Not asked for: the client sees everything.
    Anonymous,
    /// The names in its certificate; none before it has shown one.
    Certified(Vec<String>),
}

/// The exports that one client sees.
pub(super) struct View {
    registry: Arc<ExportRegistry>,
    pub(super) identity: Identity,
}

impl View {
    pub(super) fn new(registry: Arc<ExportRegistry>, identity: Identity) -> Self {
        Self { registry, identity }
    }

    fn shows(&self, export: &Export) -> bool {
        match &self.identity {
            Identity::Anonymous => true,
            Identity::Certified(names) => export.volume().vm().admits(names),
        }
    }

    /// The volume of that name; for the empty name, the only one that the client sees.
    pub(super) fn open(&self, name: &str) -> Option<Arc<Volume>> {
        self.find_export(name).map(|e| Arc::clone(e.volume()))
    }

    fn find_export(&self, name: &str) -> Option<Arc<Export>> {
        let exports = self.registry.0.read();
        if let Some(export) = exports.get(name) {
            if !self.shows(export) {
                self.log_refused(name);
                return None;
            }
            return Some(Arc::clone(export));
        }
        let mut seen = exports.values().filter(|e| self.shows(e));
        let first = seen.next().filter(|_| name.is_empty())?;
        seen.next().is_none().then(|| Arc::clone(first))
    }

    fn log_refused(&self, export: &str) {
        if let Identity::Certified(names) = &self.identity
            && let Some(left_out) = self.registry.1.permit()
        {
            tracing::info!(
                export,
                ?names,
                "refused a client the export: its VM lists none of the names in the certificate (`clients` of the VM){left_out}"
            );
        }
    }
}

impl ExportLookup for View {
    fn find(&self, name: &str) -> Option<ExportInfo> {
        self.find_export(name).map(|e| e.info())
    }

    fn list(&self) -> Vec<ExportInfo> {
        let exports = self.registry.0.read();
        let seen = exports.values().filter(|e| self.shows(e));
        seen.map(|e| e.info()).collect()
    }

    fn count(&self) -> usize {
        let exports = self.registry.0.read();
        exports.values().filter(|e| self.shows(e)).count()
    }
}
