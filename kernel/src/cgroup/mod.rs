//! cgroup v2: the mount, its directories, and typed readers of their files.
//!
//! A [`Cgroup`] is an open directory. Everything is reached relative to it, so that when a path is
//! reused by another cgroup, the old handle answers "gone" and never speaks of the new one.

mod admit;
mod authority;
mod core;
mod counts;
mod delegation;
mod dir;
mod files;
mod fs;
mod kept;
mod reclaim;

#[cfg(test)]
mod tests;

pub use self::core::{CgroupEvents, CgroupType, Controllers};
pub use authority::Authority;
pub use counts::Counts;
pub use dir::{Cgroup, CgroupId, Child};
pub use fs::CgroupFs;
pub(crate) use fs::discover;
pub use kept::KeptFiles;
pub use reclaim::ReclaimEnd;
