//! Block devices: what a disk can do, the file that may hold one, and one in memory.

mod disk;
mod file;
mod ram;
#[cfg(test)]
mod recorder;
mod sync_errors;

pub use disk::{Disk, check_range};
pub use file::DiskFile;
pub(crate) use file::SharedWriteGuard;
pub use ram::RamDisk;
#[cfg(test)]
pub(crate) use recorder::{Call, Event, Recorded, Recorder, began, submitted};
pub(crate) use sync_errors::{Sync, SyncErrors};
