//! The hypervisor cache: second-chance blocks, shared between VMs by weight and inside a VM between its
//! containers by ⟨store, weight⟩, after DoubleDecker (Middleware '17).
//!
//! [`Cache`] holds blocks; [`CachedDisk`] puts it in front of a [`Disk`]. The cache only ever holds clean
//! blocks: losing it loses speed, never data.

pub mod backing;
pub mod nbd;
pub mod serve;

pub mod bench;
mod block;
mod cache;
mod disk;
mod error;
mod index;
#[cfg(test)]
mod model;
mod policy;
mod regular;
mod ring;
mod store;

pub use block::{BLOCK_SIZE, Block, MAX_BLOCK, PoolId, VmId};
pub use cache::{
    Cache, CacheConfig, CacheStats, Counts, DiskId, DiskStats, Policy, PoolSpec, PoolStats,
    SsdConfig, StoreKind, StoreStats, VmStats,
};
pub use disk::{CachedDisk, Disk, Mode, RamDisk, check_range};
pub use error::CacheError;
pub use justitia_lock::{Ageing, Order};
pub use justitia_share::{Weight, WeightError};
