//! The law over simulated hosts: `SEEDS` of them, 30 by default.
//!
//! What the guests allocate and read together uses up the headroom in more than a second, and what they cannot give back
//! fits. Then nothing has to be swapped, and nothing may be.

#![expect(clippy::unwrap_used, clippy::cast_precision_loss, reason = "a test")]

mod simulation {
    pub(crate) mod guest;
    pub(crate) mod world;
}

use fastrand::Rng;
use justitia_host::law::Order;

use simulation::guest::{Guest, Kind, Load, MIB, TICK_MS};
use simulation::world::{Control, World, any_world, change_load};

const HONEST: [Kind; 4] = [
    Kind::Honest { guards: false },
    Kind::Honest { guards: true },
    Kind::Honest { guards: false },
    Kind::Plain,
];

fn seeds() -> std::ops::Range<u64> {
    let seeds = std::env::var("SEEDS").ok();
    0..seeds.map_or(30, |seeds| seeds.parse().unwrap())
}

/// What a controller costs.
#[derive(Debug, Default)]
struct Cost {
    ooms: u64,
    swapped: u64,
    puffs: u64,
    refaulted: u64,
    /// Working sets that were not there, MiB, summed over the ticks.
    missing: f64,
    ticks: u64,
}

/// So many random steps of the load, each of 1 to 30 s. After each tick the world is looked at.
fn random_loads(
    seed: u64,
    kinds: &[Kind],
    control: Control,
    steps: usize,
    mut look: impl FnMut(&World),
) -> Cost {
    let mut rng = Rng::with_seed(seed);
    let mut world = any_world(&mut rng, kinds, control);
    let mut cost = Cost::default();
    for _ in 0..steps {
        change_load(&mut world, &mut rng);
        for _ in 0..rng.u64(4..120) {
            world.step();
            look(&world);
            for guest in &world.guests {
                let set = guest.load.working_set;
                cost.missing += (set - guest.hot.min(set)) as f64 / MIB as f64;
            }
            cost.ticks += 1;
        }
    }
    cost.ooms = world.guests.iter().map(|guest| guest.ooms).sum();
    cost.puffs = world.guests.iter().map(|guest| guest.puffs).sum();
    cost.refaulted = world.guests.iter().map(|guest| guest.refaulted).sum();
    cost.swapped = world.swapped;
    cost
}

/// No order takes a VM below what it is entitled to; and while the host is not about to swap, each is entitled to its
/// working set or to its share.
fn keeps_entitlements(world: &World) {
    for (vm, place) in world.seen.iter().zip(&world.plan.places) {
        let order = world.plan.decisions.iter().find(|one| one.vm == vm.id);
        let left = match order.map(|decision| decision.order) {
            Some(Order::Reclaim(bytes)) => vm.resident.saturating_sub(bytes),
            Some(Order::Balloon(target)) if target < vm.ram => target,
            _ => u64::MAX,
        };
        assert!(
            left >= place.entitled,
            "{} {vm:?} {place:?} {order:?}",
            world.now
        );
        let due = place.working_set.min(place.share);
        let short = due.saturating_sub(place.entitled);
        assert!(
            world.plan.urgent || short <= 1,
            "{} {vm:?} {place:?}",
            world.now
        );
    }
}

#[test]
fn no_guest_is_killed_and_no_host_swaps_over_a_thousand_steps() {
    let cost = random_loads(7, &HONEST, Control::ours(), 1000, keeps_entitlements);
    assert_eq!((cost.ooms, cost.puffs, cost.swapped), (0, 0, 0));
}

/// A guest that reads its working set all the time.
fn reader(kind: Kind, weight: u64, ram: u64, working_set: u64) -> Guest {
    let load = Load {
        anonymous: 64 * MIB,
        working_set,
        reads: 150 * MIB,
        stream: 0,
    };
    Guest::new(kind, weight, ram, load)
}

#[test]
fn memory_follows_a_weight_within_ten_seconds() {
    for guards in [false, true] {
        for plain in [false, true] {
            let kind = if plain {
                Kind::Plain
            } else {
                Kind::Honest { guards }
            };
            let guests = vec![
                reader(kind, 100, 2048 * MIB, 1536 * MIB),
                reader(kind, 100, 2048 * MIB, 1536 * MIB),
            ];
            let mut world = World::new(2048 * MIB, guests, Control::ours());
            world.run(120_000);
            let before = world.guests[0].resident();
            world.guests[0].weight = 300;
            let mut ms = 0;
            while world.guests[0].resident() < before + 256 * MIB && ms < 60_000 {
                world.step();
                ms += TICK_MS;
            }
            assert!(ms <= 10_000, "guards {guards}, plain {plain}: {ms} ms");
            assert_eq!(world.swapped, 0);
        }
    }
}

#[test]
fn what_was_given_is_back_within_two_seconds_of_need() {
    for seed in seeds() {
        let mut rng = Rng::with_seed(seed);
        let kinds = [
            Kind::Plain,
            Kind::Honest { guards: true },
            Kind::Plain,
            Kind::Liar,
        ];
        let mut world = any_world(&mut rng, &kinds, Control::ours());
        for _ in 0..10 {
            change_load(&mut world, &mut rng);
            world.run(10_000);
        }
        let most = |world: &World| {
            let balloons = world.guests.iter().enumerate();
            balloons
                .max_by_key(|(_, guest)| guest.balloon)
                .map(|(i, guest)| (i, guest.balloon))
        };
        let Some((index, balloon)) = most(&world).filter(|(_, balloon)| *balloon > 0) else {
            continue;
        };
        let guest = &mut world.guests[index];
        // It wants all that it has, and a part of the balloon.
        guest.load.anonymous = guest.ram - balloon / 2 - guest.kernel - guest.ram / 32;
        guest.allocates = 400 * MIB;
        let (mut ms, mut in_need) = (0, 0);
        while world.guests[index].balloon > 0 && ms < 30_000 {
            world.step();
            ms += TICK_MS;
            let guest = &world.guests[index];
            in_need += if guest.available() < guest.ram / 32 {
                TICK_MS
            } else {
                0
            };
        }
        assert!(in_need <= 2000, "seed {seed}: {in_need} ms");
        assert_eq!(world.guests[index].ooms, 0, "seed {seed}");
    }
}

#[test]
fn a_steady_load_is_left_alone() {
    for seed in seeds() {
        let mut rng = Rng::with_seed(seed);
        let mut world = any_world(&mut rng, &HONEST, Control::ours());
        // Everything that is wanted fits; what streams by has to be taken.
        let count = world.guests.len() as u64;
        let room = (world.total * 7 / 10) / count;
        for guest in &mut world.guests {
            guest.load.anonymous = room / 3;
            guest.load.working_set = room / 4;
            guest.load.reads = 20 * MIB;
            guest.load.stream = 0;
        }
        world.run(180_000);
        let orders = world.orders;
        let held: Vec<u64> = world.guests.iter().map(Guest::resident).collect();
        let refaulted: u64 = world.guests.iter().map(|guest| guest.refaulted).sum();
        for _ in 0..120_000 / TICK_MS {
            world.step();
            for (guest, held) in world.guests.iter().zip(&held) {
                let moved = guest.resident().abs_diff(*held);
                assert!(moved <= 32 * MIB, "seed {seed}: {} MiB", moved / MIB);
            }
        }
        let again: u64 = world.guests.iter().map(|guest| guest.refaulted).sum();
        assert!(
            world.orders - orders <= 2,
            "seed {seed}: {}",
            world.orders - orders
        );
        assert!(again - refaulted < 16 * MIB, "seed {seed}");
    }
}

/// What the others lack in the mean of what they need, up to their share, when the last guest is of this kind.
fn beside(seed: u64, last: Kind, fast: bool) -> u64 {
    let mut rng = Rng::with_seed(seed);
    let honest = Kind::Honest { guards: rng.bool() };
    let ram = 1536 * MIB;
    let mut guests: Vec<Guest> = (0..3)
        .map(|_| {
            let weight = [50, 100, 200][rng.usize(0..3)];
            reader(honest, weight, ram, rng.u64(200..900) * MIB)
        })
        .collect();
    guests[2].kind = last;
    guests[2].load.working_set = 300 * MIB;
    let mut world = World::new(3 * ram * 2 / 3, guests, Control::ours());
    // Three readers and a stream: together as fast as the headroom is meant for, or three times as fast.
    let rate = world.disk() * 3 / 4;
    let rate = if fast { 3 * rate } else { rate };
    for guest in &mut world.guests {
        guest.load.reads = rate;
    }
    world.guests[2].load.stream = rate;
    world.run(180_000);
    let (mut missing, ticks) = (0, 400);
    for _ in 0..ticks {
        world.step();
        for (guest, place) in world.guests.iter().zip(&world.plan.places).take(2) {
            let due = guest.need().min(place.share);
            missing += due.saturating_sub(guest.resident() - guest.qemu) / ticks;
        }
    }
    assert_eq!(world.swapped, 0, "seed {seed} {last:?}, fast: {fast}");
    missing
}

#[test]
fn what_a_liar_gains_is_bounded_by_its_weight() {
    for (seed, fast) in seeds().flat_map(|seed| [(seed, false), (seed, true)]) {
        let honest = beside(seed, Kind::Honest { guards: false }, fast);
        for kind in [Kind::Liar, Kind::Boaster, Kind::Silent, Kind::Plain] {
            let missing = beside(seed, kind, fast);
            assert!(
                missing <= honest + 48 * MIB,
                "seed {seed} {kind:?}, fast: {fast}"
            );
        }
        // Of these nothing can be taken: the host does not swap for them.
        beside(seed, Kind::Hostile, fast);
        beside(seed, Kind::Sealed, fast);
    }
}

/// With `--nocapture` a table.
#[test]
fn no_guest_is_killed_and_no_host_swaps_over_random_loads() {
    let mut others_swap = 0;
    println!(
        "controller           guest OOMs  out of puff, ticks  hosts that swap  most, MiB  read again, GiB  working sets missing, MiB"
    );
    for (name, control) in [
        ("none", Control::Nobody),
        ("static balloon", Control::Static),
        ("balloon by headroom", Control::Headroom),
        ("ours", Control::ours()),
    ] {
        let ours = matches!(control, Control::Ours(_));
        let (mut sum, mut swap) = (Cost::default(), 0);
        for seed in seeds() {
            let look = |world: &World| {
                if ours {
                    keeps_entitlements(world)
                }
            };
            let cost = random_loads(seed, &HONEST, control.clone(), 40, look);
            if ours {
                assert_eq!(
                    (cost.ooms, cost.puffs, cost.swapped),
                    (0, 0, 0),
                    "seed {seed}"
                );
            }
            swap += u64::from(cost.swapped > 0);
            sum.ooms += cost.ooms;
            sum.puffs += cost.puffs;
            sum.swapped = sum.swapped.max(cost.swapped);
            sum.refaulted += cost.refaulted;
            sum.missing += cost.missing;
            sum.ticks += cost.ticks;
        }
        println!(
            "{name:20} {:10} {:19} {swap:16} {:10} {:16.1} {:26.0}",
            sum.ooms,
            sum.puffs,
            sum.swapped / MIB,
            (sum.refaulted / MIB) as f64 / 1024.0,
            sum.missing / sum.ticks as f64,
        );
        others_swap += if ours { 0 } else { swap };
    }
    assert!(others_swap > 0, "the loads are hard");
}
