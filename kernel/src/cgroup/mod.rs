//! cgroup v2: the mount, its directories, and typed readers of their files.
//!
//! A [`Cgroup`] is an open directory, and its files are opened relative to it. When a path is reused by another cgroup, the
//! old handle answers "gone" and never reads the new one.

mod delegation;
mod dir;
mod files;
mod fs;
mod stat_fds;

#[cfg(test)]
mod tests;

pub use delegation::{Mark, Ownership};
pub use dir::{Cgroup, CgroupId, Child};
pub use files::{CgroupEvents, Controllers, ReclaimOutcome};
pub use fs::CgroupFs;
pub(crate) use fs::discover;
pub use stat_fds::{StatFdCache, StatFlusher};
