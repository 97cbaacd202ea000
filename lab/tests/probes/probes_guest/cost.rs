//! What the probes cost a process that reads 4 KiB from the page cache, over and over, each time of another block: without
//! them, with them, and with its accesses sampled, in turns.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::probes::{IoProbes, Limits};
use justitia_share::num::to_f64;
use rustix::fs::OFlags;

use super::Tenant;
use super::io_calls::{Buffer, MIB, make, open};

/// Rounds, and reads in each: for a clock that counts nanoseconds, and for one that counts
/// instructions, where nothing but timer interrupts differs between two rounds.
const TIMED: (usize, u32) = (15, 40_000);
const COUNTED: (usize, u32) = (5, 4000);
const PIECE: usize = 4096;

pub(super) fn measure(directory: &Path, what: &str) {
    make(&directory.join("cost"), MIB);
    let tenant = Tenant::new("cost");
    let found = tenant.case(what);
    println!("a cached pread of 4 KiB: {found:?}");
}

/// Runs in a cgroup, and opens the probes itself.
pub(super) fn work(what: &str, directory: &Path) {
    let (rounds, reads) = if what == "instructions" {
        COUNTED
    } else {
        TIMED
    };
    let file = open(&directory.join("cost"), OFlags::RDONLY);
    let mut buffer = Buffer::new(PIECE);
    let mut round = || {
        let begin = Instant::now();
        for number in 0..reads {
            // 37 pieces further is always in another block of 64 KiB.
            let piece = 37 * usize::try_from(number).unwrap() % (MIB / PIECE);
            let at = u64::try_from(piece * PIECE).unwrap();
            file.read_exact_at(buffer.get(PIECE), at).unwrap();
        }
        begin.elapsed().as_nanos() / u128::from(reads)
    };
    round();
    let me = my_cgroup();
    let mut found = KINDS.map(|_| Vec::new());
    for _ in 0..rounds {
        for ((_, shift), found) in KINDS.iter().zip(&mut found) {
            let probes = shift.is_some().then(|| {
                let mut probes = IoProbes::attach(&Limits::default()).unwrap();
                if let Some(Some(shift)) = shift {
                    probes.sample_reuse(&[(me, Some((0, *shift)))]).unwrap();
                }
                probes
            });
            found.push(round());
            drop(probes);
        }
    }
    let mut truth = String::new();
    let mut base = 0.0;
    for ((name, _), found) in KINDS.iter().zip(&mut found) {
        found.sort_unstable();
        let median = u64::try_from(found[rounds / 2]).unwrap();
        println!("{name}: {found:?}");
        if base == 0.0 {
            base = to_f64(median);
        }
        println!("  {:+.2} %", (to_f64(median) / base - 1.0) * 100.0);
        truth += &format!(" {}={median}", name.replace(' ', "-"));
    }
    println!("\ntruth{truth}");
}

/// What is compared: whether there are probes, and whether they sample one block in 2^shift.
const KINDS: [(&str, Option<Option<u32>>); 4] = [
    ("without", None),
    ("with", Some(None)),
    ("every block sampled", Some(Some(0))),
    ("one block in 64 sampled", Some(Some(6))),
];

fn my_cgroup() -> CgroupId {
    use std::os::unix::fs::MetadataExt;
    let text = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let path = text
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .unwrap();
    let found = std::fs::metadata(format!("{}{path}", super::CGROUPS)).unwrap();
    CgroupId(found.ino())
}
