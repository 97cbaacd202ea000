//! Proactive reclaim: `memory.reclaim`, since 5.19; its `swappiness=`, since 6.9.

use rustix::io::Errno;

use super::Cgroup;
use crate::error::Result;

/// How a request to reclaim ended. None of these tells how much was reclaimed: some kernels
/// report success and reclaim nothing. Compare [`memory_stat`](Cgroup::memory_stat) before and
/// after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReclaimOutcome {
    /// The kernel reports that all of it was reclaimed.
    Complete,
    /// The kernel gave up before (`EAGAIN`): what is left is in use, dirty, or protected below.
    Partial,
    /// A signal interrupted it (`EINTR`).
    Interrupted,
}

impl Cgroup {
    /// Asks the kernel to reclaim `bytes` from the cgroup and its descendants, synchronously: it
    /// may take long, and delays the cgroup's `rmdir`. Keep it small (32 MiB at most), and out of
    /// control loops.
    ///
    /// `swappiness` is 0 (file pages only) to 200 (anonymous only); `None` leaves the kernel's
    /// own. The cgroup's own `memory.low` has no effect here, only its descendants' has.
    ///
    /// # Errors
    /// As every operation on a cgroup; `EINVAL` when the kernel does not know `swappiness=`.
    pub fn reclaim(&self, bytes: u64, swappiness: Option<u8>) -> Result<ReclaimOutcome> {
        let request = match swappiness {
            Some(swappiness) => format!("{bytes} swappiness={swappiness}"),
            None => bytes.to_string(),
        };
        match self.write("memory.reclaim", &request) {
            Ok(()) => Ok(ReclaimOutcome::Complete),
            Err(error) if error.errno() == Some(Errno::AGAIN) => Ok(ReclaimOutcome::Partial),
            Err(error) if error.errno() == Some(Errno::INTR) => Ok(ReclaimOutcome::Interrupted),
            Err(error) => Err(error),
        }
    }
}
