//! Device bandwidth: which disks there are, what they do, what tenants do to them, and the limits that follow.
//!
//! The arithmetic is [`justitia_share::credit`]; here it becomes knobs, each with its reason.
//!
//! | planner | decides | source |
//! |---|---|---|
//! | [`plan_limits`] | `io.max` of tenants on a contended disk that BFQ does not schedule | WDT |
//! | [`weights`] | `io.bfq.weight` or `io.weight` of tenants, on a contended disk that BFQ or io.cost divides | WDT, residual carry-over |
//! | [`plan_rooms`] | `memory.high` of writers | Justitia, section III-A |

mod active_set;
pub mod credits;
mod disk;
mod disk_sampler;
mod ours;
pub mod plan;
mod tenant_io;
pub mod weights;

pub use active_set::ActiveSet;

pub use disk::{BlockDevice, Disk, DiskIdentity, NoDisk, block_devices, disks};
pub use disk_sampler::{DiskDiscovery, DiskSampler, DiskStat};
pub use plan::{
    LEAST_ROOM, LimitIntent, LimitReason, RoomIntent, Writer, io_max, plan_limits, plan_rooms,
};
pub use tenant_io::{AppBytes, AppIoSource, DiskActivity, TenantIo};

#[cfg(test)]
pub mod tests {
    //! A sysfs of plain files.

    pub use super::disk::tests::Sys;
}
