//! When blocks are accessed again, against what a process says that it accessed.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::probes::IoProbes;
use justitia_share::curve::{BLOCK, PAGES, bucket};
use rustix::fs::OFlags;

use super::io_calls::{Buffer, MIB, PIECE, make, open};
use super::{Tenant, counted};

const SIZE: usize = 32 * MIB;
const BLOCKS: u64 = 512;
const PAGE: usize = 4096;
const CURVE: usize = 3;
const OTHER: usize = 4;

/// What a curve has counted: accesses of blocks that were not remembered, and of others by bucket.
fn reuse(probes: &IoProbes, curve: usize) -> (u64, Vec<u64>) {
    let reuse = probes.reuse(curve).unwrap();
    (reuse.cold(), reuse.times().collect())
}

fn sample(probes: &mut IoProbes, id: CgroupId, curve: usize, shift: u32) {
    probes.clear_reuse(curve).unwrap();
    probes.sample_reuse(&[(id, Some((curve, shift)))]).unwrap();
}

fn near(found: u64, expected: u64, percent: u64) -> bool {
    found.abs_diff(expected) * 100 <= expected * percent
}

pub(super) fn compare(directory: &Path) {
    make(&directory.join("reuse"), SIZE);
    let mut probes = super::open();
    two_rounds(&mut probes);
    pages_in_use(&mut probes);
    a_part_of_the_blocks(&mut probes);
    what_does_not_count(&mut probes, directory);
    below_and_stopped(&mut probes);
}

/// Two rounds through a file in small steps: each block twice, once per round.
fn two_rounds(probes: &mut IoProbes) {
    for case in ["pread", "readv", "splice", "mapped"] {
        let tenant = Tenant::new(&format!("reuse {case}"));
        sample(probes, tenant.id, CURVE, 0);
        tenant.case(&format!("reuse/{case}"));
        let (cold, times) = reuse(probes, CURVE);
        let accesses = counted(probes, &tenant).block_accesses;
        let again = times[bucket(BLOCKS)];
        println!("{case}: {cold} for the first time, {again} after a round, {accesses} accesses");
        // One that moves to another processor within a block accesses it anew.
        assert!((2 * BLOCKS..2 * BLOCKS + 8).contains(&accesses), "{case}");
        assert_eq!(cold + times.iter().sum::<u64>(), accesses, "{case}");
        // A few are forgotten where nine blocks fall on the same eight places.
        assert!((BLOCKS..BLOCKS + 12).contains(&cold), "{case}");
        assert!(cold + again + 40 >= accesses, "{case}: {times:?}");
        let live = probes.reuse(CURVE).unwrap().live(BLOCKS);
        assert!((BLOCKS - 12..=BLOCKS).contains(&live), "{case}: {live}");
        // The oldest entry is from the second round.
        let full = probes.reuse(CURVE).unwrap().lookbacks();
        assert!(full.into_iter().all(|back| back < BLOCKS + 8), "{case}");
    }
}

/// A file and its snapshot have pages of their own: `a` and `b` are subvolumes of a btrfs.
pub(super) fn snapshots(_directory: &Path) {
    let mut probes = super::open();
    let tenant = Tenant::new("reuse snapshots");
    sample(&mut probes, tenant.id, CURVE, 0);
    tenant.case("reuse/snapshots");
    let (cold, times) = reuse(&probes, CURVE);
    println!("snapshots: {cold} for the first time, {times:?}");
    assert!(near(cold, 2 * BLOCKS, 5), "{cold} of {}", 2 * BLOCKS);
}

/// Which of their pages the blocks need: those that were read, however small the steps were.
fn pages_in_use(probes: &mut IoProbes) {
    // Pages of a block, and accesses of blocks in a round.
    for (case, expected, accesses) in [
        ("pages", 16.0, BLOCKS),
        ("sparse", 1.0, BLOCKS),
        ("sparse readv", 1.0, BLOCKS),
        ("across two", 4.0, BLOCKS),
        ("across three", 40.0 / 3.0, BLOCKS - 2),
        ("mapped", 16.0, BLOCKS),
    ] {
        let tenant = Tenant::new(&format!("reuse {case}"));
        sample(probes, tenant.id, CURVE, 0);
        tenant.case(&format!("reuse/{case}"));
        let found = probes.reuse(CURVE).unwrap().touched(u64::MAX) * f64::from(PAGES);
        let counted = counted(probes, &tenant).block_accesses;
        println!("{case}: {found} of 16 pages, {counted} accesses");
        // A block that lost its entry may need all its pages.
        assert!((found - expected).abs() < 0.5, "{case}: {found}");
        assert!(
            counted >= 2 * accesses && near(counted, 2 * accesses, 2),
            "{case}: {counted}"
        );
    }
}

fn a_part_of_the_blocks(probes: &mut IoProbes) {
    let tenant = Tenant::new("reuse part");
    sample(probes, tenant.id, CURVE, 2);
    tenant.case("reuse/pread");
    let (cold, times) = reuse(probes, CURVE);
    let again: u64 = times.iter().sum();
    println!("a quarter of the blocks: {cold} for the first time, {again} again");
    let accesses = counted(probes, &tenant).block_accesses;
    assert!((2 * BLOCKS..2 * BLOCKS + 8).contains(&accesses));
    assert_eq!((cold % 4, again % 4), (0, 0));
    // 128 blocks, give or take three standard deviations.
    assert!(near(cold, BLOCKS, 25) && near(again, BLOCKS, 25));
}

fn what_does_not_count(probes: &mut IoProbes, directory: &Path) {
    let tenant = Tenant::new("reuse direct");
    sample(probes, tenant.id, CURVE, 0);
    tenant.case("reuse/direct");
    assert_eq!(counted(probes, &tenant).block_accesses, 0, "direct I/O");
    let other = Tenant::new("reuse other");
    other.case("reuse/pread");
    assert_eq!(
        counted(probes, &other).block_accesses,
        0,
        "a cgroup not sampled"
    );
    let clean = |probes: &IoProbes| {
        let (cold, times) = reuse(probes, CURVE);
        cold == 0 && times.iter().all(|count| *count == 0)
    };
    assert!(clean(probes));
    // Files that lie on no disk.
    tenant.run(Command::new("sh").args([
        "-c",
        "cat /proc/self/maps /proc/meminfo >/run/reuse; cat /run/reuse >/dev/null",
    ]));
    assert!(clean(probes), "{}", directory.display());
}

/// What lies below a sampled cgroup counts for it, until it is sampled by itself; and nothing does once that is over.
fn below_and_stopped(probes: &mut IoProbes) {
    let parent = Tenant::new("reuse-parent");
    let child = Tenant::new_below(&parent, "child");
    sample(probes, parent.id, CURVE, 0);
    child.case("reuse/pread");
    assert!(near(reuse(probes, CURVE).1[bucket(BLOCKS)], BLOCKS, 5));
    sample(probes, child.id, OTHER, 0);
    let before = reuse(probes, CURVE);
    child.case("reuse/pread");
    assert_eq!(reuse(probes, CURVE), before);
    let found = reuse(probes, OTHER);
    assert!(found.0 + found.1.iter().sum::<u64>() >= 2 * BLOCKS);
    probes
        .sample_reuse(&[(child.id, None), (parent.id, None)])
        .unwrap();
    child.case("reuse/pread");
    assert_eq!(reuse(probes, OTHER), found);
    assert_eq!(reuse(probes, CURVE), before);
}

/// Runs in the tenant's cgroup.
pub(super) fn run(case: &str, directory: &Path) {
    if case == "snapshots" {
        for subvolume in ["a", "b"] {
            let path = directory.join(subvolume).join("reuse");
            read(&open(&path, OFlags::RDONLY), 0, PIECE, PIECE);
        }
        println!("\ntruth blocks={}", 2 * BLOCKS);
        return;
    }
    let path = directory.join("reuse");
    let direct = if case == "direct" {
        OFlags::DIRECT
    } else {
        OFlags::empty()
    };
    let file = open(&path, OFlags::RDONLY | direct);
    let mut buffer = Buffer::new(PIECE);
    let step = PIECE / 4;
    for _ in 0..2 {
        match case {
            "splice" => splice(&file),
            "mapped" => mapped(&file),
            "pages" => read(&file, 0, PAGE, PAGE),
            "sparse" => read(&file, 5 * PAGE, PIECE, PAGE),
            "across two" => read(&file, 12 * PAGE, 2 * PIECE, 8 * PAGE),
            "across three" => read(&file, 4 * PAGE, 3 * PIECE, 40 * PAGE),
            _ => {
                for at in (0..SIZE).step_by(step) {
                    let at = u64::try_from(at).unwrap();
                    match case {
                        "readv" => {
                            let mut piece = [std::io::IoSliceMut::new(buffer.get(step))];
                            assert_eq!(rustix::io::preadv(&file, &mut piece, at).unwrap(), step);
                        }
                        "sparse readv" if at % BLOCK != 0 => {}
                        "sparse readv" => {
                            let mut piece = [std::io::IoSliceMut::new(buffer.get(100))];
                            assert_eq!(rustix::io::preadv(&file, &mut piece, at).unwrap(), 100);
                        }
                        _ => file.read_exact_at(buffer.get(step), at).unwrap(),
                    }
                }
            }
        }
    }
    println!(
        "\ntruth blocks={}",
        2 * u64::try_from(SIZE).unwrap() / BLOCK
    );
}

/// Reads `length` bytes each `step` bytes, from `first` on.
fn read(file: &std::fs::File, first: usize, step: usize, length: usize) {
    let mut buffer = Buffer::new(length);
    for at in (first..=SIZE - length).step_by(step) {
        let at = u64::try_from(at).unwrap();
        file.read_exact_at(buffer.get(length), at).unwrap();
    }
}

fn splice(file: &std::fs::File) {
    let null = open(Path::new("/dev/null"), OFlags::WRONLY);
    let mut at = 0;
    while at < u64::try_from(SIZE).unwrap() {
        assert!(rustix::fs::sendfile(&null, file, Some(&mut at), PIECE).unwrap() > 0);
    }
}

/// Touches a byte of each block of a new mapping.
fn mapped(file: &std::fs::File) {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    // SAFETY: a new mapping, read within its bounds, and unmapped before it is forgotten.
    unsafe {
        let start = mmap(
            std::ptr::null_mut(),
            SIZE,
            ProtFlags::READ,
            MapFlags::SHARED,
            file,
            0,
        )
        .unwrap();
        for at in (0..SIZE).step_by(PIECE) {
            std::ptr::read_volatile(start.cast::<u8>().add(at));
        }
        munmap(start, SIZE).unwrap();
    }
}
