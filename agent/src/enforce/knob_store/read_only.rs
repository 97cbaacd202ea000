//! A mount of cgroup2 that has become read-only: no knob can be written, nor restored.

use std::path::Path;
use std::time::{Duration, Instant};

use justitia_kernel::Error;
use justitia_kernel::error::Operation;
use justitia_kernel::knob::Knob;
use rustix::io::Errno;

/// A write is tried this often. Each takes two lines in the journal, both synced.
const RETRY: Duration = Duration::from_secs(1);

/// A read-only mount.
#[derive(Debug)]
pub(super) struct ReadOnly {
    /// The error of the last write that was tried.
    why: String,
    retry_at: Instant,
}

impl ReadOnly {
    /// The mount was found read-only at `now`, by the error of a write.
    pub(super) fn new(error: &Error, now: Instant) -> Self {
        Self {
            why: error.to_string(),
            retry_at: now + RETRY,
        }
    }

    /// The error of the last write that was tried.
    pub(super) fn why(&self) -> &str {
        &self.why
    }

    /// The error of a write to `path`, if it is not to be tried yet.
    pub(super) fn error(&self, path: &Path, now: Instant) -> Option<Error> {
        (now < self.retry_at).then(|| Error::Io {
            operation: Operation::Write,
            path: path.to_owned(),
            errno: Errno::ROFS,
        })
    }
}

/// Whether a knob is a cgroup's. One of the machine is a file below `/proc/sys`, which is another mount.
pub(super) const fn is_of_cgroup(knob: Knob) -> bool {
    !matches!(knob, Knob::DirtyBackground)
}

/// Whether the mount of the cgroups is read-only. `/proc/sys` stays read-only for a service that systemd keeps from it.
pub(super) fn is_read_only(error: &Error, knob: Knob) -> bool {
    is_of_cgroup(knob) && error.errno() == Some(Errno::ROFS)
}
