//! Tracks the contents that guests hold: a keyed hash for each block that a VM has read or written completely.
//!
//! A put is accepted only if its content has the hash of the block's last served content. The hash is XXH3 with a secret of
//! this start that no guest knows. Each VM has its own table, so that no VM takes another's places.

mod table;

pub(crate) use table::ResidentEntry;

use crate::block::{Block, Key};
use std::io;
use table::{ContentHash, ResidencyTable};
use xxhash_rust::xxh3::xxh3_64_with_secret;

/// Bytes of the secret: XXH3's default.
const SECRET: usize = 192;

/// The contents that the guest of one VM holds.
pub(crate) struct Residency {
    table: ResidencyTable,
    secret: [u8; SECRET],
}

impl Residency {
    /// A table of at most `bytes`, 16 for a block. Memory is allocated on use.
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

    /// The hash of a content. `salt` distinguishes a disk from a later one with the same number.
    pub(crate) fn hash(&self, content: &Block, salt: u32) -> ContentHash {
        let hash = xxh3_64_with_secret(content, &self.secret);
        let salt = u64::from(salt).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ContentHash((hash ^ salt).max(1))
    }

    /// Locks the block's place.
    pub(crate) fn lock(&self, key: Key) -> ResidentEntry<'_> {
        self.table.lock(key)
    }

    /// Forgets the hashes of these blocks of a disk.
    pub(crate) fn forget(&self, disk: u32, blocks: std::ops::Range<u64>) {
        self.table.forget(disk, blocks);
    }

    /// The number of known blocks.
    pub(crate) fn len(&self) -> u64 {
        self.table.len()
    }

    /// The capacity in blocks.
    pub(crate) fn capacity(&self) -> u64 {
        self.table.capacity()
    }
}
