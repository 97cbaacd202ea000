//! Doing what was decided: which disks are watched, how much is offered, and which pools there are.

pub(crate) mod disks;
pub(crate) mod filesystems;
pub(crate) mod offers;
pub(crate) mod pools;
