//! What is counted for a cgroup.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

/// Calls that moved data, and the bytes they moved. A call that failed or moved nothing is not
/// counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Io {
    /// Bytes, as the calls returned them.
    pub bytes: u64,
    /// Calls: one per `read`, per io_uring request, per control block, per step of a splice.
    pub operations: u64,
}

/// One direction, divided into buffered and direct I/O.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Through the page cache.
    pub buffered: Io,
    /// Through files opened with `O_DIRECT`.
    pub direct: Io,
}

impl Traffic {
    /// Buffered and direct I/O together.
    #[must_use]
    pub const fn total(&self) -> Io {
        Io {
            bytes: self.buffered.bytes.wrapping_add(self.direct.bytes),
            operations: (self.buffered.operations).wrapping_add(self.direct.operations),
        }
    }
}

/// What one cgroup's own tasks read and wrote, since its first I/O; only ever growing. Children are not included: a tenant
/// with descendants is the sum over that subtree.
///
/// Only regular files count (on a disk, and on overlayfs, btrfs, ZFS, bcachefs, NFS, CIFS, Ceph, 9p and FUSE): no pipe,
/// socket, device, tmpfs, procfs or cgroupfs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// What applications read.
    pub read: Traffic,
    /// What applications wrote.
    pub written: Traffic,
    /// Page faults on mapped files. Pages that a fault maps along with its own do not count; a fault that waits for the disk
    /// may count twice.
    pub faults: u64,
    /// Those of them that waited for the disk.
    pub major_faults: u64,
    /// Bytes that the disk read into page cache charged to this cgroup: demand reads, readahead and faults. Without the
    /// memory controller, charged to the nearest ancestor that has it.
    pub cache_miss_bytes: u64,
    /// Reads and faults whose first page was absent from the cache: readahead had not read it.
    pub demand_misses: u64,
    /// Nanoseconds for which `io.max` throttled this cgroup's bios, summed over bios.
    pub throttled_ns: u64,
    /// Bios that `io.max` throttled.
    pub throttled_bios: u64,
    /// Nanoseconds for which the dirty throttle (`balance_dirty_pages`) held writers.
    pub dirty_throttle_ns: u64,
    /// Blocks of 64 KiB accessed through the page cache while accesses are sampled
    /// ([`IoProbes::sample_reuse`](super::IoProbes::sample_reuse)). Consecutive accesses to one block count once.
    #[serde(default)]
    pub block_accesses: u64,
}

impl Counters {
    /// Bytes that were read through the page cache, hits and misses.
    #[must_use]
    pub const fn cache_read_bytes(&self) -> u64 {
        self.read.buffered.bytes
    }

    /// What was added since `before`, an earlier value of the same cgroup.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        self.each(before, u64::saturating_sub)
    }

    /// The part of the bytes read through the page cache that it had: `1 − misses / read`, within [0, 1]. Meaningful for a
    /// difference ([`since`](Self::since)) over at least a second, because readahead fills the cache before the read.
    /// `None` when nothing was read.
    ///
    /// Misses of mapped files and of `readahead(2)` count for the same cgroup, so this is a lower bound for a cgroup that
    /// maps files.
    #[must_use]
    pub fn hit_ratio(&self) -> Option<f64> {
        use justitia_share::num::to_f64;
        let read = self.cache_read_bytes();
        (read > 0).then(|| (1.0 - to_f64(self.cache_miss_bytes) / to_f64(read)).max(0.0))
    }

    /// `of` applied field by field.
    fn each(&self, other: &Self, of: impl Fn(u64, u64) -> u64) -> Self {
        let io = |a: Io, b: Io| Io {
            bytes: of(a.bytes, b.bytes),
            operations: of(a.operations, b.operations),
        };
        let traffic = |a: Traffic, b: Traffic| Traffic {
            buffered: io(a.buffered, b.buffered),
            direct: io(a.direct, b.direct),
        };
        Self {
            read: traffic(self.read, other.read),
            written: traffic(self.written, other.written),
            faults: of(self.faults, other.faults),
            major_faults: of(self.major_faults, other.major_faults),
            cache_miss_bytes: of(self.cache_miss_bytes, other.cache_miss_bytes),
            demand_misses: of(self.demand_misses, other.demand_misses),
            throttled_ns: of(self.throttled_ns, other.throttled_ns),
            throttled_bios: of(self.throttled_bios, other.throttled_bios),
            dirty_throttle_ns: of(self.dirty_throttle_ns, other.dirty_throttle_ns),
            block_accesses: of(self.block_accesses, other.block_accesses),
        }
    }
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        *self = self.each(&other, u64::wrapping_add);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: u64, cache_miss_bytes: u64) -> Counters {
        let mut counters = Counters::default();
        counters.read.buffered = Io {
            bytes,
            operations: 1,
        };
        counters.cache_miss_bytes = cache_miss_bytes;
        counters
    }

    #[test]
    fn the_hit_ratio_of_a_difference() {
        let before = read(4096, 4096);
        assert_eq!(before.hit_ratio(), Some(0.0));
        let mut after = before;
        after += read(8192, 4096);
        assert_eq!(after.since(&before).hit_ratio(), Some(0.5));
        assert_eq!(after.since(&after).hit_ratio(), None);
    }

    #[test]
    fn more_misses_than_reads_are_no_hits() {
        assert_eq!(read(4096, 131_072).hit_ratio(), Some(0.0));
    }

    #[test]
    fn a_difference_and_a_sum_cover_every_field() {
        let ones = Counters::default().each(&Counters::default(), |_, _| 1);
        let mut twos = ones;
        twos += ones;
        assert_eq!(twos, ones.each(&ones, |_, _| 2));
        assert_eq!(twos.since(&ones), ones);
        assert_eq!(ones.since(&twos), Counters::default());
        assert_eq!(ones.read.total().bytes, 2);
        assert_eq!(ones.written.total().operations, 2);
    }
}
