//! Block devices: what a disk can do, the file that may hold one, and one in memory.

mod disk;
mod file;
mod ram;

pub use disk::{Disk, check_range};
pub use file::DiskFile;
pub(crate) use file::SharedWriteGuard;
pub use ram::RamDisk;
