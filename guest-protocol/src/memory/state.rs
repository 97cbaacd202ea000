//! What a guest's memory is used for.

use serde::{Deserialize, Serialize};

/// What a guest's memory is used for, in bytes unless said. A host believes none of it beyond what it sees itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// All memory that the guest's kernel has (`MemTotal`).
    pub total: u64,
    /// Free memory (`MemFree`).
    pub free: u64,
    /// What programs could still be given without swapping, as the kernel estimates it (`MemAvailable`).
    pub available: u64,
    /// Pages of files in the page cache, without those of tmpfs and other shared memory.
    pub file: u64,
    /// Pages of files, and shared ones, that processes have mapped (`Mapped`).
    pub mapped: u64,
    /// Pages of files that are not written yet (`Dirty` and `Writeback`).
    pub dirty: u64,
    /// Slab memory that can be reclaimed, such as dentries and inodes (`SReclaimable`).
    pub slab_reclaimable: u64,
    /// Anonymous memory (`AnonPages`) and shared memory (`Shmem`).
    pub anonymous: u64,
    /// What cannot be given back without swapping: all but free memory, clean unmapped pages of files, and slab that can be
    /// reclaimed.
    pub unreclaimable: u64,
    /// Cache that is worth having: it was used lately, or its owners would read it again.
    pub worth: u64,
    /// Swap that is used.
    pub swap_used: u64,
    /// Pages of files that were read again after they were reclaimed, since the guest was booted: a count.
    pub refaults: u64,
    /// Microseconds since the boot in which some task waited for memory (PSI).
    pub psi_some_us: u64,
    /// Microseconds since the boot in which all tasks that were not idle waited for memory (PSI).
    pub psi_full_us: u64,
    /// Processes that were killed for want of memory since the boot: a count.
    pub oom_kills: u64,
    /// Free memory is reported to the host in blocks of two to the power of this many pages; `None`: it is not reported.
    #[serde(default)]
    pub reporting_order: Option<u8>,
    /// Milliseconds since the guest was booted.
    pub uptime_ms: u64,
}
