//! A pool's blocks in memory, and the order in which they are evicted.
//!
//! Two lists, newest to oldest, serve every policy. A slot is in one of them from its allocation until its
//! owner (see [`crate::index`]) removes it, so an element may be a block that is being filled, or one that was just
//! removed from the index; those cannot be evicted and are skipped.

mod adaptive_split;
mod evict;
mod ghost;
mod pool_policy;

pub(crate) use evict::Demotion;
pub(crate) use pool_policy::PoolPolicy;
