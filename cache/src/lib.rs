//! The hypervisor cache: second-chance blocks, shared between VMs by weight and inside a VM between its
//! containers by ⟨store, weight⟩, after DoubleDecker (Middleware '17).
//!
//! [`Cache`] holds blocks; [`CachedDisk`] puts it in front of a [`BlockDevice`]. The cache only ever holds clean
//! blocks: losing it loses speed, never data.

// Only the lab uses some public items.
#![cfg_attr(not(feature = "lab"), allow(unreachable_pub))]

pub mod backing;
pub mod nbd;
pub mod serve;

mod block;
mod block_dev;
mod cache;
mod clock;
mod config;
mod connections;
mod disk;
mod error;
pub mod frontend;
mod ids;
mod index;
mod inherited;
#[cfg(feature = "lab")]
pub mod lab;
mod lock_rank;
#[cfg(test)]
mod model;
mod policy;
mod port;
mod residency;
mod ring;
mod ssd_admission;
mod store;
#[cfg(any(test, feature = "lab"))]
mod testing;
mod token_bucket;
pub mod vhost;
mod warm;
mod write_epochs;

pub use block::{BLOCK_SIZE, Block, MAX_BLOCK};
pub use block_dev::{BlockDevice, ImageFile, RamDisk, check_range};
pub use cache::{
    Cache, CacheStats, Counts, DiskStats, PoolStats, ResidencyStats, StoreStats, VmStats,
};
pub use config::{CacheConfig, Mode, Policy, PoolSpec, SsdConfig, StoreKind};
pub use disk::CachedDisk;
pub use error::CacheError;
pub use ids::{DiskId, PoolId, VmId};
pub use justitia_guest_protocol::puts::Verdict;
pub use justitia_share::{Weight, WeightError};
pub use port::PortStats;
pub use ssd_admission::SsdAdmission;
