//! Keyed hashes of contents.

/// A keyed hash of a block's content. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContentHash(pub(super) u64);
