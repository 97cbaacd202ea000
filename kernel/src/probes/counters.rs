//! The counters of a cgroup, of all cgroups at one moment, and their layout in the kernel's maps.

use std::collections::HashMap;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cgroup::CgroupId;

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
    /// Nanoseconds for which disks had requests of this cgroup that a task waits for: reads, and synchronous writes; no
    /// readahead and no writeback. Time in which several requests were there counts once. PSI does not show that a task
    /// waits for asynchronous I/O. This does, but leaves out requests that wait before the disk's queue.
    #[serde(default)]
    pub outstanding_ns: u64,
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

    /// The growth since `before`, an earlier value of the same cgroup.
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
            outstanding_ns: of(self.outstanding_ns, other.outstanding_ns),
            block_accesses: of(self.block_accesses, other.block_accesses),
        }
    }
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        *self = self.each(&other, u64::wrapping_add);
    }
}

/// Everything counted up to one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProbeSample {
    /// When, on the monotonic clock.
    pub at: Duration,
    /// Every cgroup that did I/O and exists.
    pub cgroups: HashMap<CgroupId, Counters>,
    /// The last counts of cgroups that were removed since the sample before. They are reported once, and never in
    /// `cgroups` again.
    pub removed: Vec<(CgroupId, Counters)>,
    /// What was counted for cgroups without counters of their own: no slot was free ([`map_full`](Self::map_full),
    /// [`map_busy`](Self::map_busy)), or the cgroup was being removed.
    pub overflow: Counters,
    /// How often a cgroup found no free slot, because [`Limits::max_cgroups`](super::Limits::max_cgroups) others had one.
    /// A slot is freed by the second sample after its cgroup's removal, so with fewer samples this happens more often.
    pub map_full: u64,
    /// How often a cgroup got no slot because the kernel's map was busy.
    pub map_busy: u64,
    /// Events that no probe could count: the kernel skipped a probe that was interrupted by itself, refused it memory, or
    /// there were more requests than [`Limits::max_inflight`](super::Limits::max_inflight). While it is zero, every byte is
    /// in this sample.
    pub dropped_events: u64,
}

// The layout of the maps in which the programs count: `struct counters`, `struct slot`, `struct cpu_cache` and
// `enum drop` in `bpf/cgroups.h`.

/// Words of a `struct counters`.
pub(super) const COUNTERS_WORDS: usize = 32;
/// Words of a `struct slot`.
pub(super) const SLOT_WORDS: usize = 3;
/// Words of a `struct cpu_cache`.
pub(super) const CPU_CACHE_WORDS: usize = 8;
/// Which of these words holds the file operations.
pub(super) const FILE_OPS_WORD: usize = 1;
/// How many CPUs have a `struct cpu_cache`.
pub(super) const CPU_CACHES: usize = 1024;

/// Words of the map `drops`, in the order of `enum drop`.
pub(super) const DROPS: usize = 4;
pub(super) const DROP_EVENT: usize = 0;
pub(super) const DROP_MAP_FULL: usize = 1;
pub(super) const DROP_MAP_BUSY: usize = 2;
pub(super) const COUNTED_BY_FALLBACK: usize = 3;

/// Decodes a `struct counters`.
pub(super) fn decode(words: &[AtomicU64]) -> Counters {
    let mut words = words.iter().map(|word| word.load(Ordering::Relaxed));
    let mut next = || words.next().unwrap_or_default();
    let (_cgroup_ptr, _curve_ref) = (next(), next());
    let vfs_read = traffic(&mut next);
    let (vfs_read_accesses, _last_read_block) = (next(), next());
    let vfs_write = traffic(&mut next);
    let (vfs_write_accesses, _last_written_block) = (next(), next());
    let (accesses, _unused) = (next(), next());
    Counters {
        read: sum(vfs_read, traffic(&mut next)),
        written: sum(vfs_write, traffic(&mut next)),
        faults: next(),
        major_faults: next(),
        cache_miss_bytes: next(),
        demand_misses: next(),
        throttled_ns: next(),
        throttled_bios: next(),
        dirty_throttle_ns: next(),
        outstanding_ns: next(),
        block_accesses: vfs_read_accesses
            .wrapping_add(vfs_write_accesses)
            .wrapping_add(accesses),
    }
}

fn traffic(next: &mut impl FnMut() -> u64) -> Traffic {
    let mut io = || Io {
        bytes: next(),
        operations: next(),
    };
    Traffic {
        buffered: io(),
        direct: io(),
    }
}

fn sum(a: Traffic, b: Traffic) -> Traffic {
    let io = |a: Io, b: Io| Io {
        bytes: a.bytes.wrapping_add(b.bytes),
        operations: a.operations.wrapping_add(b.operations),
    };
    Traffic {
        buffered: io(a.buffered, b.buffered),
        direct: io(a.direct, b.direct),
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

    #[test]
    fn every_word_is_decoded_in_the_order_of_the_struct() {
        // Word n holds n.
        let words: Vec<_> = (0..32).map(AtomicU64::new).collect();
        let counters = decode(&words);
        let io = |bytes, operations| Io { bytes, operations };
        assert_eq!(counters.read.buffered, io(2 + 16, 3 + 17));
        assert_eq!(counters.read.direct, io(4 + 18, 5 + 19));
        assert_eq!(counters.written.buffered, io(8 + 20, 9 + 21));
        assert_eq!(counters.written.direct, io(10 + 22, 11 + 23));
        assert_eq!((counters.faults, counters.major_faults), (24, 25));
        assert_eq!(
            (counters.cache_miss_bytes, counters.demand_misses),
            (26, 27)
        );
        assert_eq!((counters.throttled_ns, counters.throttled_bios), (28, 29));
        assert_eq!(counters.dirty_throttle_ns, 30);
        assert_eq!(counters.outstanding_ns, 31);
        assert_eq!(counters.block_accesses, 6 + 12 + 14);
        assert_eq!(decode(&[]), Counters::default());
    }
}
