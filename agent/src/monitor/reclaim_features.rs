//! What this kernel's reclaim can do.

use justitia_api::ReclaimExemption;

/// The kernel's features on which reclaim from tenants depends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReclaimFeatures {
    /// `memory.reclaim` exists.
    pub reclaim: bool,
    /// It takes `swappiness=`.
    pub swappiness: bool,
    /// The multi-gen LRU is on.
    pub multi_gen: bool,
    /// The debugfs interface of the multi-gen LRU can be used.
    pub lru_gen: bool,
    /// BFQ is the scheduler of a disk, so `io.bfq.weight` is in effect.
    pub bfq: bool,
}

impl ReclaimFeatures {
    /// Why nothing may be reclaimed from a tenant with `anon` bytes of anonymous memory, if so.
    #[must_use]
    pub const fn exempts(&self, anon: u64, swap_on: bool) -> Option<ReclaimExemption> {
        match (self.reclaim, self.swappiness) {
            (false, _) => Some(ReclaimExemption::Unsupported),
            (true, true) => None,
            (true, false) if anon > 0 && swap_on => Some(ReclaimExemption::Anonymous),
            (true, false) => None,
        }
    }

    /// The `swappiness=` that restricts reclaim to file pages; `None` where the kernel does not take it.
    #[must_use]
    pub const fn file_only(&self) -> Option<u8> {
        if self.swappiness { Some(0) } else { None }
    }
}
