//! `cache.toml`: its tables, and the configuration that they make.

#![deny(clippy::indexing_slicing)]

mod check;
mod load;
mod tables;
mod types;

pub use check::ConfigError;
pub use tables::Size;
pub use types::{Config, DiskConfig, Listen, PoolConfig, PortConfig, VmConfig};
pub(super) use types::{NAME, is_name};
