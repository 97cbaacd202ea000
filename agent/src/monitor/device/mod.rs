//! Block devices: which disks there are that really throttle, and what they do.

mod follow;
mod meter;
mod stack;
mod tenants;
mod users;

pub use follow::DiskFollower;
pub use meter::{DeviceMeter, DiskStat};
pub use stack::{Disk, DiskIdentity, NoDisk, block_devices, disks, disks_below};
pub use tenants::{Got, TenantIo};
pub use users::{Probed, Users};

#[cfg(test)]
pub mod tests {
    //! A sysfs of plain files.

    pub use super::stack::tests::Sys;
}
