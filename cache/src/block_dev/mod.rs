//! Block devices: the trait of a disk, an image's file, and a disk in memory.

mod disk;
mod file;
#[cfg(test)]
mod recorder;

pub use disk::{BlockDevice, RamDisk, check_range};
pub use file::ImageFile;
pub(crate) use file::{SharedWriteGuard, Sync, SyncErrors};
#[cfg(test)]
pub(crate) use recorder::{Call, Event, Recorded, Recorder, began, submitted};
