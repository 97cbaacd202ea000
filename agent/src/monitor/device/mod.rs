//! Block devices: which disks there are, what they do, and what tenants do to them.

mod active_set;
mod discovery;
mod disk;
mod disk_sampler;
mod source;
mod tenant_io;
mod tenant_sampler;

pub use active_set::ActiveSet;
pub use discovery::DiskDiscovery;
pub(crate) use disk::is_exhausted;
pub use disk::{BlockDevice, Disk, DiskIdentity, NoDisk, block_devices, disks};
pub use disk_sampler::{DiskSampler, DiskStat};
pub use source::{AppBytes, AppIoSource, DiskActivity};
pub use tenant_io::TenantIo;

#[cfg(test)]
pub mod tests {
    //! A sysfs of plain files.

    pub use super::disk::tests::Sys;
}
