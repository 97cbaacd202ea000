//! cgroup v2: the mount, its directories, and typed readers of their files.
//!
//! A [`Cgroup`] is an open directory, and its files are opened relative to it. When a path is reused by another cgroup, the
//! old handle answers "gone" and never reads the new one.

mod access;
mod children;
mod core_files;
mod delegation;
mod dir;
mod files;
mod fs;
mod hierarchy;
mod lock;
mod mark;
mod ownership;
mod procs;
mod reclaim;
mod stat_fds;
mod stat_flusher;

#[cfg(test)]
mod tests;

pub use core_files::{CgroupEvents, Controllers};
pub use dir::Cgroup;
pub use fs::CgroupFs;
pub(crate) use fs::discover;
pub use hierarchy::{CgroupId, Child};
pub use mark::Mark;
pub use ownership::Ownership;
pub use reclaim::ReclaimOutcome;
pub use stat_fds::StatFdCache;
pub use stat_flusher::StatFlusher;
