//! What the kernel says of the machine's memory, at one moment.

use std::time::Duration;

/// What a machine's memory is used for, in bytes unless said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Readings {
    /// Since the boot.
    pub(super) at: Duration,
    pub(super) total: u64,
    pub(super) free: u64,
    pub(super) available: u64,
    /// Pages of files, without shared memory.
    pub(super) file: u64,
    /// Of these, on the kernel's active list, or in the two youngest generations.
    pub(super) active_file: u64,
    /// Of these, mapped; more where it is not known.
    pub(super) mapped_file: u64,
    /// All that is mapped, shared memory included.
    pub(super) mapped: u64,
    /// Not written yet, or being written.
    pub(super) dirty: u64,
    pub(super) slab_reclaimable: u64,
    /// With shared memory.
    pub(super) anonymous: u64,
    pub(super) swap_used: u64,
    /// Pages of files that were read again after they were reclaimed: a count.
    pub(super) refaults: u64,
    /// Pages that were used for the second time: a count.
    pub(super) activations: u64,
    /// Pressure, without that of this program's own reclaim.
    pub(super) psi_some: Duration,
    pub(super) psi_full: Duration,
    pub(super) oom_kills: u64,
    /// Time in which processors were busy, of all together.
    pub(super) busy: Duration,
}

impl Readings {
    /// What reclaim can take at all: clean or not, in use or not.
    pub(super) const fn cache(&self) -> u64 {
        self.file.saturating_add(self.slab_reclaimable)
    }
}
