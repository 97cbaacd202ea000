//! The daemon: a configuration becomes a cache with disks behind sockets, controlled and observed while it
//! runs.

pub mod bench;

mod config;
mod control;
mod metrics;
mod service;
mod show;
mod size;

#[cfg(test)]
mod test;

pub use config::{Config, ConfigError, DiskConfig, Listen, PoolConfig, VmConfig};
pub use control::{Ask, AskError, Reply, ask, default_control_path, make_directory_of};
pub use service::{ServeError, Service, Stats};
pub use show::show;
pub use size::Size;
