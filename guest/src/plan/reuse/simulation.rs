//! The law against a guest and a host's cache of its own kind: least recently used there, first in first out here.
//! `SEEDS=300` and a release build for as many seeds; `make test-seeds` does so.

use std::collections::{HashMap, VecDeque};

use super::*;

/// Seeds of each case.
fn count() -> u64 {
    std::env::var("SEEDS").map_or(20, |seeds| seeds.parse().unwrap())
}

/// Blocks in the order in which they came, at most so many.
#[derive(Default)]
struct Queue {
    stamps: HashMap<u64, u64>,
    order: VecDeque<(u64, u64)>,
    clock: u64,
}

impl Queue {
    fn has(&self, block: u64) -> bool {
        self.stamps.contains_key(&block)
    }

    /// Adds it as the newest.
    fn push(&mut self, block: u64) {
        self.clock += 1;
        self.stamps.insert(block, self.clock);
        self.order.push_back((block, self.clock));
    }

    fn remove(&mut self, block: u64) -> bool {
        self.stamps.remove(&block).is_some()
    }

    /// Takes the oldest, if there are more than `most`.
    fn pop_beyond(&mut self, most: usize) -> Option<u64> {
        if self.stamps.len() <= most {
            return None;
        }
        loop {
            let (block, stamp) = self.order.pop_front()?;
            if self.stamps.get(&block) == Some(&stamp) {
                self.stamps.remove(&block);
                return Some(block);
            }
        }
    }
}

/// The guest, the host, and what has happened.
struct World {
    guest: Queue,
    host: Queue,
    /// When blocks were evicted, as the kernel remembers it for a while.
    shadows: HashMap<u64, u64>,
    pages: usize,
    slots: usize,
    /// The machine's memory: its page cache is half of it.
    memory: u64,
    worth: Worth,
    figures: Figures,
    clock: Duration,
    steps: u64,
    put: u64,
    read: u64,
}

impl World {
    fn new(pages: usize, slots: usize) -> Self {
        Self {
            guest: Queue::default(),
            host: Queue::default(),
            shadows: HashMap::new(),
            pages,
            slots,
            memory: 2 * u64::try_from(pages).unwrap(),
            worth: Worth::default(),
            figures: Figures::default(),
            clock: Duration::ZERO,
            steps: 0,
            put: 0,
            read: 0,
        }
    }

    fn read(&mut self, block: u64) {
        if self.guest.has(block) {
            self.guest.push(block);
        } else {
            self.read += 1;
            if self.host.remove(block) {
                self.figures.hits += 1;
            }
            if let Some(at) = self.shadows.remove(&block) {
                let near = self.figures.reclaimed - at < 4 * self.memory;
                self.figures.refaults += u64::from(near);
            }
            self.guest.push(block);
        }
        self.step();
    }

    /// A block gets a new content; what it had is nowhere any more.
    fn write(&mut self, block: u64) {
        self.figures.lost += u64::from(self.host.remove(block));
        self.shadows.remove(&block);
        self.guest.push(block);
        self.step();
    }

    fn step(&mut self) {
        while let Some(block) = self.guest.pop_beyond(self.pages) {
            self.figures.reclaimed += 1;
            self.shadows.insert(block, self.figures.reclaimed);
            self.offer(block);
        }
        self.steps += 1;
        // Twice the page cache in a minute, and a decision every two seconds.
        if self.steps.is_multiple_of(self.memory / 30) {
            self.clock += Duration::from_secs(2);
            self.worth = decide(self.worth, self.figures, self.memory, self.clock);
        }
    }

    fn offer(&mut self, block: u64) {
        let shift = self.worth.in_kernel();
        let mixed = block.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        if shift < NOTHING && mixed & ((1 << shift) - 1) == 0 {
            self.put += 1;
            self.figures.accepted += 1;
            self.host.push(block);
            while self.host.pop_beyond(self.slots).is_some() {
                self.figures.lost += 1;
            }
        }
    }

    /// Runs a part; returns what was put of what was evicted, and hit of what was read.
    fn part(&mut self, run: impl FnOnce(&mut Self)) -> (f64, f64) {
        let (put, read, figures) = (self.put, self.read, self.figures);
        run(self);
        let of = |n: u64, of: u64| {
            f64::from(u32::try_from(n).unwrap()) / f64::from(u32::try_from(of.max(1)).unwrap())
        };
        let seen = self.figures.since(&figures);
        (
            of(self.put - put, seen.reclaimed),
            of(seen.hits, self.read - read),
        )
    }
}

fn seeds(run: impl Fn(&mut fastrand::Rng)) {
    for seed in 0..count() {
        let mut random = fastrand::Rng::with_seed(seed);
        run(&mut random);
    }
}

/// A guest of a random size, with a host's cache of so many times its page cache.
fn world(random: &mut fastrand::Rng, times: std::ops::Range<f64>) -> World {
    let pages = random.usize(1000..1500);
    let times = times.start + random.f64() * (times.end - times.start);
    World::new(pages, scaled(pages, times))
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
        let mut stream = |world: &mut World, count: u64| {
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
        let mut serve = |world: &mut World, count: u64| {
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
        let cycle = |world: &mut World| (0..set).for_each(|block| world.read(block));
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
        let mut turn = |world: &mut World, count: u64| {
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
