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

const ROUNDS: usize = 15;
const READS: u32 = 40_000;
const PIECE: usize = 4096;

pub fn measure(directory: &Path) {
    make(&directory.join("cost"), MIB);
    let tenant = Tenant::new("cost");
    println!("{:?}", tenant.case("cost/4K"));
}

/// Runs in a cgroup, and opens the eyes itself.
pub fn work(directory: &Path) {
    let file = open(&directory.join("cost"), OFlags::RDONLY);
    let mut buffer = Buffer::new(PIECE);
    let mut round = || {
        let begin = Instant::now();
        for number in 0..READS {
            let piece = usize::try_from(number).unwrap() % (MIB / PIECE);
            let at = u64::try_from(piece * PIECE).unwrap();
            file.read_exact_at(buffer.get(PIECE), at).unwrap();
        }
        begin.elapsed().as_nanos() / u128::from(READS)
    };
    round();
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        without.push(round());
        let eyes = Eyes::open(&Limits::default()).unwrap();
        with.push(round());
        drop(eyes);
    }
    without.sort_unstable();
    with.sort_unstable();
    let nanoseconds = |of: &[u128], at: usize| u64::try_from(of[at]).unwrap();
    let medians = [&without, &with].map(|of| nanoseconds(of, ROUNDS / 2));
    println!("without {without:?}\nwith {with:?}");
    println!(
        "cost {:.2} % by the medians, {:.2} % by the fastest",
        (to_f64(medians[1]) / to_f64(medians[0]) - 1.0) * 100.0,
        (to_f64(nanoseconds(&with, 0)) / to_f64(nanoseconds(&without, 0)) - 1.0) * 100.0
    );
    println!("\ntruth without={} with={}", medians[0], medians[1]);
}
