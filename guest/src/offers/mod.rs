//! How much is offered to the host: of each file system by its verdicts, of each pool by the hits that come of it, and
//! from which disks. Plans are pure functions.

mod acceptance;
pub(crate) mod costs;
pub(crate) mod decide;
pub(crate) mod disks;
mod reuse;
pub(crate) mod verdicts;
