//! The daemon: a configuration becomes a cache with disks behind sockets, controlled and observed while it runs.

mod advice;
mod api;
mod change;
mod config;
mod control;
mod daemon;
mod disks;
mod error;
mod handover;
mod list;
mod metrics;
mod metrics_names;
mod paths;
mod reload;
mod remove;
mod served;
mod service;

#[cfg(test)]
mod test;
#[cfg(test)]
mod test_changes;
#[cfg(test)]
mod test_clients;
#[cfg(test)]
mod test_paths;
#[cfg(test)]
mod test_port;
#[cfg(test)]
mod test_power_loss;
#[cfg(test)]
mod test_reload;
#[cfg(test)]
mod test_remove;
#[cfg(test)]
mod test_requested;
#[cfg(test)]
mod test_settings;
#[cfg(test)]
mod test_vhost;
#[cfg(test)]
mod test_warm;
#[cfg(test)]
mod test_warm_damage;
#[cfg(test)]
mod test_weights;

pub use advice::{advice, missing_directories};
pub use api::{ControlRequest, ControlResponse, Stats, Table, UnservedDisk};
pub use config::{Config, DiskConfig, Listen, PoolConfig, PortConfig, Size, VmConfig};
pub use control::{ControlError, default_control_path, make_directory_of, send_request};
pub use disks::preflight;
pub use error::ServeError;
pub use handover::{Descriptors, STORED, adopt, keep_over_exec, kept_over_exec};
pub use list::ListedDisk;
pub use reload::Reloaded;
pub use service::Service;
