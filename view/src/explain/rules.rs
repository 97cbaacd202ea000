//! The rules of device bandwidth in words; their constants are the agent's.

use justitia_api::IoPolicyStatus;
use justitia_api::units::{bytes, percent};

/// The rule of `io.max`.
pub(super) fn io_max(policy: Option<&IoPolicyStatus>) -> String {
    let mut text = "while tenants wait for the same disk, its time is divided by weight among those that use it; what \
                    one does not use goes to the others; each part is multiplied by a correction, which follows from \
                    what its applications got (1: none). The part is written as bytes per second, by what the disk \
                    lately did in so much time, or as requests per second where requests cost more than their bytes. \
                    Reads and writes share it as they did in the last seconds. The limit on writes is higher where \
                    the tenant's dirty pages would take seconds to write. Without contention there is no limit"
        .to_owned();
    if let Some(policy) = policy {
        text += &format!(
            ". Of the disk's time {} % to {} % is not handed out, which keeps its queue short; reads and writes each get \
             {} % of the part on top, and {} % at least; no limit is below {}/s or {} requests/s",
            percent(policy.reserved),
            percent(policy.max_reserved),
            percent(policy.direction_margin),
            percent(policy.min_direction),
            bytes(policy.min_rate),
            policy.min_requests
        );
    }
    text
}

/// The rule of `memory.high`, for a tenant with `other` bytes of other memory.
pub(super) fn memory_high(policy: Option<&IoPolicyStatus>, other: u64) -> String {
    let mut text = format!(
        "the more memory a buffered writer may have, the more pages it may have dirty, and the faster the kernel lets it \
         write. While two or more buffered writers wait for the same disk, their file pages and the free memory are \
         divided among them as the disk's time is: that is each one's dirty budget. Its memory that is not file pages \
         (now {}) is added, because memory.high counts that too",
        bytes(other)
    );
    if let Some(policy) = policy {
        text += &format!(
            ". The budget is {} at least. What a writer holds beyond it is reclaimed, at most 1/{} of its memory at once; \
             while more than 1/{} of what is divided is free, it keeps {} times the budget. Written when off by more \
             than 1/{}",
            bytes(policy.min_dirty_budget),
            policy.reclaim_step,
            policy.ample_free,
            policy.ample_budget,
            policy.high_deadband
        );
    }
    text
}

/// The rule of `vm.dirty_background_ratio`.
pub(super) const DIRTY_BACKGROUND: &str = "a setting of the whole machine, in per cent of the memory that may be dirty: from \
    there on the kernel writes back in the background. While buffered writers wait for a disk, it is one below \
    vm.dirty_ratio, at which writers are throttled. A value that the operator has changed is left";
