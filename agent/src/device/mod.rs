//! Device bandwidth: finds the disks, samples them and the tenants' I/O to them, plans, and writes the knobs, each with its
//! reason.
//!
//! | planner | decides | source |
//! |---|---|---|
//! | [`weights`] | `io.bfq.weight` or `io.weight` of tenants, on a contended disk that BFQ or io.cost divides | WDT, residual carry-over |
//! | [`plan_rooms`] | `memory.high` of writers | Justitia, section III-A |

mod active_set;
mod capacity;
pub mod credits;
mod disk;
mod disk_sampler;
mod ours;
mod prices;
pub mod rooms;
mod tenant_io;
pub mod weights;

pub use active_set::ActiveSet;
pub use capacity::Rate;

pub use disk::{BlockDevice, Disk, DiskIdentity, NoDisk, block_devices, disks};
pub use disk_sampler::{DiskDiscovery, DiskSampler, DiskStat, Interval};
pub use prices::{Costs, Prices};
pub use rooms::{LEAST_ROOM, RoomIntent, Writer, plan_rooms};
pub use tenant_io::{AppIo, AppIoSource, DiskActivity, Flow, TenantIo};

#[cfg(test)]
pub mod tests {
    //! A sysfs of plain files.

    pub use super::disk::tests::Sys;
}
