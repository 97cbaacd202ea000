//! Memory that blocks of the device are read into.

use crate::block::{BLOCK_SIZE, Block};
use std::io;

/// A block at an address that direct I/O accepts.
#[repr(C, align(4096))]
pub(crate) struct Page(pub(crate) Block);

impl Page {
    pub(crate) const fn new() -> Self {
        Self([0; BLOCK_SIZE])
    }
}

/// Blocks that were read: a page for each, and whether it was read.
pub(crate) struct BlocksRead {
    pub(crate) pages: Vec<Page>,
    pub(crate) results: Vec<io::Result<()>>,
}
