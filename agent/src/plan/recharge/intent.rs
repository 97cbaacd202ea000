//! What the recharge planner decides.

use justitia_api::RechargeGain;
use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::file::FileId;

/// Recharge a file's pages to a heavier tenant.
#[derive(Clone, Debug, PartialEq)]
pub struct RechargeIntent {
    /// Which file.
    pub file: FileId,
    /// The new owner: a leaf.
    pub owner: CgroupId,
    /// The cgroup that is charged now. It may have been removed.
    pub charged: CgroupId,
    /// Bytes of the file in the page cache.
    pub cached: u64,
    /// The facts behind it.
    pub reason: RechargeGain,
}

/// The time over which the gain is estimated, seconds.
pub const HORIZON: u32 = 300;
/// A file with less in the page cache is not worth a process, bytes.
pub const MIN_RECHARGE_BYTES: u64 = 256 << 10;
/// Free memory above the headroom that recharging needs, bytes: it reads the file again.
pub const MIN_SPARE_MEMORY: u64 = 16 << 20;

/// Why a file remains charged as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepReason {
    /// A process has it mapped.
    Mapped,
    /// Little of it is in the page cache.
    SmallCache,
    /// No tenant reads more than a little of it.
    LittleRead,
    /// No tenant that reads it is heavier than the one that is charged.
    NoHeavierReader,
    /// Reading it again costs more than the expected gain.
    SmallGain,
    /// It was tried lately.
    TriedLately,
}
