//! A host with its guests, and the controllers that are compared.

use std::collections::BTreeMap;

use fastrand::Rng;
use justitia_host::law::{Host, Law, Order, Plan, Vm};

use super::guest::{Guest, Kind, Load, MIB, TICK_MS};

/// Who moves memory between the guests.
#[derive(Clone, Debug)]
pub(crate) enum Control {
    Nobody,
    /// Each guest gets its share by weight once.
    Static,
    /// Every 10 s balloons grow or shrink so that the host is used to 80 %, as Proxmox VE's auto-ballooning does
    /// (`PVE::AutoBalloon`): by weight, at most 100 MiB a VM, never below a quarter of its memory.
    Headroom,
    Ours(Box<Law>),
}

impl Control {
    pub(crate) fn ours() -> Self {
        Self::Ours(Box::default())
    }
}

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) now: u64,
    pub(crate) total: u64,
    /// What the host's own programs use.
    pub(crate) other: u64,
    pub(crate) guests: Vec<Guest>,
    pub(crate) control: Control,
    /// What was swapped out by the host.
    pub(crate) swapped: u64,
    /// Requests on their way: bytes, when the guest has done it.
    requests: BTreeMap<usize, (u64, u64)>,
    /// The last plan, and the VMs that it was made of.
    pub(crate) plan: Plan,
    pub(crate) seen: Vec<Vm>,
    pub(crate) orders: u64,
}

impl World {
    pub(crate) fn new(total: u64, guests: Vec<Guest>, control: Control) -> Self {
        Self {
            now: 0,
            total,
            other: total / 20,
            guests,
            control,
            swapped: 0,
            requests: BTreeMap::new(),
            plan: Plan::default(),
            seen: Vec::new(),
            orders: 0,
        }
    }

    pub(crate) fn headroom(&self) -> u64 {
        self.total / 10
    }

    /// What a guest may read in a second: all of them read so fast that the headroom is gone in 3 s.
    pub(crate) fn disk(&self) -> u64 {
        self.headroom() / 3 / self.guests.len() as u64
    }

    pub(crate) fn available(&self) -> u64 {
        let held: u64 = self.guests.iter().map(Guest::resident).sum();
        self.total.saturating_sub(self.other + held)
    }

    pub(crate) fn step(&mut self) {
        self.now += TICK_MS;
        for guest in &mut self.guests {
            guest.step();
        }
        let held: u64 = self.guests.iter().map(Guest::resident).sum();
        let needs = self.other + held;
        self.swapped = self.swapped.max(needs.saturating_sub(self.total));
        let now = self.now;
        match self.control.clone() {
            Control::Nobody => {}
            Control::Static if now == TICK_MS => self.static_balloons(),
            Control::Static => {}
            Control::Headroom if now.is_multiple_of(10_000) => self.balloons_by_headroom(),
            Control::Headroom => {}
            Control::Ours(law) => self.by_law(*law),
        }
    }

    pub(crate) fn run(&mut self, ms: u64) {
        for _ in 0..ms / TICK_MS {
            self.step();
        }
    }

    fn by_law(&mut self, mut law: Law) {
        let now = self.now;
        let done: Vec<usize> = self
            .requests
            .iter()
            .filter(|(_, r)| r.1 <= now)
            .map(|(i, _)| *i)
            .collect();
        for index in done {
            let (bytes, _) = self.requests.remove(&index).unwrap();
            if let Some(given) = self.guests[index].asked(bytes) {
                law.answered(now, index as u64, given);
            }
        }
        let host = Host {
            available: self.available(),
            headroom: self.headroom(),
            over: 0,
        };
        let seen = self.guests.iter_mut().enumerate();
        self.seen = seen
            .map(|(i, guest)| guest.seen_by_host(now, i as u64))
            .collect();
        self.plan = law.decide(now, host, &self.seen);
        for decision in &self.plan.decisions {
            let index = usize::try_from(decision.vm).unwrap();
            self.orders += 1;
            match decision.order {
                Order::Reclaim(bytes) => {
                    self.requests.insert(index, (bytes, now + 500));
                }
                Order::Balloon(target) => {
                    let guest = &mut self.guests[index];
                    guest.balloon_target = guest.ram - target;
                }
            }
        }
        self.control = Control::Ours(Box::new(law));
    }

    fn static_balloons(&mut self) {
        let weights: u64 = self.guests.iter().map(|guest| guest.weight).sum();
        let capacity = self.total - self.other - self.headroom();
        for guest in &mut self.guests {
            let share = (capacity * guest.weight / weights).min(guest.ram);
            guest.balloon_target = guest.ram - share;
        }
    }

    fn balloons_by_headroom(&mut self) {
        let goal = self.total * 8 / 10;
        let used = self.total - self.available();
        let weights: u64 = self.guests.iter().map(|guest| guest.weight).sum();
        let each = |by: u64, part: u64| (by * part / weights).min(100 * MIB);
        for guest in &mut self.guests {
            if used > goal {
                // The lighter, the more.
                let by = each(used - goal, weights - guest.weight.min(weights / 2));
                guest.balloon_target = (guest.balloon_target + by).min(guest.ram * 3 / 4);
            } else {
                let by = each(goal - used, guest.weight);
                guest.balloon_target = guest.balloon_target.saturating_sub(by);
            }
        }
    }
}

/// The memory that is taken for granted: what cannot be given back fits, with the headroom.
pub(crate) fn fits(world: &World, index: usize, load: &Load) -> bool {
    let all = world.guests.iter().enumerate();
    let in_use: u64 = all
        .map(|(i, guest)| {
            let anonymous = if i == index {
                load.anonymous
            } else {
                guest.load.anonymous
            };
            guest.qemu + guest.kernel + anonymous
        })
        .sum();
    in_use + world.other + 2 * world.headroom() <= world.total
}

/// A load for a guest of this size, which may read so much a second.
pub(crate) fn any_load(rng: &mut Rng, ram: u64, disk: u64) -> Load {
    let mut rate = |part: u64| [0, disk / 8, disk / 2, disk][rng.usize(0..4)] / part;
    let (reads, stream) = (rate(1), rate(4));
    Load {
        anonymous: rng.u64(ram / 10..ram * 7 / 10),
        working_set: rng.u64(ram / 16..ram / 2),
        reads,
        stream,
    }
}

/// One more step of the load: one guest does something else.
pub(crate) fn change_load(world: &mut World, rng: &mut Rng) {
    let index = rng.usize(0..world.guests.len());
    let ram = world.guests[index].ram;
    for _ in 0..20 {
        let load = any_load(rng, ram, world.disk());
        if fits(world, index, &load) {
            world.guests[index].load = load;
            return;
        }
    }
}

/// A host that is overcommitted, with guests of these kinds in turn.
pub(crate) fn any_world(rng: &mut Rng, kinds: &[Kind], control: Control) -> World {
    let count = rng.usize(2..6);
    let mut guests: Vec<Guest> = (0..count)
        .map(|i| {
            let ram = rng.u64(4..17) * 128 * MIB;
            let weight = [50, 100, 100, 200, 400][rng.usize(0..5)];
            let load = Load {
                anonymous: ram / 10,
                ..any_load(rng, ram, ram / 30)
            };
            let mut guest = Guest::new(kinds[i % kinds.len()], weight, ram, load);
            guest.estimate = rng.u64(80..121);
            guest
        })
        .collect();
    rng.shuffle(&mut guests);
    let rams: u64 = guests.iter().map(|guest| guest.ram).sum();
    let mut world = World::new(rams * 2 / 3, guests, control);
    let allocates = world.disk();
    for guest in &mut world.guests {
        guest.allocates = allocates;
    }
    world
}
