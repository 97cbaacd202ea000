//! Decides how much is offered to the host: of each file system by its verdicts, of each pool by its hits, and from which disks.
//! Plans are pure functions.

mod acceptance;
pub(crate) mod costs;
pub(crate) mod decide;
pub(crate) mod disks;
mod reuse;
pub(crate) mod verdicts;
