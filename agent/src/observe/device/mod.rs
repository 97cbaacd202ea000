//! Block devices: which disks there are that really throttle, and what they do.

mod meter;
mod stack;
mod tenants;
mod users;

pub use meter::{DeviceMeter, DiskStat};
pub use stack::{Disk, disks, disks_below};
pub use tenants::{Got, TenantIo};
pub use users::{Probed, Users};
