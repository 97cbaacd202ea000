//! Tenants' reads with the cache divided by working sets, against those with the kernel alone, in simulation. `SEEDS=300`
//! runs more than a few seeds.

#![expect(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "tests say what is wrong by failing"
)]

mod capped;
mod machine;
mod mixtures;
mod rest;

use justitia_agent::page_cache::Policy;
use machine::loads::{hot, once, paced, round, skewed, stream, then, times};
use machine::{Machine, Random};

/// Page cache of the machine, MB.
const SIZE: u64 = 700;
const SECONDS: u64 = 120;
/// A tenant that uses no more than its share keeps at least this fraction of its reads with the kernel alone.
const KEEPS: f64 = 0.97;

fn seeds() -> u64 {
    std::env::var("SEEDS").map_or(4, |seeds| seeds.parse().unwrap())
}

/// Runs the same tenants on the kernel alone, and with the agent.
fn both(seed: u64, build: impl Fn(&mut Machine)) -> [Machine; 2] {
    [None, Some(Policy::default())].map(|policy| {
        let mut machine = Machine::new(SIZE, policy, seed);
        build(&mut machine);
        machine.run(SECONDS);
        machine
    })
}

/// What tenant `i` got done with the agent, as a fraction of that with the kernel alone.
fn kept(stock: &Machine, ours: &Machine, i: usize) -> f64 {
    ours.tenants[i].done as f64 / stock.tenants[i].done.max(1) as f64
}

#[test]
fn a_working_set_loses_nothing_to_data_read_once() {
    type Build = fn(&mut Machine);
    let cases: [(&str, Build); 6] = [
        ("a stream of the same weight", |machine| {
            machine.add(100, hot(400, 0));
            machine.add(100, stream());
        }),
        ("a stream of eight times the weight", |machine| {
            machine.add(100, hot(400, 0));
            machine.add(800, stream());
        }),
        ("a neighbour that read once", |machine| {
            machine.add(100, then(30.0, paced(0.001, stream()), hot(400, 0)));
            machine.add(100, once(450));
        }),
        ("two streams", |machine| {
            machine.add(100, skewed(300, 0));
            machine.add(400, stream());
            machine.add(400, paced(200.0, stream()));
        }),
        (
            "a loop over all memory, to look as if it were all of use",
            |machine| {
                machine.add(100, hot(300, 0));
                machine.add(100, round(680, 0));
            },
        ),
        ("a loop that fits beside it", |machine| {
            machine.add(100, hot(300, 0));
            machine.add(300, round(300, 0));
            machine.add(300, stream());
        }),
    ];
    for (name, build) in cases {
        for seed in 0..seeds() {
            let [stock, ours] = both(seed, build);
            let kept = kept(&stock, &ours, 0);
            assert!(kept >= KEEPS, "{name}, seed {seed}: {kept:.3} of its reads");
        }
    }
}

#[test]
fn working_sets_that_do_not_all_fit_are_divided_by_weight() {
    let weights = [100, 200, 400, 800];
    for seed in 0..seeds() {
        let [_, ours] = both(seed, |machine| {
            for weight in weights {
                machine.add(weight, hot(576, 0));
            }
        });
        let cached = ours.cached();
        let all: u64 = cached.iter().sum();
        for (cached, weight) in cached.iter().zip(weights) {
            let due = all as f64 * weight as f64 / 1500.0;
            let off = (*cached as f64 - due).abs() / due;
            assert!(off < 0.05, "seed {seed}: {cached} MB of {due:.0}");
        }
    }
}

/// Reuse says that data is useful, not when it will be.
#[test]
fn a_set_in_use_has_the_place_of_one_that_rests_until_that_is_used_again() {
    let rest = || paced(0.001, stream());
    for seed in 0..seeds() {
        let [_, rested] = both(seed, |machine| {
            machine.add(100, then(30.0, rest(), hot(400, 0)));
            machine.add(100, times(2, 450));
        });
        assert!(
            rested.cached()[0] >= 388,
            "seed {seed}: {:?}",
            rested.cached()
        );
        let [_, back] = both(seed, |machine| {
            machine.add(100, then(30.0, rest(), hot(400, 0)));
            machine.add(
                100,
                then(15.0, hot(400, 0), then(80.0, rest(), hot(400, 0))),
            );
        });
        let cached = back.cached();
        let equal = cached.iter().all(|cached| (320..=360).contains(cached));
        assert!(equal, "seed {seed}: {cached:?}");
    }
}

/// Adds a random tenant; returns its description, its weight and its working set in MB.
fn any(machine: &mut Machine, random: &mut Random) -> (String, u64, u64) {
    let weight = [50, 100, 100, 100, 200, 400, 800][random.below(7) as usize];
    let size = 20 + random.below(600);
    let rate = 20.0 * 2_f64.powi(random.below(8) as i32);
    let (name, used) = match random.below(9) {
        0 | 1 => {
            machine.add(weight, hot(size, 0));
            (format!("hot {size}"), size)
        }
        2 => {
            machine.add(weight, skewed(size, 0));
            (format!("skewed {size}"), size)
        }
        3 => {
            machine.add(weight, stream());
            ("stream".to_owned(), 0)
        }
        4 => {
            machine.add(weight, once(size));
            (format!("once {size}"), 0)
        }
        5 => {
            machine.add(weight, round(size, 0));
            (format!("round {size}"), size)
        }
        6 => {
            machine.add(weight, paced(rate, hot(size, 0)));
            (format!("hot {size} at {rate}/s"), size)
        }
        7 => {
            machine.add(weight, paced(rate, stream()));
            (format!("stream at {rate}/s"), 0)
        }
        _ => {
            machine.add(weight, then(30.0, stream(), hot(size, 0)));
            (format!("stream, then hot {size}"), size)
        }
    };
    (name, weight, used)
}

#[test]
fn within_its_share_no_tenant_reads_less_than_with_the_kernel_alone() {
    for seed in 0..seeds() {
        let tenants = std::cell::RefCell::new(Vec::new());
        let [stock, ours] = both(seed, |machine| {
            let mut random = Random(seed.wrapping_mul(1_000_003));
            let count = 2 + random.below(4);
            *tenants.borrow_mut() = (0..count).map(|_| any(machine, &mut random)).collect();
        });
        let tenants = tenants.into_inner();
        let weights: u64 = tenants.iter().map(|(_, weight, _)| weight).sum();
        for (i, (name, weight, used)) in tenants.iter().enumerate() {
            let kept = kept(&stock, &ours, i);
            let above = *used == 0 || used * weights > (SIZE - 20) * weight;
            assert!(
                above || kept >= KEEPS,
                "seed {seed}, {name}, weight {weight}: {kept:.3} of its reads, cached {:?} and {:?}, working sets {:?}, of {tenants:?}",
                stock.cached(),
                ours.cached(),
                ours.working_sets()
            );
        }
    }
}
