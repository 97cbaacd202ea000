//! Doing what was decided: which disks are watched, how much is offered, which pools there are, and hints.

pub(crate) mod disks;
pub(crate) mod filesystems;
pub(crate) mod hints;
pub(crate) mod offers;
pub(crate) mod pools;
