//! What a daemon leaves for the next one when it ends: which blocks its stores hold, in what order of eviction, and what
//! proves that they are still those of the images.
//!
//! Nothing is used again without a proof. What was saved is valid once: the daemon that takes it voids it first, so that one
//! that is killed later leaves nothing that could be taken again. The content of each block has a checksum, which covers the
//! block's name.

mod image;
mod saved;

pub(crate) use image::{ImageState, wait_for_clock};
pub(crate) use saved::{
    Head, Memfd, PAGE_BYTES, Place, Preamble, RECORDS, Record, Restored, SavedDisk, SavedPool,
    load, save, span,
};
