//! `cache.toml`: its tables, and the configuration that they make.

#![deny(clippy::indexing_slicing)]

mod check;
mod error;
mod faults;
mod listen;
mod load;
mod name;
mod port;
mod tables;
mod types;

pub use error::ConfigError;
pub(super) use name::{NAME, is_name};
pub use types::{Config, DiskConfig, Listen, PoolConfig, PortConfig, VmConfig};
