//! `justitia-lab cache bench`: the NBD and vhost-user front ends beside others, and the SSD store beside its device.
//!
//! The client is fio, and over vhost-user a driver of ours, the same for all servers. The runs of the servers alternate, so
//! that what the machine does meanwhile hits them alike. Runs of one round are compared, and the median of these ratios is
//! reported.

mod compare;
mod fio;
mod misses;
mod options;
mod report;
mod run;
mod ssd;
mod subject;
mod vhost;

pub use options::{BenchError, Options};
pub use report::{Measured, Report, Section};
pub use run::run;
pub use vhost::run as run_vhost;
