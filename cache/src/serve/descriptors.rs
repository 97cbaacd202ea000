//! How many files the daemon may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit as far as it may go: every VM over vhost-user hands over some hundred descriptors, and what one has
/// must not be missing for another.
pub(super) fn raise_limit() {
    let now = getrlimit(Resource::Nofile);
    if now.current == now.maximum {
        return;
    }
    let raised = Rlimit {
        current: now.maximum,
        maximum: now.maximum,
    };
    if let Err(e) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!("cannot raise the limit of open files: {e}");
    }
}
