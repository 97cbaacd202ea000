//! Block devices: which disks there are that really throttle, and what they do.

mod active_set;
mod discovery;
mod disk;
mod disk_sampler;
mod tenant_io;

pub use active_set::{ActiveSet, AppIoSource};
pub use discovery::DiskDiscovery;
pub use disk::{Disk, DiskIdentity, NoDisk, block_devices, disks, disks_below};
pub use disk_sampler::{DiskSampler, DiskStat};
pub use tenant_io::{AppBytes, TenantIo};

#[cfg(test)]
pub mod tests {
    //! A sysfs of plain files.

    pub use super::disk::tests::Sys;
}
