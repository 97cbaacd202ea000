//! What a detector returns.

use std::path::Path;

use rustix::io::Errno;

use super::State;
use crate::error::Error;

/// The state of a capability, and the reason.
pub(super) type Finding = (State, String);

pub(super) fn yes(reason: impl Into<String>) -> Finding {
    (State::Yes, reason.into())
}

pub(super) fn no(reason: impl Into<String>) -> Finding {
    (State::No, reason.into())
}

pub(super) fn not_applicable(reason: impl Into<String>) -> Finding {
    (State::NotApplicable, reason.into())
}

pub(super) fn unknown(error: &Error) -> Finding {
    (State::Unknown, error.to_string())
}

/// Whether `path` can be read; `hint` says why it may be absent.
pub(super) fn readable(path: &Path, hint: &str) -> Finding {
    match rustix::fs::access(path, rustix::fs::Access::READ_OK) {
        Ok(()) => yes(format!("{path:?} can be read")),
        Err(Errno::NOENT) => no(format!("{path:?} does not exist: {hint}")),
        Err(errno @ (Errno::ACCESS | Errno::PERM)) => no(format!("{path:?}: {errno}: {hint}")),
        Err(errno) => (State::Unknown, format!("{path:?}: {errno}")),
    }
}

/// How many names a reason lists.
const MAX_NAMES: usize = 8;

/// `Yes` with the names, or `No` with the reason `none` if there are none.
pub(super) fn any_of(names: &[String], none: &str) -> Finding {
    if names.is_empty() {
        return no(none);
    }
    let shown = names.get(..MAX_NAMES).unwrap_or(names).join(", ");
    match names.len().saturating_sub(MAX_NAMES) {
        0 => yes(shown),
        more => yes(format!("{shown} and {more} more")),
    }
}
