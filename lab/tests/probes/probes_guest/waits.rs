//! Time spent waiting for throttled I/O, against the time that the waiting process neither ran nor
//! waited for a processor.

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::Instant;

use justitia_kernel::probes::IoProbes;
use rustix::fs::OFlags;

use super::io_calls::{Buffer, MIB, make, open};
use super::{Tenant, counted};

const PIECE: usize = 256 << 10;
const DIRECT: usize = 12 * MIB;
const BUFFERED: usize = 48 * MIB;
/// Bytes per second that io.max allows.
const RATE: usize = 4 * MIB;

pub(super) fn compare(directory: &Path) {
    make(&directory.join("held"), DIRECT);
    let device = std::fs::metadata(directory.join("held")).unwrap().dev();
    let device = format!(
        "{}:{}",
        rustix::fs::major(device),
        rustix::fs::minor(device)
    );
    let mut probes = super::open();
    direct_writes(&mut probes, &device);
    buffered_writes(&mut probes, &device);
}

fn direct_writes(probes: &mut IoProbes, device: &str) {
    // Nothing holds it back.
    let free = Tenant::new("waits free");
    let truth = free.case("waits/direct");
    let counters = counted(probes, &free);
    println!("direct, free: {truth:?}, {counters:?}");
    assert_eq!((counters.throttled_bios, counters.throttled_ns), (0, 0));
    assert_eq!(counters.dirty_throttle_ns, 0);
    // It has one request at the disk while it sleeps, and some of the time before and after.
    let outstanding = counters.outstanding_ns;
    assert!(
        outstanding * 10 >= truth["asleep"] * 9 && outstanding <= truth["elapsed"],
        "{outstanding}, {truth:?}"
    );
    let disk = truth["asleep"];

    // A direct writer at a known rate, one request at a time: what it waits, less what the disk takes.
    let held = Tenant::new("waits held");
    let limit = format!("{device} wbps={RATE}");
    std::fs::write(held.path.join("io.max"), limit).unwrap();
    let truth = held.case("waits/direct");
    let counters = counted(probes, &held);
    println!("direct, held back: {truth:?}, {counters:?}");
    let ideal = u64::try_from(DIRECT / RATE).unwrap() * 1_000_000_000;
    let pieces = u64::try_from(DIRECT / PIECE).unwrap();
    // io.max lets some pass at the beginning of each of its slices of time.
    assert!(
        (pieces / 2..=pieces).contains(&counters.throttled_bios),
        "{counters:?}"
    );
    about(
        counters.throttled_ns,
        truth["asleep"].saturating_sub(disk),
        10,
    );
    about(counters.throttled_ns, ideal, 25);
    assert_eq!(counters.dirty_throttle_ns, 0);
    assert!(
        counters.outstanding_ns * 2 < truth["asleep"],
        "what waits before the disk's queue is not at the disk: {counters:?}"
    );
}

fn buffered_writes(probes: &mut IoProbes, device: &str) {
    // A buffered writer that nothing holds back: what copying takes.
    let copying = Tenant::new("waits copying");
    let copied = copying.case("waits/buffered");
    let counters = counted(probes, &copying);
    println!("buffered, free: {copied:?}, {counters:?}");
    assert!(
        counters.dirty_throttle_ns * 10 < copied["elapsed"],
        "{counters:?}"
    );
    assert!(
        counters.outstanding_ns * 5 < copied["elapsed"],
        "nobody waits for writeback: {counters:?}"
    );
    rustix::fs::sync();

    // And one that is held until what it has made dirty is written at that rate.
    let dirty = "/proc/sys/vm/dirty_bytes";
    std::fs::write(dirty, (8 * MIB).to_string()).unwrap();
    let writer = Tenant::new("waits dirty");
    let limit = format!("{device} wbps={}", 2 * RATE);
    std::fs::write(writer.path.join("io.max"), limit).unwrap();
    let truth = writer.case("waits/buffered");
    let counters = counted(probes, &writer);
    std::fs::write("/proc/sys/vm/dirty_ratio", "20").unwrap();
    println!("buffered, held: {truth:?}, {counters:?}");
    assert!(truth["asleep"] > 1_000_000_000, "{truth:?}");
    // Waiting ends when there is a processor again, which is more than to be asleep.
    assert!(counters.dirty_throttle_ns * 10 >= truth["asleep"] * 9);
    about(
        counters.dirty_throttle_ns,
        truth["elapsed"] - copied["elapsed"],
        10,
    );
    std::fs::write(writer.path.join("io.max"), format!("{device} wbps=max")).unwrap();
    rustix::fs::sync();
}

#[track_caller]
fn about(found: u64, truth: u64, percent: u64) {
    assert!(
        found.abs_diff(truth) * 100 <= truth * percent,
        "{found} ns, in truth {truth} ns"
    );
}

/// Runs in a tenant's cgroup.
pub(super) fn run(case: &str, directory: &Path) {
    let mut buffer = Buffer::new(PIECE);
    let (name, flags, size) = if case == "direct" {
        ("held", OFlags::WRONLY | OFlags::DIRECT, DIRECT)
    } else {
        ("dirtied", OFlags::WRONLY, BUFFERED)
    };
    let file = open(&directory.join(name), flags);
    let before = on_processor();
    let begin = Instant::now();
    for piece in 0..size / PIECE {
        let at = u64::try_from(piece * PIECE).unwrap();
        file.write_all_at(buffer.get(PIECE), at).unwrap();
    }
    let elapsed = u64::try_from(begin.elapsed().as_nanos()).unwrap();
    let awake = on_processor() - before;
    println!(
        "\ntruth elapsed={elapsed} asleep={}",
        elapsed.saturating_sub(awake)
    );
}

/// Nanoseconds that this thread has run or waited for a processor.
fn on_processor() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let mut words = text
        .split_whitespace()
        .map(|word| word.parse::<u64>().unwrap());
    words.next().unwrap() + words.next().unwrap()
}
