//! The configuration space and the features of the device (virtio 1.2, 5.2.3 and 5.2.4).

use super::device_limits::{MAX_QUEUES, MAX_RANGE_SECTORS, MAX_SEGMENT, MAX_SEGMENTS, SECTOR};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH,
    VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_SIZE_MAX,
    VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

/// Bytes of the configuration space; what a driver reads behind it is zero.
const SIZE: usize = 60;
/// Where the driver chooses the write cache.
pub(super) const WRITE_BACK: u32 = 32;
/// Sectors of 4 KiB: what the cache's blocks are, and what is written without reading.
const BLOCK_SECTORS: u32 = 8;

/// What the device offers.
pub(super) fn features(read_only: bool) -> u64 {
    let always = [
        VIRTIO_BLK_F_SIZE_MAX,
        VIRTIO_BLK_F_SEG_MAX,
        VIRTIO_BLK_F_BLK_SIZE,
        VIRTIO_BLK_F_TOPOLOGY,
        VIRTIO_BLK_F_FLUSH,
        VIRTIO_BLK_F_CONFIG_WCE,
        VIRTIO_BLK_F_MQ,
        VIRTIO_RING_F_INDIRECT_DESC,
        VIRTIO_RING_F_EVENT_IDX,
        VIRTIO_F_VERSION_1,
    ];
    let by_access: &[u32] = if read_only {
        &[VIRTIO_BLK_F_RO]
    } else {
        &[VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_WRITE_ZEROES]
    };
    always.iter().chain(by_access).map(|bit| 1u64 << bit).sum()
}

/// Has the driver accepted a feature?
pub(super) const fn has(features: u64, bit: u32) -> bool {
    features >> bit & 1 == 1
}

/// Must a write be on stable storage before its answer? Without a write cache, and for drivers that cannot flush it.
pub(super) const fn is_write_through(features: u64, write_back: bool) -> bool {
    let chosen = has(features, VIRTIO_BLK_F_CONFIG_WCE) && !write_back;
    chosen || !has(features, VIRTIO_BLK_F_FLUSH)
}

/// The configuration space of a disk of `size` bytes.
pub(super) fn config_space(size: u64, write_back: bool) -> [u8; SIZE] {
    let mut space = [0; SIZE];
    let mut put = |at: usize, bytes: &[u8]| {
        for (to, from) in space.iter_mut().skip(at).zip(bytes) {
            *to = *from;
        }
    };
    put(0, &(size / SECTOR).to_le_bytes());
    put(8, &MAX_SEGMENT.to_le_bytes());
    put(12, &MAX_SEGMENTS.to_le_bytes());
    put(20, &512u32.to_le_bytes());
    // Topology: 2^3 logical blocks in a physical one, aligned at 0, and that is the smallest good request.
    put(24, &[3, 0]);
    put(26, &8u16.to_le_bytes());
    put(32, &[u8::from(write_back)]);
    put(34, &MAX_QUEUES.to_le_bytes());
    put(36, &MAX_RANGE_SECTORS.to_le_bytes());
    put(40, &1u32.to_le_bytes());
    put(44, &BLOCK_SECTORS.to_le_bytes());
    put(48, &MAX_RANGE_SECTORS.to_le_bytes());
    put(52, &1u32.to_le_bytes());
    // Write-zeroes may deallocate.
    put(56, &[1]);
    space
}

/// A part of the configuration space as a driver reads it.
pub(super) fn read(space: [u8; SIZE], offset: u32, size: u32) -> Vec<u8> {
    let (Ok(offset), Ok(size)) = (usize::try_from(offset), usize::try_from(size)) else {
        return Vec::new();
    };
    space
        .into_iter()
        .chain(std::iter::repeat(0))
        .skip(offset)
        .take(size)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_space_is_virtios() {
        let space = config_space((1 << 30) + 300, true);
        let word = |at: usize| u32::from_le_bytes(space[at..at + 4].try_into().unwrap());
        assert_eq!(word(0), 1 << 21, "sectors");
        assert_eq!((word(8), word(12), word(20)), (65536, 126, 512));
        assert_eq!(space[32], 1);
        assert_eq!(read(space, 32, 4), space[32..36]);
        assert_eq!(read(space, 58, 4), [0; 4]);
        assert_eq!(read(space, 200, 3), [0; 3]);
    }

    #[test]
    fn without_a_cache_or_a_flush_writes_are_durable() {
        let all = features(false);
        assert!(!is_write_through(all, true));
        assert!(is_write_through(all, false));
        assert!(is_write_through(all & !(1 << VIRTIO_BLK_F_FLUSH), true));
        let without_choice = all & !(1 << VIRTIO_BLK_F_CONFIG_WCE);
        assert!(!is_write_through(without_choice, false));
        assert!(has(features(true), VIRTIO_BLK_F_RO) && !has(all, VIRTIO_BLK_F_RO));
        assert!(!has(features(true), VIRTIO_BLK_F_DISCARD));
    }
}
