//! Tenants that rest for long, and those that begin meanwhile.

use justitia_agent::page_cache::Policy;

use crate::machine::loads::{hot, paced, round, stream, then};
use crate::machine::{Machine, Random};
use crate::{KEEPS, SIZE, kept, seeds};

fn nothing() -> impl FnMut(f64, &mut Random) -> Option<u64> + 'static {
    |_, _| None
}

/// On the kernel alone, and with the agent.
fn both(seed: u64, seconds: u64, build: impl Fn(&mut Machine)) -> [Machine; 2] {
    [None, Some(Policy::default())].map(|policy| {
        let mut machine = Machine::new(SIZE, policy, seed);
        build(&mut machine);
        machine.run(seconds);
        machine
    })
}

/// A database by day, and a backup by night: half an hour of it.
#[test]
fn a_set_that_rests_beside_a_backup_is_there_afterwards() {
    for (weight, set) in [(100, 300), (500, 500)] {
        for seed in 0..seeds() {
            let [stock, ours] = both(seed, 2000, |machine| {
                machine.add(weight, then(60.0, hot(set, 0), nothing()));
                machine.add(100, then(70.0, nothing(), paced(300.0, stream())));
            });
            let (stock, ours) = (stock.cached(), ours.cached());
            assert!(
                ours[0] >= stock[0].min(set) * 97 / 100,
                "seed {seed}: {ours:?} MB, the kernel alone {stock:?}"
            );
        }
    }
}

/// A service starts beside a set that rests, reads its files for the first time, and then uses them.
#[test]
fn a_service_that_starts_has_its_share_beside_a_set_that_rests() {
    for size in [150, 300] {
        for seed in 0..seeds() {
            let [stock, ours] = both(seed, 200, |machine| {
                machine.add(100, then(60.0, hot(500, 0), nothing()));
                machine.add(100, then(70.0, nothing(), round(size, 0)));
            });
            let kept = kept(&stock, &ours, 1);
            assert!(
                kept >= KEEPS,
                "{size} MB, seed {seed}: {kept:.3}; cached {:?} and {:?} MB",
                stock.cached(),
                ours.cached()
            );
        }
    }
}
