//! The state that a daemon leaves for the next one: the blocks of its stores, their order of eviction, and the proof that the
//! images have not changed.
//!
//! Blocks are reused only with a proof. A saved state is valid once: the daemon that takes it first voids it, so that nothing
//! is taken again if it is killed later. Each block has a checksum of its content and its key.

mod image;
mod saved;

pub(crate) use image::{ImageState, wait_for_clock};
pub(crate) use saved::{
    Head, Memfd, PAGE_BYTES, Place, Preamble, RECORDS, Record, Restored, SavedDisk, SavedPool,
    load, save, span,
};
