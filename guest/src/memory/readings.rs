//! Readings of the machine's memory from the kernel, at one moment.

use std::time::Duration;

/// The use of a machine's memory, in bytes unless said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Readings {
    /// Since the boot.
    pub(super) at: Duration,
    pub(super) total: u64,
    pub(super) free: u64,
    pub(super) available: u64,
    /// Pages of files, without shared memory.
    pub(super) file: u64,
    /// Of these, pages on the active list, or in the two youngest generations.
    pub(super) active_file: u64,
    /// Of these, mapped pages; an upper bound where that is not known.
    pub(super) mapped_file: u64,
    /// All mapped pages, shared memory included.
    pub(super) mapped: u64,
    /// Pages not written yet, or under writeback.
    pub(super) dirty: u64,
    pub(super) slab_reclaimable: u64,
    /// Anonymous memory, shared memory included.
    pub(super) anonymous: u64,
    pub(super) swap_used: u64,
    /// Refaults of file pages: a count.
    pub(super) refaults: u64,
    /// Activated pages, used for the second time: a count.
    pub(super) activations: u64,
    /// Pressure, without that of this program's own reclaim.
    pub(super) psi_some: Duration,
    pub(super) psi_full: Duration,
    pub(super) oom_kills: u64,
    /// Busy time of all processors together.
    pub(super) busy: Duration,
}

impl Readings {
    /// The cache that reclaim may take: clean or not, in use or not.
    pub(super) const fn cache(&self) -> u64 {
        self.file.saturating_add(self.slab_reclaimable)
    }
}
