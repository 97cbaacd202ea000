//! What the probes cost a process that reads 4 KiB from the page cache, over and over: with and
//! without them in turns.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use justitia_kernel::eyes::{Eyes, Limits};
use justitia_share::num::to_f64;
use rustix::fs::OFlags;

use super::Tenant;
use super::calls::{Buffer, MIB, make, open};

/// Rounds, and reads in each: for a clock that counts nanoseconds, and for one that counts
/// instructions, where nothing but timer interrupts differs between two rounds.
const TIMED: (usize, u32) = (15, 40_000);
const COUNTED: (usize, u32) = (5, 4000);
const PIECE: usize = 4096;

pub fn measure(directory: &Path, what: &str) {
    make(&directory.join("cost"), MIB);
    let tenant = Tenant::new("cost");
    let found = tenant.case(what);
    println!("a cached pread of 4 KiB: {found:?}");
}

/// Runs in a cgroup, and opens the eyes itself.
pub fn work(what: &str, directory: &Path) {
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
            let piece = usize::try_from(number).unwrap() % (MIB / PIECE);
            let at = u64::try_from(piece * PIECE).unwrap();
            file.read_exact_at(buffer.get(PIECE), at).unwrap();
        }
        begin.elapsed().as_nanos() / u128::from(reads)
    };
    round();
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        without.push(round());
        let eyes = Eyes::open(&Limits::default()).unwrap();
        with.push(round());
        drop(eyes);
    }
    without.sort_unstable();
    with.sort_unstable();
    let nanoseconds = |of: &[u128], at: usize| u64::try_from(of[at]).unwrap();
    let medians = [&without, &with].map(|of| nanoseconds(of, rounds / 2));
    println!("without {without:?}\nwith {with:?}");
    println!(
        "cost {:.2} % by the medians, {:.2} % by the fastest",
        (to_f64(medians[1]) / to_f64(medians[0]) - 1.0) * 100.0,
        (to_f64(nanoseconds(&with, 0)) / to_f64(nanoseconds(&without, 0)) - 1.0) * 100.0
    );
    println!("\ntruth without={} with={}", medians[0], medians[1]);
}
