//! A guest, its host, and what they spend.

use std::collections::{HashMap, VecDeque};

use crate::offers::costs::{Costs, Counted};
use crate::offers::reuse::*;

/// A bounded number of blocks, in the order in which they came.
#[derive(Debug, Default)]
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

/// What things take, nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    /// A read, besides what it waits for the host.
    pub(super) think: u64,
    pub(super) miss: u64,
    pub(super) hit: u64,
    pub(super) put: u64,
}

/// The policy that decides offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Law,
    All,
    Nothing,
}

/// The guest, the host, and what has happened.
#[derive(Debug)]
pub(super) struct SimulatedGuest {
    guest: Queue,
    host: Queue,
    /// When blocks were evicted, as the kernel remembers it for a while.
    shadows: HashMap<u64, u64>,
    pub(super) pages: usize,
    slots: usize,
    /// The machine's memory: its page cache is half of it.
    pub(super) memory: u64,
    by: By,
    /// `None`: nothing is measured.
    times: Option<Times>,
    costs: Costs,
    counted: Counted,
    /// What everything took.
    pub(super) spent: u64,
    worth: OfferRate,
    figures: Figures,
    clock: Duration,
    steps: u64,
    pub(super) put: u64,
    read: u64,
}

impl SimulatedGuest {
    pub(super) fn new(pages: usize, slots: usize) -> Self {
        Self {
            by: By::Law,
            times: None,
            costs: Costs::default(),
            counted: Counted::default(),
            spent: 0,
            guest: Queue::default(),
            host: Queue::default(),
            shadows: HashMap::new(),
            pages,
            slots,
            memory: 2 * u64::try_from(pages).unwrap(),
            worth: OfferRate::default(),
            figures: Figures::default(),
            clock: Duration::ZERO,
            steps: 0,
            put: 0,
            read: 0,
        }
    }

    /// As [`new`](Self::new), with these times.
    pub(super) fn timed(pages: usize, slots: usize, times: Times, by: By) -> Self {
        Self {
            by,
            times: Some(times),
            ..Self::new(pages, slots)
        }
    }

    /// Sets the times from now on.
    pub(super) const fn set_times(&mut self, times: Times) {
        self.times = Some(times);
    }

    pub(super) fn read(&mut self, block: u64) {
        let times = self.times.unwrap_or_default();
        self.spent += times.think;
        if self.guest.has(block) {
            self.guest.push(block);
        } else {
            self.read += 1;
            if self.host.remove(block) {
                self.figures.hits += 1;
                self.spent += times.hit;
                self.counted.hit.blocks += 1;
                self.counted.hit.ns += times.hit;
            } else {
                self.spent += times.miss;
                self.counted.missed.blocks += 1;
                self.counted.missed.ns += times.miss;
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
    pub(super) fn write(&mut self, block: u64) {
        self.spent += self.times.unwrap_or_default().think;
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
        // Twice the page cache in a minute, and a decision every two seconds; sooner until it is known what a put costs.
        let every = match self.times {
            Some(_) if self.costs.put_ns().is_none() => self.memory / 240,
            _ => self.memory / 30,
        };
        if self.steps.is_multiple_of(self.memory / 240) {
            self.clock += Duration::from_millis(250);
        }
        if self.steps.is_multiple_of(every) {
            self.decide();
        }
    }

    fn decide(&mut self) {
        self.costs.update(&self.counted);
        let at = Terms {
            memory: self.memory,
            price: match self.times {
                Some(_) => self.costs.price(),
                None => Price::default(),
            },
            measured: self.costs.measured(),
            clock: self.clock,
        };
        if self.by == By::Law {
            self.worth = decide(self.worth, self.figures, &at);
        }
    }

    fn is_offered(&self, block: u64) -> bool {
        let shift = match self.by {
            By::Law => self.worth.in_kernel(),
            By::All => 0,
            By::Nothing => NOTHING,
        };
        let mixed = block.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        shift < NOTHING && mixed & ((1 << shift) - 1) == 0
    }

    fn offer(&mut self, block: u64) {
        if !self.is_offered(block) {
            self.counted.others += 128 * u64::from(self.worth.in_kernel() < NOTHING);
            return;
        }
        let cost = self.times.unwrap_or_default().put;
        self.put += 1;
        self.spent += cost;
        // The world is small: a page stands for many.
        self.counted.copied += 128;
        self.counted.agent_ns += 128 * cost;
        self.figures.accepted += 1;
        self.host.push(block);
        while self.host.pop_beyond(self.slots).is_some() {
            self.figures.lost += 1;
        }
    }

    /// Runs a part. Returns the put part of evicted pages, and the hit part of reads.
    pub(super) fn part(&mut self, run: impl FnOnce(&mut Self)) -> (f64, f64) {
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
