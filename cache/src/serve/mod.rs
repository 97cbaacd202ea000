//! The daemon: a configuration becomes a cache with disks behind sockets, controlled and observed while it runs.

pub mod bench;

mod api;
mod change;
mod changes;
mod config;
mod control;
mod daemon;
mod descriptors;
mod disks;
mod error;
mod given;
mod grow;
mod handover;
mod metrics;
mod metrics_curves;
mod metrics_names;
mod metrics_ports;
mod paths;
mod preflight;
mod reload;
mod remove;
mod requested;
mod served;
mod service;
mod size;
mod vms;

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
mod test_vhost;
#[cfg(test)]
mod test_warm;
#[cfg(test)]
mod test_warm_damage;
#[cfg(test)]
mod test_weights;

pub use api::{ControlRequest, ControlResponse, Stats, Table, UnservedDisk};
pub use config::{Config, ConfigError, DiskConfig, Listen, PoolConfig, PortConfig, VmConfig};
pub use control::{ControlError, default_control_path, make_directory_of, send_request};
pub use error::ServeError;
pub use given::{Descriptors, adopt, keep_over_exec, kept_over_exec};
pub use handover::STORED;
pub use preflight::preflight;
pub use reload::Reloaded;
pub use service::Service;
pub use size::Size;
