//! What was counted, for one cgroup and for all.

use std::collections::HashMap;
use std::ops::AddAssign;
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

/// One direction, by whether the page cache was in the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Through the page cache.
    pub buffered: Io,
    /// Through files opened with `O_DIRECT`.
    pub direct: Io,
}

impl Traffic {
    /// Both ways together.
    #[must_use]
    pub const fn total(&self) -> Io {
        Io {
            bytes: self.buffered.bytes.wrapping_add(self.direct.bytes),
            operations: (self.buffered.operations).wrapping_add(self.direct.operations),
        }
    }
}

/// What one cgroup's own tasks got, since the eyes first saw it do I/O; only ever growing. Children
/// are not included: a tenant with a tree below it is the sum of that tree.
///
/// Only regular files count (on a disk, and on overlayfs, btrfs, ZFS, bcachefs, NFS, CIFS, Ceph, 9p
/// and FUSE): no pipe, socket, device, tmpfs, procfs or cgroupfs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// What applications read.
    pub read: Traffic,
    /// What applications wrote.
    pub written: Traffic,
    /// Page faults on mapped files that had to be handled one by one, not along with a neighbour's;
    /// one that waits for the disk may come twice.
    pub faults: u64,
    /// Those among them that waited for the disk.
    pub major_faults: u64,
    /// Bytes that the disk cache_miss_bytes into page cache charged to this cgroup: demand reads, readahead
    /// and faults. Charged to the nearest ancestor with the memory controller.
    pub cache_miss_bytes: u64,
    /// Reads and faults that found their first page absent: what readahead did not foresee.
    pub demand_misses: u64,
    /// Nanoseconds that this cgroup's block I/O was held back by `io.max`, summed over requests.
    pub throttled_ns: u64,
    /// Requests that were held back so.
    pub throttled_bios: u64,
    /// Nanoseconds that writers were held back until dirty pages had been written.
    pub dirty_throttle_ns: u64,
    /// Blocks of 64 KiB accessed through the page cache, those accessed twice in a row once, while that was sampled
    /// ([`IoProbes::sample_reuse`](super::IoProbes::sample_reuse)).
    #[serde(default)]
    pub block_accesses: u64,
}

impl Counters {
    /// Bytes that were looked up in the page cache: what was read through it.
    #[must_use]
    pub const fn cache_read_bytes(&self) -> u64 {
        self.read.buffered.bytes
    }

    /// What was added since `before`, an earlier value for the same cgroup.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        self.each(before, u64::saturating_sub)
    }

    /// The part of the bytes looked up that the page cache had: `1 − cache_miss_bytes / looked up`, within
    /// [0, 1]. Meaningful for a difference ([`since`](Self::since)) over at least a second, because
    /// readahead fills before the reader asks. `None` when nothing was looked up.
    ///
    /// Fills for mapped files and `readahead(2)` count as misses of the same cgroup, so for one that
    /// also maps files this is a lower bound.
    #[must_use]
    pub fn hit_ratio(&self) -> Option<f64> {
        use justitia_share::num::to_f64;
        let looked_up = self.cache_read_bytes();
        (looked_up > 0).then(|| (1.0 - to_f64(self.cache_miss_bytes) / to_f64(looked_up)).max(0.0))
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

/// Everything counted up to one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// When, on the monotonic clock.
    pub at: Duration,
    /// Every cgroup that did I/O and exists.
    pub cgroups: HashMap<CgroupId, Counters>,
    /// The last counts of cgroups that were removed since the sample before. Told once, never in
    /// `cgroups` again.
    pub removed: Vec<(CgroupId, Counters)>,
    /// What was counted for cgroups that have no counters of their own: they found no room
    /// ([`no_room`](Self::map_full), [`map_busy`](Self::map_busy)), or were being removed.
    pub overflow: Counters,
    /// How often a cgroup found no room: [`Limits::max_cgroups`](super::Limits::tenants) others had it,
    /// those included whose removal no two samples have told yet. Samples make room: the fewer are taken, the more often.
    pub map_full: u64,
    /// How often one found none because the kernel could not say just then who has which.
    pub map_busy: u64,
    /// Events that no probe could count: the kernel skips a probe that is interrupted by itself,
    /// refuses it memory, or there are more requests than
    /// [`Limits::max_inflight`](super::Limits::in_flight). Zero means that every byte is in this sample.
    pub dropped_events: u64,
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
    fn more_filled_than_read_is_no_hit() {
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
