//! The counters as the programs keep them: `struct row`, `struct slot`, `struct short_cut` in `bpf/tenants.h`.

use super::region::Region;
use super::{Counters, Io, Traffic};

/// Words of a `struct row`.
pub(super) const ROW_WORDS: usize = 32;
/// Words of a `struct slot`.
pub(super) const SLOT_WORDS: usize = 2;
/// Words of a `struct short_cut`, which of them tells the kind of files, and how many there are.
pub(super) const SHORT_CUT_WORDS: usize = 8;
pub(super) const KIND_WORD: usize = 1;
pub(super) const SHORT_CUT_COUNT: usize = 1024;

/// Words of the map `losses`, in the order of `enum loss`.
pub(super) const LOSSES: usize = 4;
pub(super) const MISSED: usize = 0;
pub(super) const NO_ROOM: usize = 1;
pub(super) const BUSY: usize = 2;
pub(super) const BY_TWIN: usize = 3;

/// The counters of one row.
pub(super) fn row(rows: &Region, index: usize) -> Counters {
    let Some(words) = rows.words().get(index * ROW_WORDS..(index + 1) * ROW_WORDS) else {
        return Counters::default();
    };
    let mut words = words
        .iter()
        .map(|word| word.load(std::sync::atomic::Ordering::Relaxed));
    let mut next = || words.next().unwrap_or_default();
    let (_cgroup, _sampled) = (next(), next());
    let mut read = traffic(&mut next);
    let (visits_read, _last) = (next(), next());
    let mut written = traffic(&mut next);
    let (visits_written, _last) = (next(), next());
    let (visits, _last) = (next(), next());
    for (sum, part) in [
        (&mut read, traffic(&mut next)),
        (&mut written, traffic(&mut next)),
    ] {
        add(&mut sum.buffered, part.buffered);
        add(&mut sum.direct, part.direct);
    }
    Counters {
        read,
        written,
        faults: next(),
        major_faults: next(),
        cache_miss_bytes: next(),
        demand_misses: next(),
        throttled_ns: next(),
        throttled_bios: next(),
        dirty_throttle_ns: next(),
        block_accesses: visits_read
            .wrapping_add(visits_written)
            .wrapping_add(visits),
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

fn add(sum: &mut Io, part: Io) {
    sum.bytes = sum.bytes.wrapping_add(part.bytes);
    sum.operations = sum.operations.wrapping_add(part.operations);
}
