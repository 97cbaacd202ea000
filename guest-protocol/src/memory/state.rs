//! The use of a guest's memory.

use serde::{Deserialize, Serialize};

/// The use of a guest's memory, in bytes unless said. A host believes none of it beyond its own measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// All memory that the guest's kernel has (`MemTotal`).
    pub total: u64,
    /// Free memory (`MemFree`).
    pub free: u64,
    /// Memory that programs could still get without swapping, as the kernel estimates it (`MemAvailable`).
    pub available: u64,
    /// Pages of files in the page cache, without those of tmpfs and other shared memory.
    pub file: u64,
    /// Mapped pages of files, and of shared memory (`Mapped`).
    pub mapped: u64,
    /// Pages of files that are not written yet (`Dirty` and `Writeback`).
    pub dirty: u64,
    /// Slab memory that can be reclaimed, such as dentries and inodes (`SReclaimable`).
    pub slab_reclaimable: u64,
    /// Anonymous memory (`AnonPages`) and shared memory (`Shmem`).
    pub anonymous: u64,
    /// Memory that cannot be given back without swapping: all but free memory, clean unmapped pages of files, and reclaimable
    /// slab.
    pub unreclaimable: u64,
    /// Cache that is worth having: it was used lately, or its owners would read it again.
    pub worth: u64,
    /// Used swap.
    pub swap_used: u64,
    /// Refaults of file pages since the guest's boot: a count.
    pub refaults: u64,
    /// Microseconds since the boot in which some task waited for memory (PSI).
    pub psi_some_us: u64,
    /// Microseconds since the boot in which all tasks that were not idle waited for memory (PSI).
    pub psi_full_us: u64,
    /// Processes that the OOM killer has killed since the boot: a count.
    pub oom_kills: u64,
    /// The order of the blocks in which free memory is reported to the host, log2 of pages; `None`: it is not reported.
    #[serde(default)]
    pub reporting_order: Option<u8>,
    /// Milliseconds since the guest's boot.
    pub uptime_ms: u64,
}
