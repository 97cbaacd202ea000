//! More cgroups than there are slots, each of which reads once: the next one has counters of its own all the same,
//! and nothing is counted twice or forgotten.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::probes::{IoProbes, Limits, ProbeSample};
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
    let mut samples = Samples {
        probes: IoProbes::attach(&Limits::default()).unwrap(),
        before: ProbeSample::default(),
    };
    let (reads, came) = samples.while_they_come();
    let sample = samples.next();
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

    // Kept: a cgroup that is removed is missing from the next sample.
    let _newcomer = samples.count_a_newcomer();
    assert_eq!(samples.next().map_full, sample.map_full);

    // One that had a slot once, and has it no more, goes on from where it was.
    let (first, size) = (cgroups().next().unwrap(), u64::try_from(SIZE).unwrap());
    let id = CgroupId(std::fs::metadata(&first).unwrap().ino());
    let again = std::mem::ManuallyDrop::new(Tenant { path: first, id });
    again.case("path/pread");
    let all = samples.next().cgroups[&id].read.buffered.bytes;
    assert_eq!(all, size + mine[&id] * 4096);
    let mut probes = samples.probes;
    assert_eq!(
        probes.counters_of(id),
        probes.sample().unwrap().cgroups.get(&id).copied()
    );
    remove_all(&mut probes, id, all, &mine);
}

/// What is removed is reported once, with all that it had counted, and kept no more.
fn remove_all(probes: &mut IoProbes, id: CgroupId, all: u64, mine: &HashMap<CgroupId, u64>) {
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

/// Samples, none of which counts less than the one before.
struct Samples {
    probes: IoProbes,
    before: ProbeSample,
}

impl Samples {
    fn next(&mut self) -> ProbeSample {
        let sample = self.probes.sample().unwrap();
        never_backwards(&self.before, &sample);
        self.before = sample.clone();
        sample
    }

    /// While the cgroups are made and read: how many did, and how long that took.
    fn while_they_come(&mut self) -> (u64, Duration) {
        let begin = Instant::now();
        let reads = std::thread::scope(|scope| {
            let creator = scope.spawn(|| Tenant::new("guide").case("many_cgroups/go")["reads"]);
            while !creator.is_finished() {
                self.next();
                std::thread::sleep(Duration::from_millis(200));
            }
            creator.join().unwrap()
        });
        let came = begin.elapsed();
        let begin = Instant::now();
        // Slots become free some samples later.
        while begin.elapsed() < Duration::from_secs(2) {
            self.next();
            std::thread::sleep(Duration::from_millis(200));
        }
        (reads, came)
    }

    /// A tenant that came last, all of whose reads are counted as its own.
    fn count_a_newcomer(&mut self) -> Tenant {
        let newcomer = Tenant::new("newcomer");
        let begin = Instant::now();
        let truth = newcomer.case("path/pread")["read"];
        let counted = |sample: &ProbeSample| {
            sample
                .cgroups
                .get(&newcomer.id)
                .map(|c| c.read.buffered.bytes)
        };
        while counted(&self.next()) != Some(truth) {
            assert!(
                begin.elapsed() < LONGEST,
                "{:?} of {truth}",
                counted(&self.next())
            );
        }
        println!(
            "the newcomer's {truth} bytes are counted after {:?}",
            begin.elapsed()
        );
        newcomer
    }
}

fn never_backwards(before: &ProbeSample, sample: &ProbeSample) {
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
