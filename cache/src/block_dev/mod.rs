//! Block devices: what a disk can do, the file that may hold one, and one in memory.

mod disk;
mod file;
#[cfg(test)]
mod recorder;

pub use disk::{BlockDevice, RamDisk, check_range};
pub use file::ImageFile;
pub(crate) use file::{SharedWriteGuard, Sync, SyncErrors};
#[cfg(test)]
pub(crate) use recorder::{Call, Event, Recorded, Recorder, began, submitted};
