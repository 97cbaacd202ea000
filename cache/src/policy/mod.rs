//! A pool's blocks in memory, and which of them go first.
//!
//! Two lists, newest to oldest, serve every policy. A slot is in one of them from its allocation until its
//! owner (see [`crate::index`]) takes it off, so an element may be a block that is being filled, or one that
//! somebody has just removed from the index; those cannot be evicted and are passed over.

mod adaptive_split;
mod evict;
mod ghost;
mod pool_policy;

pub(crate) use pool_policy::PoolPolicy;
