//! Blocks and their keys.

/// Bytes in a block: the unit of caching, lookup and eviction.
pub const BLOCK_SIZE: usize = 4096;

/// [`BLOCK_SIZE`] in the type of disk offsets.
pub const BLOCK_BYTES: u64 = 4096;

/// Bits of a [`Key`] that hold the block number: disks up to 4 PiB.
const BLOCK_BITS: u32 = 40;

/// The highest block number that can be cached; blocks above it are served uncached.
pub const MAX_BLOCK: u64 = (1 << BLOCK_BITS) - 1;

/// The content of one block.
pub type Block = [u8; BLOCK_SIZE];

/// A block of a disk of a VM. The disk's number is unique in the whole cache, so it stands for the VM, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Key(u64);

impl Key {
    /// The most disks of a cache.
    pub(crate) const MAX_DISKS: u32 = 1 << (u64::BITS - BLOCK_BITS);

    /// `None` when the block lies beyond [`MAX_BLOCK`].
    pub(crate) fn new(disk: u32, block: u64) -> Option<Self> {
        debug_assert!(disk < Self::MAX_DISKS);
        (block <= MAX_BLOCK).then_some(Self(u64::from(disk) << BLOCK_BITS | block))
    }

    pub(crate) const fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    pub(crate) const fn raw(self) -> u64 {
        self.0
    }

    pub(crate) const fn block(self) -> u64 {
        self.0 & MAX_BLOCK
    }

    pub(crate) const fn disk(self) -> u64 {
        self.0 >> BLOCK_BITS
    }

    /// Spreads the key over 64 bits (the finaliser of SplitMix64: every input bit reaches every output bit). The seed is the
    /// cache's secret, so that no guest can choose blocks that collide.
    pub(crate) const fn hash(self, seed: u64) -> u64 {
        let mut x = (self.0 ^ seed).wrapping_add(0x9E37_79B9_7F4A_7C15);
        x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }
}

/// The length of a buffer in bytes, in the type of disk offsets.
pub fn len(buf: &[u8]) -> u64 {
    u64::try_from(buf.len()).unwrap_or(u64::MAX)
}

/// The blocks that a byte range touches, rounded outwards.
pub fn touching(off: u64, len: u64) -> std::ops::Range<u64> {
    if len == 0 {
        return 0..0;
    }
    let end = off.saturating_add(len).div_ceil(BLOCK_BYTES);
    off / BLOCK_BYTES..end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_round_outwards() {
        assert_eq!(touching(0, 0), 0..0);
        assert_eq!(touching(1, 1), 0..1);
        assert_eq!(touching(4095, 2), 0..2);
        assert_eq!(touching(4096, 4096), 1..2);
        assert_eq!(touching(u64::MAX - 1, 5).end, u64::MAX.div_ceil(4096));
    }

    #[test]
    fn a_key_keeps_disk_and_block_apart() {
        let key = Key::new(Key::MAX_DISKS - 1, MAX_BLOCK).unwrap();
        assert_eq!(
            (key.disk(), key.block()),
            (u64::from(Key::MAX_DISKS - 1), MAX_BLOCK)
        );
        assert_ne!(Key::new(1, 0), Key::new(0, 1));
        assert_eq!(Key::new(0, MAX_BLOCK + 1), None);
        assert_eq!(Key::from_raw(key.raw()), key);
    }
}
