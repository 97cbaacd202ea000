//! Many cgroups made and removed under I/O: what the survivors did is counted to the byte, and
//! nothing is left of the others.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use justitia_kernel::probes::{Counters, IoProbes, Limits, ProbeSample};
use rustix::fs::OFlags;

use super::io_calls::{Buffer, MIB, make, open};
use super::{CGROUPS, Tenant};

/// How many come and go.
const CGROUPS_IN_ALL: usize = 10_000;
/// Each of these goes round that many cgroups.
const SURVIVORS: usize = 2;
const PIECE: usize = 4096;
/// There when all have gone.
const CHURNED: &str = "/run/churned";

/// The removed cgroups that were reported.
#[derive(Default)]
struct Removed {
    gone: usize,
    /// What they had read.
    reads: u64,
}

impl Removed {
    fn add(&mut self, sample: &ProbeSample) {
        self.gone += sample.removed.len();
        let reads = sample.removed.iter();
        self.reads += reads
            .map(|(_, counters)| counters.read.total().operations)
            .sum::<u64>();
    }
}

pub(super) fn run(directory: &Path) {
    make(&directory.join("churn"), MIB);
    let limits = Limits {
        max_cgroups: 256,
        ..Limits::default()
    };
    let mut probes = IoProbes::attach(&limits).unwrap();
    let survivors: Vec<_> = (0..SURVIVORS)
        .map(|number| Tenant::new(&format!("survivor {number}")))
        .collect();
    let over = AtomicBool::new(false);
    let (mut removed, mut samples) = (Removed::default(), 0);
    let mut overflow = 0;
    let begin = Instant::now();
    let truth: Vec<u64> = std::thread::scope(|scope| {
        let working: Vec<_> = survivors
            .iter()
            .map(|tenant| scope.spawn(|| tenant.case("churn/survive")["bytes"]))
            .collect();
        let churning = scope.spawn(|| {
            let tenant = Tenant::new("churner");
            let reads = tenant.case("churn/churn")["reads"];
            assert_eq!(reads, u64::try_from(CGROUPS_IN_ALL).unwrap());
            over.store(true, Ordering::Relaxed);
        });
        while !over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(200));
            let sample = probes.sample().unwrap();
            samples += 1;
            removed.add(&sample);
            overflow = sample.overflow.read.total().operations;
            assert_eq!(sample.dropped_events, 0);
        }
        churning.join().unwrap();
        working.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let sample = probes.sample().unwrap();
    removed.add(&sample);
    let Removed { gone, reads } = removed;
    let seen: Vec<u64> = survivors
        .iter()
        .map(|tenant| sample.cgroups[&tenant.id].read.buffered.bytes)
        .collect();
    println!(
        "{gone} removed cgroups told, {reads} of their reads, {overflow} reads without room, \
         survivors read {seen:?}, in truth {truth:?}; {samples} samples, {:?}",
        begin.elapsed()
    );
    assert_eq!(seen, truth);
    assert_eq!(reads + overflow, u64::try_from(CGROUPS_IN_ALL).unwrap());
    assert_eq!(sample.overflow.written, Counters::default().written);
    let left = probes.sample().unwrap().cgroups.len();
    assert!(left < 16, "{left} cgroups are still known");
}

/// Runs in a cgroup of its own: one that goes through the others, or one that reads until that is
/// through.
pub(super) fn work(name: &str, directory: &Path) {
    let file = open(&directory.join("churn"), OFlags::RDONLY);
    let mut buffer = Buffer::new(PIECE);
    if name == "churn" {
        return churn(&file, &mut buffer);
    }
    let mut bytes = 0;
    let mut piece = 0;
    while !Path::new(CHURNED).exists() {
        for _ in 0..64 {
            piece = (piece + 1) % (MIB / PIECE);
            let at = u64::try_from(piece * PIECE).unwrap();
            file.read_exact_at(buffer.get(PIECE), at).unwrap();
            bytes += PIECE;
        }
    }
    println!("\ntruth bytes={bytes}");
}

/// Makes a cgroup, goes into it, reads once, and removes the one before.
fn churn(file: &File, buffer: &mut Buffer) {
    let home = Path::new(CGROUPS).join("churner");
    let enter = |cgroup: &Path| std::fs::write(cgroup.join("cgroup.procs"), "0").unwrap();
    let mut before: Option<PathBuf> = None;
    for number in 0..CGROUPS_IN_ALL {
        let cgroup = Path::new(CGROUPS).join(format!("churn-{number}"));
        std::fs::create_dir(&cgroup).unwrap();
        enter(&cgroup);
        file.read_exact_at(buffer.get(PIECE), 0).unwrap();
        if let Some(before) = before.replace(cgroup) {
            std::fs::remove_dir(before).unwrap();
        }
    }
    enter(&home);
    std::fs::remove_dir(before.unwrap()).unwrap();
    std::fs::write(CHURNED, "").unwrap();
    println!("\ntruth reads={CGROUPS_IN_ALL}");
}
