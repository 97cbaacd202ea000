//! Division of the page cache by weight.
//!
//! Measuring: [`MemorySampler`] samples each tenant's counters, [`Reuse`] its reuse times, `system_memory` the host's memory,
//! and `unmanaged` the memory outside managed cgroups. [`Handover`] has the working sets that the previous agent knew. A
//! [`Snapshot`](crate::model::Snapshot) is all of it at one moment.
//!
//! Planning: pure functions of a snapshot. They read no clock and do no I/O, so tables of cases test them. [`Entitlements`]
//! divides the page cache by weight. The planners compare entitlements with usage, and return intents with their reasons.
//!
//! | planner | decides | source |
//! |---|---|---|
//! | [`plan_reclaim`](reclaim::plan_reclaim) | which tenants give back file pages, and how many | Justitia, section III-B3 |
//! | [`plan_anonymous`](reclaim::plan_anonymous) | from which tenant cold anonymous memory is swapped out, and how much | as the kernel's own reclaim would |
//! | [`plan_slab`](slab::plan_slab) | which tenants' reclaimable slab shrinks | Linux Symposium 2010, 5.2 |
//! | [`plan_protection`] | `memory.low` of every tenant | Justitia, section III-B3, through the kernel's own reclaim |
//!
//! Acting: [`reclaim`] requests reclaim in threads of its own; [`protection`] writes `memory.low` through the knob store.

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
