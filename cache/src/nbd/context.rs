//! What a connection needs of its server.

use super::limits::Limits;
use super::registry::ExportRegistry;
use crate::frontend::{Executor, LogLimit, Waker};
use rustls::ServerConfig;
use std::sync::Arc;

/// What the connections of one listener share.
pub(super) struct Context {
    pub(super) exports: Arc<ExportRegistry>,
    /// Clients must show certificates, and see only the exports that these are for.
    pub(super) certified: bool,
    pub(super) executor: Executor,
    pub(super) limits: Limits,
    pub(super) tls: Option<Arc<ServerConfig>>,
    pub(super) tls_required: bool,
    /// Woken when the server closes.
    pub(super) waker: Waker,
    /// Of lines that clients can cause; before they have named an export they belong to no VM.
    pub(super) log: LogLimit,
}
