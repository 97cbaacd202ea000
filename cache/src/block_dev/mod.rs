//! Block devices: what a disk can do, the file that may hold one, and one in memory.

mod disk;
mod file;
mod ram;
mod sync_errors;

pub use disk::{Disk, check_range};
pub use file::DiskFile;
pub(crate) use file::SharedWriteGuard;
pub use ram::RamDisk;
pub(crate) use sync_errors::{Sync, SyncErrors};
