//! A cap of unmapped page cache.

use justitia_agent::page_cache::Policy;

use crate::machine::loads::{Op, hot, maps, paced, stream, then};
use crate::machine::{MB, Machine, Random};
use crate::{any, seeds};

/// Part of memory, percent. The machine has 1,000 MB.
const PERCENT: f64 = 4.0;
const CAP: u64 = 40 * MB;
/// What the disk reads in two steps of the simulation, pages.
const BEHIND: u64 = 12 * MB;

fn capped(seed: u64) -> Machine {
    let policy = Policy {
        unmapped_max: Some(PERCENT),
        ..Policy::default()
    };
    Machine::new(700, Some(policy), seed)
}

/// Any tenants, and others that map files.
#[test]
fn the_cap_is_held_and_nothing_mapped_is_evicted() {
    for seed in 0..seeds() {
        let mut random = Random(seed.wrapping_mul(1_000_003));
        let mut machine = capped(seed);
        let mut all = Vec::new();
        for _ in 0..1 + random.below(4) {
            all.push(any(&mut machine, &mut random));
        }
        let mapped = 1 + random.below(200);
        machine.run_ops(100, maps(mapped));
        let (mut held, mut steps) = (0, 0);
        for _ in 0..60 {
            machine.run(1);
            steps += 1;
            held += u64::from(machine.unmapped() <= CAP + BEHIND);
        }
        assert!(
            held * 100 >= steps * 95,
            "seed {seed}: held in {held} of {steps}, {all:?}"
        );
        let keeps = machine.tenants.last().unwrap().mapped.pages() / MB;
        assert_eq!(keeps, mapped, "seed {seed}: mapped, {all:?}");
    }
}

/// Below the cap a working set is served before what is read once, whatever the weights, and sets that do not fit are
/// divided by weight.
#[test]
fn below_the_cap_the_cache_is_divided_by_weight_and_use() {
    for seed in 0..seeds() {
        let mut machine = capped(seed);
        machine.add(100, hot(24, 0));
        machine.add(800, then(10.0, paced(0.001, stream()), stream()));
        machine.run(60);
        let cached = machine.cached();
        assert!(cached[0] >= 22, "seed {seed}: {cached:?}");

        let mut machine = capped(seed);
        for weight in [100, 300] {
            machine.add(weight, hot(60, 0));
        }
        machine.run(60);
        let cached = machine.cached();
        assert!(
            (2 * cached[0]..=4 * cached[0]).contains(&cached[1]),
            "seed {seed}: {cached:?}"
        );
    }
}

/// A cap above what memory allows is no change.
#[test]
fn without_need_the_cap_does_nothing() {
    let run = |percent| {
        let policy = Policy {
            unmapped_max: percent,
            ..Policy::default()
        };
        let mut machine = Machine::new(700, Some(policy), 1);
        machine.add(100, hot(400, 0));
        machine.run_ops(100, maps(100));
        machine.run_ops(100, |now, random: &mut Random| {
            (now < 30.0).then(|| Op::Read {
                block: random.next(),
                pages: 16,
            })
        });
        machine.run(60);
        machine.cached()
    };
    assert_eq!(run(None), run(Some(100.0)));
}
