//! Why the daemon cannot start, or refuses a change.

use crate::backing::OpenError;
use crate::error::CacheError;
use crate::frontend::ListenError;
use crate::nbd::TlsError;
use justitia_share::WeightError;

/// Why the daemon cannot start, or refused a change.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The cache.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// An image.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A weight.
    #[error(transparent)]
    Weight(#[from] WeightError),
    /// Anything else: what was expected and found, and what to do.
    #[error("{0}")]
    Refused(String),
}

impl ServeError {
    /// No `what` is named `found`; the error lists the known names.
    pub(super) fn unknown<'a>(
        what: &str,
        found: &str,
        known: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        Self::Refused(format!(
            "expected the name of a {what}, found {found:?}; there are: {known}"
        ))
    }
}
