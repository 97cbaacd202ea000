//! The hit ratio, against what the kernel accounts to the reading process as read from storage.

use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{Advice, OFlags, fadvise};

use super::io_calls::{Buffer, MIB, make, open};
use super::{Tenant, counted, drop_caches};

const SIZE: usize = 32 * MIB;

/// The case, its preparation, and the hit ratio in percent where it is known beforehand.
const CASES: [(&str, &str, Option<f64>); 10] = [
    ("sequential 64K", "cold", Some(0.0)),
    ("sequential 64K", "warm", Some(100.0)),
    ("sequential 64K", "half", Some(50.0)),
    ("sequential 1K", "cold", Some(0.0)),
    ("sequential 1M", "cold", Some(0.0)),
    ("sequential 1M", "half", Some(50.0)),
    ("random 4K", "cold", None),
    ("random 4K", "warm", Some(100.0)),
    ("random 4K", "half", None),
    ("random 1M", "cold", None),
];

pub(super) fn compare(directory: &Path) {
    let path = directory.join("large");
    make(&path, SIZE);
    let mut probes = super::open();
    let mut wrong = Vec::new();
    for (case, before, known) in CASES {
        prepare(&path, before);
        let tenant = Tenant::new(&format!("hit {case} {before}"));
        let truth = tenant.case(&format!("hit/{case}"));
        let counters = counted(&mut probes, &tenant);
        let seen = counters.hit_ratio().unwrap() * 100.0;
        let float = |name: &str| justitia_share::num::to_f64(truth[name]);
        let really = (1.0 - float("storage") / float("bytes")).max(0.0) * 100.0;
        println!(
            "{case} {before}: {seen:.2} %, in truth {really:.2} %, {} of {} filled, {} demand misses",
            counters.cache_miss_bytes, truth["bytes"], counters.demand_misses
        );
        if (seen - really).abs() > 0.2 || known.is_some_and(|known| (seen - known).abs() > 0.2) {
            wrong.push(format!(
                "{case} {before}: {seen} %, truth {really} %, known {known:?}"
            ));
        }
        if (counters.demand_misses == 0) != (before == "warm") {
            wrong.push(format!(
                "{case} {before}: {} demand misses",
                counters.demand_misses
            ));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn prepare(path: &Path, how: &str) {
    drop_caches();
    if how == "cold" {
        return;
    }
    let file = open(path, OFlags::RDONLY);
    let mut buffer = Buffer::new(MIB);
    for piece in 0..SIZE / MIB {
        let at = u64::try_from(piece * MIB).unwrap();
        file.read_exact_at(buffer.get(MIB), at).unwrap();
    }
    if how == "half" {
        for piece in (0..SIZE / MIB).step_by(2) {
            let at = u64::try_from(piece * MIB).unwrap();
            let length = std::num::NonZeroU64::new(u64::try_from(MIB).unwrap());
            fadvise(&file, at, length, Advice::DontNeed).unwrap();
        }
    }
}

/// Runs in the tenant's cgroup.
pub(super) fn run(case: &str, directory: &Path) {
    let (order, size) = case.split_once(' ').unwrap();
    let size = match size {
        "1K" => 1 << 10,
        "4K" => 4 << 10,
        "64K" => 64 << 10,
        _ => MIB,
    };
    let file = open(&directory.join("large"), OFlags::RDONLY);
    let mut buffer = Buffer::new(size);
    let before = storage();
    let pieces = SIZE / size;
    let count = if order == "random" {
        pieces.min(3000)
    } else {
        pieces
    };
    let mut state = 12_345_u64;
    for number in 0..count {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let piece = match order {
            "random" => usize::try_from(state >> 33).unwrap() % pieces,
            _ => number,
        };
        let at = u64::try_from(piece * size).unwrap();
        file.read_exact_at(buffer.get(size), at).unwrap();
    }
    println!(
        "\ntruth bytes={} storage={}",
        count * size,
        storage() - before
    );
}

/// Bytes that this process has caused to be read from storage.
fn storage() -> u64 {
    let text = std::fs::read_to_string("/proc/self/io").unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("read_bytes: "));
    line.unwrap().parse().unwrap()
}
