//! The law against simulated pools, of which it knows what its own reads and writes took: beside admitting all, and nothing.
//!
//! Times vary as those of disks do. A pool reads pieces of some blocks, in a loop or at random; its part of the SSD is first
//! in, first out.

use crate::ssd_admission::{
    Decision, DeviceTimes, Mean, SampledRuns, SsdAdmission, SsdUse, decide,
};
use crate::testing::Random;
use justitia_share::num::{to_f64, to_u64};
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// Reads of a run, and how many of them are judged: the last.
const READS: u64 = 60_000;
const JUDGED: u64 = 40_000;

#[derive(Clone, Copy, Debug)]
struct Case {
    /// The mean time of a read of the disk, us, before and after half of the reads.
    disk_us: [f64; 2],
    /// The time of a read of the SSD, and of each block of it, us.
    ssd_us: [f64; 2],
    write_us: f64,
    /// Blocks of a piece.
    piece: u64,
    /// Pieces that fit on the SSD, and those that are read.
    fits: u64,
    pieces: u64,
    is_loop: bool,
    seed: u64,
}

/// Between the two, evenly by their logarithm.
fn between(random: &mut Random, low: f64, high: f64) -> f64 {
    low * (high / low).powf(random.part())
}

impl Case {
    fn random(seed: u64) -> Self {
        let random = &mut Random::new(seed);
        random.next();
        let disk = between(random, 20.0, 10_000.0);
        let fits = 200 + random.below(1000);
        let piece = [1, 4, 32][usize::try_from(random.below(3)).unwrap()];
        Self {
            disk_us: [disk; 2],
            ssd_us: [between(random, 30.0, 150.0), 5.0],
            write_us: between(random, 1.0, 10.0),
            piece,
            fits,
            pieces: to_u64(to_f64(fits) * between(random, 0.25, 8.0)).max(1),
            is_loop: random.below(2) == 0,
            seed,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Always,
    Never,
    Law,
}

#[derive(Default)]
struct Pool {
    decision: Decision,
    seen: SsdUse,
    sample: SampledRuns,
    disk: Mean,
    /// Blocks of each piece on the SSD, and the order in which pieces came.
    held: HashMap<u64, u64>,
    order: VecDeque<u64>,
    room: u64,
}

/// The result of a run.
struct Found {
    /// The time of the judged reads and their writes, us.
    time: f64,
    admission: SsdAdmission,
    /// When the last of all decisions was another one than before: reads.
    changed: u64,
}

/// A time that varies by its mean: at least a fifth of it, at most some times as much.
fn varied(random: &mut Random, mean: f64) -> f64 {
    mean * 0.8f64.mul_add(-random.part().max(1e-9).ln(), 0.2)
}

fn ns(us: f64) -> u64 {
    to_u64(us * 1000.0)
}

fn run(case: &Case, how: How) -> Found {
    let random = &mut Random::new(case.seed ^ 0xABCD);
    let start = Instant::now();
    let mut pool = Pool {
        room: case.fits * case.piece,
        ..Pool::default()
    };
    let (mut time, mut judged_from, mut changed) = (0.0, 0.0, 0);
    for read in 0..READS {
        if read == READS - JUDGED {
            judged_from = time;
        }
        let piece = match case.is_loop {
            true => read % case.pieces,
            false => random.below(case.pieces),
        };
        let disk_us = case.disk_us[usize::from(read >= READS / 2)];
        let held = pool.held.get(&piece).copied().unwrap_or(0);
        if held > 0 {
            let each = case.ssd_us[1] * to_f64(held);
            let took = varied(random, case.ssd_us[0] + each);
            time += took;
            pool.seen.reading_ns += ns(took);
            let served = held == case.piece;
            pool.seen.saved_ns += if served {
                pool.disk.get().unwrap_or(0)
            } else {
                0
            };
            if pool.decision.admission == SsdAdmission::Bypass {
                pool.leave(piece);
            }
        }
        if held < case.piece {
            let took = varied(random, disk_us);
            time += took;
            pool.disk.add(1, ns(took));
            let now = start + Duration::from_nanos(ns(time));
            for _ in held..case.piece {
                let admitted = match how {
                    How::Always => true,
                    How::Never => false,
                    How::Law => {
                        pool.decision.admission == SsdAdmission::All || pool.sample.admits(now)
                    }
                };
                if admitted {
                    time += case.write_us;
                    pool.insert(piece);
                }
            }
        }
        if how == How::Law && pool.judge(case) {
            changed = read;
        }
    }
    Found {
        time: time - judged_from,
        admission: pool.decision.admission,
        changed,
    }
}

impl Pool {
    fn insert(&mut self, piece: u64) {
        while self.room == 0 {
            let Some(oldest) = self.order.pop_front() else {
                return;
            };
            self.leave(oldest);
        }
        self.room -= 1;
        let held = self.held.entry(piece).or_insert(0);
        if *held == 0 {
            self.order.push_back(piece);
        }
        *held += 1;
    }

    fn leave(&mut self, piece: u64) {
        let blocks = self.held.remove(&piece).unwrap_or(0);
        self.order.retain(|other| *other != piece);
        self.room += blocks;
        self.seen.left += blocks;
    }

    /// Has it changed its mind?
    fn judge(&mut self, case: &Case) -> bool {
        let Some(disk_read_ns) = self.disk.get() else {
            return false;
        };
        let at = DeviceTimes {
            disk_read_ns,
            write_ns: ns(case.write_us),
        };
        let Some(decision) = decide(self.decision, &self.seen, at) else {
            return false;
        };
        self.seen = SsdUse::default();
        let before = std::mem::replace(&mut self.decision, decision).admission;
        if (before == SsdAdmission::All) != (decision.admission == SsdAdmission::All) {
            self.sample = SampledRuns::default();
        }
        before != decision.admission
    }
}

/// Of 100 pools (`SEEDS` for more), whatever their disks and what they read, few take a tenth longer than with the better of both ways.
#[test]
fn the_law_is_hardly_worse_than_the_better_of_all_and_nothing() {
    let seeds = std::env::var("SEEDS").map_or(100, |s| s.parse().unwrap());
    let mut ratios = Vec::new();
    for seed in 0..seeds {
        let case = Case::random(seed);
        let [all, none, law] = [How::Always, How::Never, How::Law].map(|how| run(&case, how).time);
        ratios.push((law / all.min(none), law / all.max(none), case));
    }
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    if std::env::var("SEEDS").is_ok() {
        for at in [0.1, 0.5, 0.9, 0.95, 0.98, 0.99, 1.0] {
            let at = to_u64(at * to_f64(seeds - 1));
            println!("{:?}", ratios[usize::try_from(at).unwrap()]);
        }
    }
    let good = ratios.iter().filter(|(worse, _, _)| *worse <= 1.1).count();
    assert!(good * 100 >= ratios.len() * 98, "{good}");
    let (worst, _, case) = ratios.last().unwrap();
    assert!(*worst < 1.25, "{worst} {case:?}");
}

/// Where a read of the disk takes less than one of the SSD, a pool leaves; when the disk becomes slow, it comes back, and
/// the other way round.
#[test]
fn a_disk_that_becomes_slow_or_fast_is_noticed() {
    for seed in 0..100 {
        let mut case = Case::random(seed);
        case.pieces = case.fits / 2;
        let ssd = case.ssd_us[1].mul_add(to_f64(case.piece), case.ssd_us[0]);
        let slow = 5.0 * case.write_us.mul_add(to_f64(case.piece), ssd);
        case.disk_us = [ssd / 3.0, slow];
        let found = run(&case, How::Law);
        assert_eq!(found.admission, SsdAdmission::All, "{case:?}");
        assert!(found.changed > READS / 2, "it had not left: {case:?}");
        assert!(
            found.changed < READS / 2 + 12_000,
            "{} {case:?}",
            found.changed
        );
        case.disk_us = [ssd / 3.0; 2];
        let found = run(&case, How::Law);
        assert_eq!(found.admission, SsdAdmission::Bypass, "{case:?}");
    }
}
