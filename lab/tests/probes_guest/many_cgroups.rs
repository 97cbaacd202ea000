//! More cgroups than there are slots, each of which reads once: the next one has counters of its own all the same,
//! and nothing is counted twice or forgotten.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::probes::{IoProbes, Limits, Sample};
use rustix::fs::OFlags;

use super::io_calls::{Buffer, MIB, SIZE, make, open};
use super::{CGROUPS, Tenant};

/// Half as many again as there are slots.
const COUNT: usize = 3072;
const PIECE: usize = 4096;
/// Emulated on a loaded machine.
const LONGEST: Duration = Duration::from_secs(30);

pub(super) fn compare(directory: &Path) {
    make(&directory.join("many"), MIB);
    make(&directory.join("source"), SIZE);
    make(&directory.join("target"), SIZE);
    let mut probes = IoProbes::attach(&Limits::default()).unwrap();
    let mut before = Sample::default();
    let mut next_sample = || {
        let sample = probes.sample().unwrap();
        never_backwards(&before, &sample);
        before = sample.clone();
        sample
    };

    let begin = Instant::now();
    let reads = std::thread::scope(|scope| {
        let creator = scope.spawn(|| Tenant::new("guide").case("many_cgroups/go")["reads"]);
        while !creator.is_finished() {
            next_sample();
            std::thread::sleep(Duration::from_millis(200));
        }
        creator.join().unwrap()
    });
    let came = begin.elapsed();
    let begin = Instant::now();
    // Slots become free some samples later.
    while begin.elapsed() < Duration::from_secs(2) {
        next_sample();
        std::thread::sleep(Duration::from_millis(200));
    }
    let sample = next_sample();
    let mine: HashMap<CgroupId, u64> = cgroups()
        .map(|path| {
            let id = CgroupId(std::fs::metadata(path).unwrap().ino());
            let counters = sample.cgroups.get(&id).copied().unwrap_or_default();
            (id, counters.read.buffered.operations)
        })
        .collect();
    let apart: u64 = mine.values().sum();
    let together = sample.overflow.read.buffered.operations;
    println!("{reads} cgroups read within {came:?}: {apart} counted apart, {together} together");
    assert_eq!(apart + together, reads);
    assert!(mine.values().all(|&reads| reads <= 1));
    assert_eq!((sample.dropped_events, sample.map_busy), (0, 0));

    let newcomer = Tenant::new("newcomer");
    let begin = Instant::now();
    let truth = newcomer.case("path/pread")["read"];
    let counted = |sample: &Sample| {
        sample
            .cgroups
            .get(&newcomer.id)
            .map(|c| c.read.buffered.bytes)
    };
    while counted(&next_sample()) != Some(truth) {
        assert!(
            begin.elapsed() < LONGEST,
            "{:?} of {truth}",
            counted(&next_sample())
        );
    }
    println!(
        "the newcomer's {truth} bytes are counted after {:?}",
        begin.elapsed()
    );
    assert_eq!(next_sample().map_full, sample.map_full);

    // One that had a slot once, and has it no more, goes on from where it was.
    let (first, size) = (cgroups().next().unwrap(), u64::try_from(SIZE).unwrap());
    let id = CgroupId(std::fs::metadata(&first).unwrap().ino());
    let again = std::mem::ManuallyDrop::new(Tenant { path: first, id });
    again.case("path/pread");
    let all = next_sample().cgroups[&id].read.buffered.bytes;
    assert_eq!(all, size + mine[&id] * 4096);
    assert_eq!(
        probes.counters_of(id),
        probes.sample().unwrap().cgroups.get(&id).copied()
    );

    // What is removed is reported once, with all that it had counted, and kept no more.
    for path in cgroups() {
        std::fs::remove_dir(path).unwrap();
    }
    let sample = probes.sample().unwrap();
    let last = sample
        .removed
        .iter()
        .find(|(removed, _)| *removed == id)
        .unwrap();
    assert_eq!(last.1.read.buffered.bytes, all);
    probes.retain(|id| !mine.contains_key(&id));
    let left = probes.sample().unwrap().cgroups;
    assert!(
        left.keys().all(|id| !mine.contains_key(id)),
        "{}",
        left.len()
    );
}

fn never_backwards(before: &Sample, sample: &Sample) {
    for (id, was) in &before.cgroups {
        let is = sample
            .cgroups
            .get(id)
            .unwrap_or_else(|| panic!("{id:?} is forgotten"));
        assert_eq!(
            was.since(is),
            Default::default(),
            "{id:?}: {was:?}, then {is:?}"
        );
    }
}

fn cgroups() -> impl Iterator<Item = PathBuf> {
    (0..COUNT).map(|number| Path::new(CGROUPS).join(format!("many-{number}")))
}

/// Goes through all of them, and reads once in each.
pub(super) fn work(directory: &Path) {
    let file: File = open(&directory.join("many"), OFlags::RDONLY);
    let mut buffer = Buffer::new(PIECE);
    let enter = |cgroup: &Path| std::fs::write(cgroup.join("cgroup.procs"), "0").unwrap();
    for cgroup in cgroups() {
        std::fs::create_dir(&cgroup).unwrap();
        enter(&cgroup);
        file.read_exact_at(buffer.get(PIECE), 0).unwrap();
    }
    enter(&Path::new(CGROUPS).join("guide"));
    println!("\ntruth reads={COUNT}");
}
