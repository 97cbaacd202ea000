//! Division of the page cache by weight.
//!
//! Measuring: [`MemorySampler`] samples the counters of each tenant, [`Reuse`] its reuse times, `system_memory`
//! the host's memory, `unmanaged` the memory in no managed cgroup; [`Handover`] has the working sets that the agent before this one knew. A
//! [`Snapshot`](crate::model::Snapshot) is all of it at one moment.
//!
//! Planning: pure functions of a snapshot. They read no clock and do no I/O, so a table of cases tests each.
//! [`Entitlements`] divides the page cache by weight. The planners compare that with what tenants hold, and return intents,
//! each with the facts that led to it.
//!
//! | planner | decides | source |
//! |---|---|---|
//! | [`plan_reclaim`](reclaim::plan_reclaim) | which tenants give back file pages, and how many | Justitia, section III-B3 |
//! | [`plan_anonymous`](reclaim::plan_anonymous) | from which tenant cold anonymous memory is swapped out, and how much | as the kernel's own reclaim would |
//! | [`plan_slab`](slab::plan_slab) | whose reclaimable slab shrinks | Linux Symposium 2010, 5.2 |
//! | [`plan_protection`] | `memory.low` of every tenant | Justitia, section III-B3, through the kernel's own reclaim |
//!
//! Acting: [`reclaim`] asks the kernel to reclaim, in threads of its own; [`protection`] writes `memory.low` through
//! the knob store.

mod entitlements;
pub(crate) mod handover;
mod memory_sampler;
pub mod protection;
pub mod reclaim;
mod reuse;
pub mod slab;
mod snapshot;
pub(crate) mod system_memory;
pub(crate) mod unmanaged;
mod unmapped;

#[cfg(test)]
pub(crate) mod fixture;
#[cfg(test)]
mod tests;

pub use entitlements::{Entitlements, Policy};
pub use handover::Handover;
pub use memory_sampler::{CgroupTree, MemoryCounters, MemorySampler, Node};
pub use protection::{Low, LowIntent, ProtectionController, plan_protection};
pub(crate) use reuse::ReuseSampler;
pub use reuse::{RECENT_ACCESSES, Reuse, ReuseCounts};
pub use unmanaged::{ReclaimFeatures, UnmanagedReclaim, lru_gen_usable};
pub use unmapped::UnmappedCap;
