//! What guests hold: for blocks that a VM has read or written as a whole, a keyed hash of the content.
//!
//! A guest that puts a block is believed only if the content has the hash that the block had when it was served last. The
//! hash is XXH3 with a secret of this start that no guest knows. A table is one VM's, so that no VM takes another's
//! places in it.

mod table;

pub(crate) use table::ResidentEntry;

use crate::block::{Block, Key};
use std::io;
use table::{ContentHash, ResidencyTable};
use xxhash_rust::xxh3::xxh3_64_with_secret;

/// Bytes of the secret: what XXH3 takes by default.
const SECRET: usize = 192;

/// What the guest of one VM holds.
pub(crate) struct Residency {
    table: ResidencyTable,
    secret: [u8; SECRET],
}

impl Residency {
    /// A table of at most `bytes`, 16 for a block. The memory is taken as it is used.
    ///
    /// # Errors
    /// When the kernel has no random bytes.
    pub(crate) fn new(bytes: u64) -> io::Result<Self> {
        let mut secret = [0; SECRET];
        rustix::rand::getrandom(&mut secret, rustix::rand::GetRandomFlags::empty())?;
        let mut seed = [0; 8];
        rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty())?;
        Ok(Self {
            table: ResidencyTable::new(bytes, u64::from_ne_bytes(seed)),
            secret,
        })
    }

    /// The hash of a content; `salt` tells a disk from a later one that has its number.
    pub(crate) fn hash(&self, content: &Block, salt: u32) -> ContentHash {
        let hash = xxh3_64_with_secret(content, &self.secret);
        let salt = u64::from(salt).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ContentHash((hash ^ salt).max(1))
    }

    /// Locks the block's place.
    pub(crate) fn lock(&self, key: Key) -> ResidentEntry<'_> {
        self.table.lock(key)
    }

    /// Forgets what is known of these blocks of a disk.
    pub(crate) fn forget(&self, disk: u32, blocks: std::ops::Range<u64>) {
        self.table.forget(disk, blocks);
    }

    /// Blocks that are known.
    pub(crate) fn len(&self) -> u64 {
        self.table.len()
    }

    /// Blocks that can be known.
    pub(crate) fn capacity(&self) -> u64 {
        self.table.capacity()
    }
}
