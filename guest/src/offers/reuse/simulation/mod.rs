//! The law against a guest and a host's cache of its own kind: least recently used there, first in first out here.
//! `SEEDS=300` and a release build for as many seeds; `make test-seeds` does so.

mod world;

use std::time::Duration;

use crate::offers::reuse::simulation::world::*;

/// Seeds of each case.
fn count() -> u64 {
    std::env::var("SEEDS").map_or(10, |seeds| seeds.parse().unwrap())
}

fn seeds(run: impl Fn(&mut fastrand::Rng)) {
    for seed in 0..count() {
        let mut random = fastrand::Rng::with_seed(seed);
        run(&mut random);
    }
}

/// A guest of a random size, with a host's cache of `times` times its page cache.
fn world(random: &mut fastrand::Rng, times: std::ops::Range<f64>) -> SimulatedGuest {
    let pages = random.usize(1000..1500);
    let times = times.start + random.f64() * (times.end - times.start);
    SimulatedGuest::new(pages, scaled(pages, times))
}

/// `pages` times a factor.
fn scaled(pages: usize, times: f64) -> usize {
    let pages = f64::from(u32::try_from(pages).unwrap());
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "small and positive"
    )]
    let scaled = (pages * times) as usize;
    scaled
}

fn blocks(pages: usize, times: f64) -> u64 {
    u64::try_from(scaled(pages, times)).unwrap()
}

/// A stream is never read again: after twice the memory next to nothing is put.
#[test]
fn a_stream_is_soon_not_offered() {
    seeds(|random| {
        let mut world = world(random, 0.5..20.0);
        let memory = world.memory;
        let mut at = 0;
        let mut stream = |world: &mut SimulatedGuest, count: u64| {
            for _ in 0..count {
                at += 1;
                world.read(at);
            }
        };
        world.part(|world| stream(world, 3 * memory));
        assert!(world.put <= 2 * memory + memory / 2, "{}", world.put);
        let (put, _) = world.part(|world| stream(world, 20 * memory));
        assert!(put < 0.015, "{put}");
    });
}

/// Files that are written, perhaps read once, and replaced by others.
#[test]
fn a_fileserver_is_soon_not_offered() {
    seeds(|random| {
        let mut world = world(random, 0.5..4.0);
        let memory = world.memory;
        let files = blocks(world.pages, 2.0 + 4.0 * random.f64()) / 32;
        let mut serve = |world: &mut SimulatedGuest, count: u64| {
            for _ in 0..count / 64 {
                let file = random.u64(0..files) * 32;
                (file..file + 32).for_each(|block| world.write(block));
                (file..file + 32).for_each(|block| world.read(block));
            }
        };
        world.part(|world| serve(world, 10 * memory));
        let (put, _) = world.part(|world| serve(world, 20 * memory));
        assert!(put < 0.015, "{put}");
    });
}

/// A working set that the host's cache holds is offered in full from its first cycle on, if it is not much larger than
/// memory; and by its fourth, whatever came before.
#[test]
fn a_working_set_is_offered_in_full() {
    seeds(|random| {
        let mut world = world(random, 8.0..9.0);
        let (pages, memory) = (world.pages, world.memory);
        let stream = random.u64(0..8) * memory;
        for block in 0..stream {
            world.read(1 << 40 | block);
        }
        let set = blocks(pages, 2.0 + 5.0 * random.f64());
        let cycle = |world: &mut SimulatedGuest| (0..set).for_each(|block| world.read(block));
        world.part(cycle);
        let (_, second) = world.part(cycle);
        world.part(cycle);
        world.part(cycle);
        let (_, fifth) = world.part(cycle);
        if stream == 0 && set <= 5 * memory / 2 {
            assert!(second > 0.8, "{second}");
        }
        assert!(
            fifth > 0.8,
            "{second} {fifth}, {set} of {memory} after {stream}"
        );
    });
}

/// What is read again, but never while the host's cache has it: offered seldom, though the guest's refaults ask for more.
#[test]
fn what_the_host_cannot_hold_is_offered_seldom() {
    seeds(|random| {
        let mut world = world(random, 0.1..0.3);
        let (pages, memory) = (world.pages, world.memory);
        let set = blocks(pages, 3.0 + random.f64());
        let mut at = 0;
        let mut turn = |world: &mut SimulatedGuest, count: u64| {
            for _ in 0..count {
                at = (at + 1) % set;
                world.read(at);
            }
        };
        world.part(|world| turn(world, 10 * memory));
        let (put, hit) = world.part(|world| turn(world, 30 * memory));
        // Now and then a sample is small enough for it.
        assert!(put < 0.03 || hit > put / 25.0, "{put} {hit}");
    });
}

/// A disk, a processor and two workloads by chance.
#[derive(Debug)]
struct Case {
    pages: usize,
    slots: usize,
    times: Times,
    workload: [Workload; 2],
}

/// Reads: `percent` in 100 are of a set, in turn or at random, the others of a stream. Of all, `written` in 100 are written
/// first.
#[derive(Clone, Copy, Debug)]
struct Workload {
    set: u64,
    percent: u64,
    in_turn: bool,
    written: u64,
}

impl Workload {
    fn random(random: &mut fastrand::Rng, pages: usize) -> Self {
        Self {
            set: blocks(pages, 1.2 + 4.0 * random.f64()),
            percent: [0, random.u64(0..=100), 100][random.usize(0..3)],
            in_turn: random.bool(),
            written: [0, 0, random.u64(0..=100)][random.usize(0..3)],
        }
    }

    /// The same reads in every world of the seed.
    fn run(&self, world: &mut SimulatedGuest, count: u64, seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut turn, mut stream) = (0, seed << 32 | 1 << 31);
        for _ in 0..count {
            let is_set = random.u64(0..100) < self.percent;
            let block = if !is_set {
                stream += 1;
                stream
            } else if self.in_turn {
                turn = (turn + 1) % self.set;
                turn
            } else {
                random.u64(0..self.set)
            };
            if random.u64(0..100) < self.written {
                world.write(block);
            }
            world.read(block);
        }
    }
}

/// A factor between two, all orders of magnitude alike.
fn factor(random: &mut fastrand::Rng, from: f64, to: f64) -> f64 {
    from * (to / from).powf(random.f64())
}

/// `of` nanoseconds times a factor.
fn part(of: u64, factor: f64) -> u64 {
    Duration::from_nanos(of)
        .mul_f64(factor)
        .as_nanos()
        .try_into()
        .unwrap()
}

impl Case {
    /// A case in which a hit saves this many times the cost of a put.
    fn random(random: &mut fastrand::Rng, saving: std::ops::Range<f64>) -> Self {
        let pages = random.usize(1000..1500);
        let put = random.u64(500..50_000);
        let hit = part(put, factor(random, 0.01, 0.4));
        let saving = factor(random, saving.start, saving.end);
        Self {
            pages,
            slots: scaled(pages, factor(random, 0.2, 9.0)),
            times: Times {
                think: part(put, factor(random, 0.05, 2.0)),
                miss: hit + part(put, saving),
                hit,
                put,
            },
            workload: [0, 1].map(|_| Workload::random(random, pages)),
        }
    }

    /// The time spent on both workloads, each for this many memories, and the number of puts.
    fn spent(&self, memories: u64, by: By) -> (u64, u64) {
        let mut world = SimulatedGuest::timed(self.pages, self.slots, self.times, by);
        for (seed, workload) in (1..).zip(&self.workload) {
            let count = memories * world.memory;
            workload.run(&mut world, count, seed);
        }
        (world.spent, world.put)
    }
}

/// For any reads, next to nothing is lost against a guest without puts. Most of the gain of a guest that puts all is had, if it
/// gains.
#[test]
fn the_loss_is_bounded_and_the_gain_is_had() {
    seeds(|random| {
        let case = Case::random(random, 0.1..1000.0);
        let [law, all, nothing] = [By::Law, By::All, By::Nothing].map(|by| case.spent(30, by).0);
        // Of the second workload the law learns after the first.
        assert!(law < part(nothing, 1.1), "{law} of {nothing}: {case:?}");
        let gain = nothing.saturating_sub(all);
        let most = nothing - part(gain, 0.8) + part(nothing, 0.05);
        assert!(
            gain == 0 || law < most,
            "{law} of {nothing}, {all}: {case:?}"
        );
    });
}

/// Where a put costs more than a hit saves next to nothing is put, however much is hit.
#[test]
fn what_costs_more_than_it_saves_is_not_offered() {
    seeds(|random| {
        let case = Case::random(random, 0.01..0.55);
        let (law, put) = case.spent(10, By::Law);
        let (nothing, _) = case.spent(10, By::Nothing);
        assert!(law < part(nothing, 1.1), "{law} of {nothing}: {case:?}");
        // Some dozen each time that it is tried.
        assert!(put < 1000, "{put}: {case:?}");
    });
}

/// A disk that becomes slow makes puts worth it, and one that becomes fast the opposite: both are noticed.
#[test]
fn a_disk_that_changes_is_followed() {
    seeds(|random| {
        let case = Case::random(random, 0.01..0.5);
        let mut world = SimulatedGuest::timed(case.pages, 9 * case.pages, case.times, By::Law);
        let (set, memory) = (blocks(case.pages, 2.0 + random.f64()), world.memory);
        let mut turn = 0;
        let mut read = |world: &mut SimulatedGuest, count: u64| {
            for _ in 0..count {
                turn = (turn + 1) % set;
                world.read(turn);
            }
        };
        let slow = Times {
            miss: case.times.hit + case.times.put * random.u64(5..100),
            ..case.times
        };
        let (put, _) = world.part(|world| read(world, 10 * memory));
        assert!(put < 0.1, "{put}");
        world.set_times(slow);
        world.part(|world| read(world, 20 * memory));
        let (put, hit) = world.part(|world| read(world, 5 * memory));
        assert!(put > 0.8 && hit > 0.8, "{put} {hit}: {slow:?}");
        world.set_times(case.times);
        // While everything is hit nothing shows how fast the disk is.
        (0..20 * memory).for_each(|block| world.read(1 << 40 | block));
        let (put, _) = world.part(|world| read(world, 10 * memory));
        assert!(put < 0.1, "{put}");
    });
}
