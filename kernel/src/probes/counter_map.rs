//! The layout of the maps in which the programs count: `struct counters`, `struct slot`, `struct cpu_cache` and
//! `enum drop` in `bpf/cgroups.h`.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Counters, Io, Traffic};

/// Words of a `struct counters`.
pub(super) const COUNTERS_WORDS: usize = 32;
/// Words of a `struct slot`.
pub(super) const SLOT_WORDS: usize = 2;
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
        assert_eq!(counters.block_accesses, 6 + 12 + 14);
        assert_eq!(decode(&[]), Counters::default());
    }
}
