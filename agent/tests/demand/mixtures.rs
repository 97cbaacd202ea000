//! What hosts have beside clean file pages: slab, anonymous memory with and without swap, small random reads, limits,
//! minimums, groups, an agent that starts late.

use crate::machine::loads::{
    Op, cold, crawl, heap, hog, hot, paced, round, skewed, sparse, stream, then,
};
use crate::machine::{MB, Machine, Random};
use crate::{KEEPS, SIZE, both, kept, seeds};

/// A load that reads blocks of 64 KiB.
fn reads(
    mut load: impl FnMut(f64, &mut Random) -> Option<u64> + 'static,
) -> impl FnMut(f64, &mut Random) -> Option<Op> + 'static {
    move |now, random| load(now, random).map(|block| Op::Read { block, pages: 16 })
}

/// The mixture with the agent does not cost these tenants more than the bound, for all seeds.
fn never_worse(name: &str, tenants: &[usize], build: impl Fn(&mut Machine)) {
    for seed in 0..seeds() {
        let [stock, ours] = both(seed, &build);
        for i in tenants {
            let kept = kept(&stock, &ours, *i);
            assert!(
                kept >= KEEPS,
                "{name}, seed {seed}, tenant {i}: {kept:.3}; cached {:?} and {:?} MB, in swap {:?} and {:?}, working sets {:?}",
                stock.cached(),
                ours.cached(),
                stock.swapped(),
                ours.swapped(),
                ours.working_sets(),
            );
        }
    }
}

#[test]
fn a_crawler_takes_nothing_from_a_working_set() {
    never_worse("a crawler", &[0], |machine| {
        machine.add(100, hot(400, 0));
        machine.run_ops(100, then(20.0, |_, _: &mut Random| None, crawl(4000.0)));
    });
    never_worse("a crawler and a stream", &[0], |machine| {
        machine.add(100, hot(400, 0));
        machine.run_ops(100, crawl(2000.0));
        machine.add(100, stream());
    });
}

#[test]
fn small_reads_here_and_there_are_no_large_working_set() {
    never_worse("4 KiB of each 64 KiB of 1 GiB", &[0, 1], |machine| {
        machine.run_ops(100, paced(2000.0, sparse(16_384)));
        machine.add(100, hot(520, 0));
        machine.add(100, then(30.0, |_, _: &mut Random| None, stream()));
    });
    never_worse("4 KiB here and there of 40 GiB", &[1], |machine| {
        machine.run_ops(100, sparse(655_360));
        machine.add(100, hot(340, 0));
        machine.add(100, stream());
    });
}

#[test]
fn cold_anonymous_memory_makes_room_for_files_in_use() {
    // Each is above its share, and the kernel gives more to one than to another: what all get done counts.
    for seed in 0..seeds() {
        let [stock, ours] = both(seed, |machine| {
            machine.swap_on(500);
            machine.run_ops(100, cold(180));
            for _ in 0..3 {
                machine.add(100, hot(300, 0));
            }
        });
        let done = |machine: &Machine| machine.tenants[1..].iter().map(|t| t.done).sum::<u64>();
        let kept = done(&ours) as f64 / done(&stock) as f64;
        assert!(
            kept >= KEEPS,
            "seed {seed}: {kept:.3}; in swap {:?}, cached {:?} and {:?}",
            ours.swapped(),
            stock.cached(),
            ours.cached()
        );
    }
    for seed in 0..seeds() {
        let [stock, ours] = both(seed, |machine| {
            machine.swap_on(500);
            machine.run_ops(100, cold(180));
            machine.add(100, hot(600, 0));
        });
        assert!(
            stock.swapped()[0] > 50 && 10 * ours.swapped()[0] >= 9 * stock.swapped()[0],
            "seed {seed}: {:?}, the kernel {:?}",
            ours.swapped(),
            stock.swapped()
        );
    }
}

#[test]
fn anonymous_memory_in_use_stays() {
    for rate in [100.0, 1000.0] {
        never_worse("a heap in use", &[0], |machine| {
            machine.swap_on(500);
            machine.run_ops(100, paced(rate, heap(200)));
            for _ in 0..3 {
                machine.add(100, hot(300, 0));
            }
        });
    }
}

#[test]
fn data_that_is_read_once_swaps_less_out_than_with_the_kernel_alone() {
    let mut sums = [0, 0];
    for seed in 0..seeds() {
        let machines = both(seed, |machine| {
            machine.swap_on(500);
            machine.run_ops(100, cold(180));
            machine.add(100, hot(300, 0));
            machine.add(100, stream());
        });
        let [kernel, ours] = machines.map(|machine| machine.swapped()[0]);
        // But for a request of 4 MiB.
        assert!(
            ours <= kernel + 4,
            "seed {seed}: {ours}, the kernel {kernel} MB"
        );
        sums = [sums[0] + kernel, sums[1] + ours];
    }
    // Nothing in most: in some the working set had lost pages before it was known, and they came back.
    assert!(2 * sums[1] <= sums[0], "{sums:?} MB");
}

/// A scrub that runs again and again: more memory would not keep what it reads.
#[test]
fn a_loop_over_more_than_memory_swaps_nothing_out() {
    for seed in 0..seeds() {
        let machines = both(seed, |machine| {
            machine.swap_on(500);
            machine.run_ops(100, cold(180));
            machine.add(100, round(2000, 0));
        });
        let [kernel, ours] = machines.map(|machine| machine.swapped()[0]);
        assert!(
            ours <= kernel + 4,
            "seed {seed}: {ours}, the kernel {kernel} MB"
        );
    }
}

#[test]
fn memory_that_grows_takes_from_data_read_once_first() {
    never_worse("a heap that grows", &[1], |machine| {
        machine.run_ops(100, hog(5.0, 250, f64::INFINITY));
        machine.add(100, hot(300, 0));
        machine.add(100, stream());
    });
    never_worse("a hog that ends", &[1], |machine| {
        machine.run_ops(100, hog(100.0, 400, 60.0));
        machine.add(100, hot(500, 0));
    });
}

#[test]
fn a_tenant_demands_no_more_than_its_limit() {
    for seed in 0..seeds() {
        let [_, ours] = both(seed, |machine| {
            machine.run_ops(800, reads(stream())).max = 64 * MB;
            machine.add(300, hot(600, 0));
            machine.add(100, hot(600, 0));
        });
        let cached = ours.cached();
        let ratio = cached[1] as f64 / cached[2] as f64;
        assert!((2.8..3.2).contains(&ratio), "seed {seed}: {cached:?} MB");
    }
}

#[test]
fn nothing_is_taken_below_a_minimum() {
    let idle = || reads(then(10.0, round(300, 0), |_, _: &mut Random| None));
    for seed in 0..seeds() {
        let [_, ours] = both(seed, |machine| {
            machine.run_ops(100, idle()).min = 320 * MB;
            machine.add(900, hot(600, 0));
        });
        assert!(ours.cached()[0] >= 295, "seed {seed}: {:?}", ours.cached());
        let [_, ours] = both(seed, |machine| {
            let slice = machine.group(100);
            machine.groups[slice].min = 320 * MB;
            for half in 0..2 {
                let part = then(10.0, round(150, half << 20), |_, _: &mut Random| None);
                machine.run_ops(100, reads(part)).group = Some(slice);
            }
            machine.add(900, hot(600, 0));
        });
        let cached = ours.cached();
        assert!(cached[0] + cached[1] >= 295, "seed {seed}: {cached:?}");
    }
}

#[test]
fn a_start_costs_nobody_its_pages() {
    for rate in [600.0, 60.0] {
        never_worse("an agent that starts beside a stream", &[0], |machine| {
            machine.agent_from = 400;
            machine.add(100, paced(rate, hot(400, 0)));
            machine.add(800, stream());
        });
    }
    never_worse("beside a stream that began before", &[0], |machine| {
        machine.agent_from = 400;
        machine.add(100, then(5.0, |_, _: &mut Random| None, hot(400, 0)));
        machine.add(100, stream());
    });
}

/// Adds a tenant of any kind; returns what it is, its weight, and its working set of file pages in MB.
fn any(machine: &mut Machine, random: &mut Random) -> (String, u64, u64) {
    let weight = [50, 100, 100, 100, 200, 400, 800][random.below(7) as usize];
    let size = 20 + random.below(400);
    let rate = 20.0 * 2_f64.powi(random.below(8) as i32);
    let (name, used) = match random.below(10) {
        0 | 1 => {
            machine.add(weight, hot(size, 0));
            (format!("hot {size}"), size)
        }
        2 => {
            machine.add(weight, skewed(size, 0));
            (format!("skewed {size}"), size)
        }
        3 => {
            machine.add(weight, paced(rate, stream()));
            (format!("stream at {rate}/s"), 0)
        }
        4 => {
            machine.run_ops(weight, crawl(20.0 * rate));
            (format!("crawler, {} pages/s", 20.0 * rate), 0)
        }
        5 => {
            machine.run_ops(weight, paced(rate, sparse(size * 256)));
            (format!("sparse {size} at {rate}/s"), size)
        }
        6 => {
            machine.run_ops(weight, cold(size / 4));
            (format!("cold {}", size / 4), 0)
        }
        7 => {
            machine.run_ops(weight, paced(rate, heap(size / 4)));
            (format!("heap {} at {rate}/s", size / 4), 0)
        }
        8 => {
            machine.run_ops(weight, hog(rate / 40.0, size / 3, 90.0));
            (format!("hog {} at {} MB/s", size / 3, rate / 40.0), 0)
        }
        _ => {
            let max = size / 2 + 10;
            let load = reads(paced(rate, hot(size, 0)));
            machine.run_ops(weight, load).max = max * MB;
            (
                format!("hot {size} at {rate}/s within {max}"),
                max.min(size),
            )
        }
    };
    (name, weight, used)
}

#[test]
fn in_no_mixture_is_a_tenant_within_its_share_worse_off_than_with_the_kernel_alone() {
    for seed in 0..seeds() {
        let tenants = std::cell::RefCell::new(Vec::new());
        let [stock, ours] = both(seed, |machine| {
            let mut random = Random(seed.wrapping_mul(7_000_003));
            if random.below(2) == 0 {
                machine.swap_on(500);
            }
            if random.below(4) == 0 {
                machine.agent_from = random.below(600);
            }
            let count = 2 + random.below(4);
            *tenants.borrow_mut() = (0..count).map(|_| any(machine, &mut random)).collect();
        });
        let tenants = tenants.into_inner();
        let weights: u64 = tenants.iter().map(|(_, weight, _)| weight).sum();
        let anonymous: u64 = stock.tenants.iter().map(|t| t.anon.pages() / MB).sum();
        let cache = SIZE.saturating_sub(20 + anonymous);
        for (i, (name, weight, used)) in tenants.iter().enumerate() {
            let is_file =
                !name.starts_with("cold") && !name.starts_with("h") || name.starts_with("hot");
            let above = is_file && (*used == 0 || used * weights > cache * weight);
            let kept = kept(&stock, &ours, i);
            assert!(
                above || kept >= KEEPS,
                "seed {seed}, {name}, weight {weight}: {kept:.3}, cached {:?} and {:?}, in swap {:?} and {:?}, working sets {:?}, of {tenants:?}",
                stock.cached(),
                ours.cached(),
                stock.swapped(),
                ours.swapped(),
                ours.working_sets()
            );
        }
    }
}
