//! An NBD export of a volume.

use super::handshake::{ExportInfo, ExportLookup};
use super::proto::export_flag as flag;
use crate::frontend::{Executor, IoLimits, LogLimit, Volume, Waker};
use parking_lot::RwLock;
use rustls::ServerConfig;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A volume with a human-readable description. Its name is the volume's.
pub struct Export {
    volume: Arc<Volume>,
    description: String,
}

impl Export {
    /// Exports a volume, with a human-readable description, which may be empty.
    #[must_use]
    pub fn new(volume: impl Into<Arc<Volume>>, description: &str) -> Self {
        Self {
            volume: volume.into(),
            description: description.to_owned(),
        }
    }

    /// The exported volume.
    #[must_use]
    pub const fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }

    /// The properties that negotiation tells a client.
    pub(super) fn info(&self) -> ExportInfo {
        ExportInfo {
            name: self.volume.name().to_owned(),
            description: self.description.clone(),
            size: self.volume.size(),
            flags: transmission_flags(&self.volume),
        }
    }
}

/// The transmission flags of a volume.
pub(super) fn transmission_flags(volume: &Volume) -> u16 {
    let flags = flag::HAS_FLAGS
        | flag::SEND_FLUSH
        | flag::SEND_FUA
        | flag::SEND_DF
        // A flush covers the writes of all connections: they share the one disk.
        | flag::CAN_MULTI_CONN;
    let more = if volume.is_read_only() {
        flag::READ_ONLY
    } else {
        flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO
    };
    flags | more
}

// The exports, and the part that a client sees.

/// The exports of a server, by name.
#[derive(Default)]
pub(super) struct ExportRegistry(RwLock<BTreeMap<String, Arc<Export>>>, LogLimit);

impl ExportRegistry {
    /// Adds an export, or replaces one of the same name.
    pub(super) fn add(&self, export: Arc<Export>) {
        let name = export.volume().name().to_owned();
        self.0.write().insert(name, export);
    }

    /// Removes a volume: no client can open it from now on.
    pub(super) fn remove(&self, volume: &Arc<Volume>) {
        self.0
            .write()
            .retain(|_, export| !Arc::ptr_eq(export.volume(), volume));
    }

    /// Removes all exports.
    pub(super) fn clear(&self) {
        self.0.write().clear();
    }

    /// All exports, by name.
    pub(super) fn all(&self) -> Vec<Arc<Export>> {
        self.0.read().values().cloned().collect()
    }
}

/// A client's identity, which decides the exports that it sees.
pub(super) enum Identity {
    /// Identity is not checked: the client sees everything.
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

// The server's part of a connection.

/// State that the connections of a listener share.
pub(super) struct Context {
    pub(super) exports: Arc<ExportRegistry>,
    /// Clients must show certificates, and see only the exports of VMs that name them.
    pub(super) certified: bool,
    pub(super) executor: Executor,
    pub(super) limits: Limits,
    pub(super) tls: Option<Arc<ServerConfig>>,
    pub(super) tls_required: bool,
    /// Woken when the server closes.
    pub(super) waker: Waker,
    /// Limits log lines that clients can cause. Before they have named an export they belong to no VM.
    pub(super) log: LogLimit,
}

// Limits of the NBD server.

/// Limits of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Concurrent connections of a listener. More are refused, except that a new connection replaces the oldest one that still
    /// negotiates.
    pub connections: usize,
    /// Time for a client to negotiate.
    pub negotiation: Duration,
    /// The time in which a client must take at least a part of its waiting replies.
    pub send: Duration,
    /// Requests in flight, and the threads that execute them.
    pub io: IoLimits,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            negotiation: Duration::from_secs(15),
            send: Duration::from_secs(120),
            io: IoLimits::default(),
        }
    }
}
