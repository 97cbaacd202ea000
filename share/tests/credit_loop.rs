//! The loop of credits against a simulated disk: proportional, work-conserving, quick, and quiet.

#![expect(clippy::unwrap_used, reason = "tests say what is wrong by failing")]

mod disk;

use disk::{Machine, Work};
use justitia_share::credit::{CreditLoop, Flow, Interval, Observed, Settings};
use justitia_share::{Demand, NodeId, Tree, Weight, num, pv};

const WEIGHTS: [u64; 4] = [100, 200, 400, 800];

fn weights() -> [f64; 4] {
    [100.0, 200.0, 400.0, 800.0]
}

const STARVING: [u64; 8] = [100, 1000, 1000, 1000, 1000, 1000, 1000, 1000];

fn all_of(weights: &[u64]) -> Vec<Weight> {
    weights
        .iter()
        .map(|w| Weight::try_from(*w).unwrap())
        .collect()
}

fn total(parts: &[f64]) -> f64 {
    parts.iter().sum()
}

/// Each part is within `tolerance` of what its weight gives it.
fn assert_by_weight(got: &[f64], weights: &[f64], tolerance: f64) {
    for (part, weight) in got.iter().zip(weights) {
        let ideal = total(got) * weight / total(weights);
        assert!(
            (part / ideal - 1.0).abs() < tolerance,
            "got {got:?} for {weights:?}"
        );
    }
}

#[test]
fn direct_writers_get_their_weights_and_the_disk_is_full() {
    let mut machine = Machine::new(&WEIGHTS);
    machine.set_all(Work::direct(8, 65536.0));
    machine.run(6.0);
    let got = machine.measure(10.0);
    assert_by_weight(&got, &weights(), 0.04);
    assert!(total(&got) > 0.98 * 60e6, "{got:?}");
}

#[test]
fn once_steady_a_look_a_second_will_do() {
    let mut machine = Machine::new(&WEIGHTS);
    machine.set_all(Work::direct(8, 65536.0));
    machine.run(6.0);
    machine.interval = 1.0;
    machine.run(10.0);
    let got = machine.measure(10.0);
    assert_by_weight(&got, &weights(), 0.04);
    assert!(total(&got) > 0.98 * 60e6, "{got:?}");
    machine.set(3, None);
    machine.run(3.0);
    let got = machine.measure(10.0);
    assert_by_weight(&got[..3], &weights()[..3], 0.06);
    assert!(total(&got) > 0.97 * 60e6, "{got:?}");
}

#[test]
fn asynchronous_tenants_that_fill_the_queue_get_their_weights() {
    let mut machine = Machine::new(&WEIGHTS);
    machine.asynchronous = true;
    for tenant in 0..4 {
        let work = Work {
            write: tenant % 2 == 0,
            ..Work::direct(16, 65536.0)
        };
        machine.set(tenant, Some(work));
    }
    machine.run(6.0);
    let got = machine.measure(10.0);
    assert_by_weight(&got, &weights(), 0.06);
    assert!(total(&got) > 0.97 * 60e6, "{got:?}");
}

#[test]
fn without_the_loop_they_do_not() {
    let mut machine = Machine::new(&WEIGHTS);
    machine.controlled = false;
    machine.set_all(Work::direct(8, 65536.0));
    let got = machine.measure(10.0);
    assert!(pv(&all_of(&WEIGHTS), &got).unwrap() > 2.0, "{got:?}");
}

#[test]
fn buffered_writers_get_their_weights() {
    let mut machine = Machine::new(&WEIGHTS);
    machine.set_all(Work::buffered());
    machine.run(15.0);
    let got = machine.measure(10.0);
    assert_by_weight(&got, &weights(), 0.06);
    assert!(total(&got) > 0.97 * 60e6, "{got:?}");
}

#[test]
fn devices_limited_by_requests_or_by_both_are_found() {
    for (requests, additive) in [(600.0, false), (2000.0, true)] {
        let mut machine = Machine::new(&WEIGHTS);
        machine.requests_per_second = requests;
        machine.additive = additive;
        machine.controlled = false;
        machine.set_all(Work::direct(8, 16384.0));
        let free = total(&machine.measure(5.0));
        machine.controlled = true;
        machine.run(6.0);
        let got = machine.measure(10.0);
        assert_by_weight(&got, &weights(), 0.05);
        assert!(total(&got) > 0.97 * free, "{got:?} of {free}");
    }
}

#[test]
fn readers_beside_writers_of_other_sizes() {
    let mut machine = Machine::new(&WEIGHTS);
    for (tenant, size) in [65536.0, 131_072.0, 65536.0, 32768.0]
        .into_iter()
        .enumerate()
    {
        let work = Work {
            write: tenant % 2 == 0,
            ..Work::direct(16, size)
        };
        machine.set(tenant, Some(work));
    }
    machine.run(15.0);
    let got = machine.measure(10.0);
    assert_by_weight(&got, &weights(), 0.08);
    assert!(total(&got) > 0.97 * 60e6, "{got:?}");
}

#[test]
fn what_one_leaves_the_others_get() {
    let mut machine = Machine::new(&WEIGHTS);
    machine.set_all(Work::direct(8, 65536.0));
    // The heaviest wants little: 2 requests of 64 KiB in 50 ms, 2.6 MB/s.
    let modest = Work {
        think: 0.05,
        ..Work::direct(2, 65536.0)
    };
    machine.set(3, Some(modest));
    machine.run(6.0);
    let got = machine.measure(10.0);
    assert!(total(&got) > 0.98 * 60e6, "{got:?}");
    assert!(got[3] > 1.5e6, "the modest tenant is not held up: {got:?}");
    assert_by_weight(&got[..3], &weights()[..3], 0.06);
}

#[test]
fn who_is_crowded_out_by_others_queues_gets_its_part_soon() {
    // A reader of one request at a time beside three that fill the device's queue from the first moment on.
    let mut machine = Machine::new(&WEIGHTS);
    for tenant in 0..3 {
        let work = Work {
            write: false,
            ..Work::direct(24, 131_072.0)
        };
        machine.set(tenant, Some(work));
    }
    machine.run(0.2);
    let one = Work {
        write: false,
        ..Work::direct(1, 131_072.0)
    };
    machine.set(3, Some(one));
    machine.run(2.0);
    let got = machine.measure(4.0);
    assert!(got[3] > 0.9 * 8.0 / 15.0 * 60e6, "{got:?}");
}

#[test]
fn who_is_not_seen_to_get_anything_gets_little_more_than_its_part() {
    for weights in [[100, 100].as_slice(), &[100, 400], &[100, 100, 100, 100]] {
        for work in [Work::direct(8, 65536.0), Work::buffered()] {
            let mut machine = Machine::new(weights);
            machine.uncounted = Some(0);
            machine.set_all(work);
            machine.run(20.0);
            let got = machine.measure(20.0);
            let part = 100.0 / total(&weights.iter().copied().map(num::to_f64).collect::<Vec<_>>());
            let found = got[0] / total(&got);
            // A fifth less is believed, and of that much its part can be corrected up.
            assert!(found < 1.35 * part, "{weights:?} {work:?}: {got:?}");
        }
    }
}

#[test]
fn a_disk_that_does_little_is_let_go_whatever_its_users_wait_for() {
    let nodes = Machine::new(&[100, 100]);
    let mut credits = CreditLoop::new(Settings::default());
    let (a, b) = {
        let tenants: Vec<NodeId> = nodes.tree.ids().collect();
        (tenants[0], tenants[1])
    };
    let mut step = |busy: f64, bytes: f64| {
        let interval = Interval {
            seconds: 0.25,
            busy,
            kept_up: 1.0,
            delay: 0.0,
        };
        let seen = [
            writer(0, a, bytes, 1.0, 8 << 20),
            writer(1, b, bytes / 3.0, 1.0, 8 << 20),
        ];
        credits.step(&nodes.tree, interval, &seen).len()
    };
    assert!((0..40).map(|_| step(1.0, 30e6)).max().unwrap() > 0);
    // Both go on waiting, for another disk.
    let mut limited = (0..4000).map(|_| step(0.1, 1e6));
    assert!(limited.by_ref().take(200).any(|limits| limits == 0));
    assert!(limited.all(|limits| limits == 0));
}

#[test]
fn who_stands_still_behind_his_own_pages_may_write_them_soon() {
    // A writer of weight 100 with 40 MB in the throttling layer, beside one of weight 800.
    let machine = Machine::new(&[100, 800]);
    let nodes: Vec<NodeId> = machine.tree.ids().collect();
    let mut credits = CreditLoop::new(Settings::default());
    let mut lifted = |application: f64, seconds: u64| {
        let interval = Interval {
            seconds: 0.25,
            busy: 1.0,
            kept_up: 1.0,
            delay: 0.0,
        };
        let mut lifted = 0;
        for _ in 0..4 * seconds {
            let light = Observed {
                application: Some(application),
                ..writer(0, nodes[0], 60e6 / 9.0, 1.0, 40 << 20)
            };
            let heavy = writer(1, nodes[1], 60e6 / 9.0 * 8.0, 1.0, 40 << 20);
            let allowances = credits.step(&machine.tree, interval, &[light, heavy]);
            lifted += usize::from(allowances.iter().any(|a| a.id == 0 && a.lifted));
        }
        lifted
    };
    lifted(60e6 / 9.0, 10);
    assert_eq!(lifted(60e6 / 9.0, 10), 0, "it is served by its weight");
    assert!(lifted(0.0, 10) >= 20, "for five seconds at least");
}

#[test]
fn alone_nobody_is_limited() {
    let mut machine = Machine::new(&WEIGHTS);
    machine.set(0, Some(Work::direct(8, 65536.0)));
    machine.run(5.0);
    assert_eq!((machine.limited(), machine.writes_of_limits), (0, 0));
    assert!(machine.measure(2.0)[0] > 0.98 * 60e6);
}

#[test]
fn light_loads_are_never_limited() {
    let mut machine = Machine::new(&WEIGHTS);
    let light = Work {
        think: 0.05,
        ..Work::direct(4, 65536.0)
    };
    machine.set_all(light);
    machine.run(20.0);
    assert_eq!(machine.writes_of_limits, 0);
}

#[test]
fn equal_tenants_that_get_the_same_are_never_limited() {
    let mut machine = Machine::new(&[100; 4]);
    machine.set_all(Work::direct(8, 65536.0));
    machine.run(60.0);
    assert_eq!(machine.writes_of_limits, 0);
}

#[test]
fn one_of_equal_tenants_that_takes_more_is_held_back_and_looked_at_again() {
    let mut machine = Machine::new(&[100; 4]);
    machine.set_all(Work::direct(4, 65536.0));
    machine.set(0, Some(Work::direct(32, 65536.0)));
    machine.run(6.0);
    let got = machine.measure(10.0);
    assert_by_weight(&got, &[1.0; 4], 0.06);
    assert!(total(&got) > 0.98 * 60e6, "{got:?}");
    // Over ten minutes it gets little for having been let go now and then.
    let got = machine.measure(600.0);
    assert_by_weight(&got, &[1.0; 4], 0.1);
    (0..4).for_each(|tenant| machine.set(tenant, None));
    machine.run(20.0);
    machine.set_all(Work::direct(8, 65536.0));
    machine.run(400.0);
    let writes = machine.writes_of_limits;
    machine.run(100.0);
    assert_eq!(
        (machine.limited(), machine.writes_of_limits),
        (0, writes),
        "now they are alike"
    );
}

#[test]
fn contention_is_met_within_a_second_and_left_when_it_ends() {
    let mut machine = Machine::new(&WEIGHTS);
    machine.set(0, Some(Work::direct(32, 65536.0)));
    machine.run(3.0);
    machine.set(3, Some(Work::direct(8, 65536.0)));
    machine.run(1.0);
    assert!(machine.limited() == 2, "engaged within a second");
    machine.run(5.0);
    machine.set(3, None);
    machine.run(1.0);
    let alone = machine.measure(1.0)[0];
    assert!(alone > 0.97 * 60e6, "gets all within a second: {alone}");
    machine.run(2.0);
    assert_eq!(machine.limited(), 0);
}

/// Seconds until the split stays within a tenth of `weights`.
fn settles(machine: &mut Machine, weights: &[f64]) -> f64 {
    let mut good = 0.0;
    let mut elapsed = 0.0;
    while elapsed < 15.0 {
        let got = machine.measure(0.5);
        elapsed += 0.5;
        let near = got.iter().zip(weights).all(|(part, weight)| {
            let ideal = total(&got) * weight / total(weights);
            *weight <= 0.0 || (part / ideal - 1.0).abs() < 0.1
        });
        good = if near { good + 0.5 } else { 0.0 };
        if good >= 2.0 {
            return elapsed - good;
        }
    }
    elapsed
}

#[test]
fn steps_are_followed_within_three_seconds() {
    let mut machine = Machine::new(&WEIGHTS);
    machine.set_all(Work::direct(8, 65536.0));
    let begun = settles(&mut machine, &weights());
    machine.run(5.0);
    for (tenant, weight) in [800, 400, 200, 100].into_iter().enumerate() {
        machine.weigh(tenant, weight);
    }
    let turned = settles(&mut machine, &[800.0, 400.0, 200.0, 100.0]);
    machine.set(0, None);
    let idle = settles(&mut machine, &[0.0, 400.0, 200.0, 100.0]);
    machine.set(0, Some(Work::direct(8, 65536.0)));
    let back = settles(&mut machine, &[800.0, 400.0, 200.0, 100.0]);
    let all = [begun, turned, idle, back];
    assert!(all.iter().all(|seconds| *seconds <= 3.0), "{all:?}");
}

/// So many seconds after each change of the disk's speed at least this part of it is used in the next `long` seconds, and
/// divided by weight.
fn assert_follows(
    machine: &mut Machine,
    speeds: &[f64],
    after: f64,
    long: f64,
    (least, tolerance): (f64, f64),
) {
    for megabytes in speeds {
        machine.bytes_per_second = megabytes * 1e6;
        machine.run(after);
        let got = machine.measure(long);
        let speed = megabytes * 1e6;
        assert!(total(&got) > least * speed, "{megabytes}: {got:?}");
        assert_by_weight(&got, &weights(), tolerance);
    }
}

#[test]
fn a_disk_that_changes_is_followed() {
    let mut machine = Machine::new(&WEIGHTS);
    machine.set_all(Work::direct(8, 65536.0));
    assert_follows(&mut machine, &[60.0, 20.0, 200.0], 10.0, 5.0, (0.97, 0.08));
}

#[test]
fn a_disk_that_gives_way_and_comes_back_is_followed_within_three_seconds() {
    let mut machine = Machine::new(&WEIGHTS);
    machine.set_all(Work::direct(8, 65536.0));
    machine.run(15.0);
    let speeds = [6.0, 60.0, 15.0, 60.0, 200.0, 60.0];
    assert_follows(&mut machine, &speeds, 3.0, 5.0, (0.97, 0.08));
}

#[test]
fn so_is_it_where_writers_have_much_to_write() {
    let mut machine = Machine::new(&WEIGHTS);
    machine.set_all(Work::buffered());
    machine.run(15.0);
    assert_follows(&mut machine, &[20.0, 60.0], 3.0, 7.0, (0.9, 0.3));
}

#[test]
fn a_pause_of_all_teaches_nothing() {
    let mut machine = Machine::new(&WEIGHTS);
    machine.set_all(Work::direct(8, 65536.0));
    machine.run(5.0);
    for tenant in 0..4 {
        machine.set(tenant, None);
    }
    machine.run(1.0);
    machine.set_all(Work::direct(8, 65536.0));
    machine.run(0.5);
    assert!(total(&machine.measure(2.0)) > 0.97 * 60e6);
}

#[test]
fn it_does_not_oscillate() {
    let mut machine = Machine::new(&WEIGHTS);
    machine.set_all(Work::direct(8, 65536.0));
    machine.run(10.0);
    let before = machine.writes_of_limits;
    for _ in 0..20 {
        let got = machine.measure(1.0);
        assert_by_weight(&got, &weights(), 0.1);
    }
    let a_second =
        justitia_share::num::to_f64((machine.writes_of_limits - before) as u64) / 20.0 / 4.0;
    assert!(a_second <= 1.3, "{a_second} writes a second and tenant");
}

#[test]
fn shares_hold_in_a_tree() {
    let mut tree = Tree::new();
    let weight = |w: u64| Demand::unlimited(Weight::try_from(w).unwrap());
    let one = tree.push(None, weight(100));
    let two = tree.push(None, weight(300));
    let leaves = [
        tree.push(Some(one), weight(10)),
        tree.push(Some(one), weight(40)),
        tree.push(Some(two), weight(7)),
        tree.push(Some(two), weight(7)),
    ];
    let mut machine = Machine::of(tree, &leaves);
    machine.set_all(Work::direct(8, 65536.0));
    machine.run(6.0);
    let got = machine.measure(10.0);
    assert_by_weight(&got, &[5.0, 20.0, 37.5, 37.5], 0.06);
}

#[test]
fn the_lightest_of_eight_is_not_starved() {
    let mut machine = Machine::new(&STARVING);
    machine.set_all(Work::direct(8, 65536.0));
    machine.run(10.0);
    let got = machine.measure(20.0);
    assert!(pv(&all_of(&STARVING), &got).unwrap() < 0.3, "{got:?}");
}

/// A tenant that writes so many bytes a second, waits for a part of the time, and has so much to write.
fn writer(id: usize, node: NodeId, bytes: f64, stalled: f64, dirty: u64) -> Observed {
    Observed {
        id: id as u64,
        node,
        flow: Flow {
            wbytes: bytes,
            wios: bytes / 65536.0,
            ..Flow::default()
        },
        stalled,
        application: Some(bytes),
        written: Some(bytes),
        reached: bytes,
        dirty,
        writeback: dirty,
        limitable: true,
    }
}

/// What a hog of weight 100 with 90 MB of dirty pages may write a second, after so many seconds beside a writer of
/// weight 800 that takes what it can get and one of weight 100 that writes `little`, and waits as told.
fn hog_may_write(little: f64, stalled: f64, seconds: f64) -> f64 {
    let mut tree = Tree::new();
    let nodes = [100, 800, 100].map(|weight| {
        let demand = Demand::unlimited(Weight::try_from(weight).unwrap());
        tree.push(None, demand)
    });
    let mut credits = CreditLoop::new(Settings::default());
    let mut may_write = [30e6, 29e6];
    let interval = Interval {
        seconds: 0.25,
        busy: 1.0,
        kept_up: 1.0,
        delay: 0.01,
    };
    for _ in 0..num::to_u64(seconds * 4.0) {
        let all = may_write.iter().sum::<f64>() + little;
        let writes = [may_write[0], may_write[1], little].map(|wish| wish * (60e6 / all).min(1.0));
        let waits = [1.0, 1.0, stalled];
        let tenants: Vec<Observed> = (0..3)
            .map(|id| {
                let dirty = if id == 0 { 90_000_000 } else { 0 };
                writer(id, nodes[id], writes[id], waits[id], dirty)
            })
            .collect();
        let allowances = credits.step(&tree, interval, &tenants);
        for allowance in allowances.iter().filter(|a| a.id < 2) {
            let limit = allowance.limits.wbps.map_or(60e6, num::to_f64);
            may_write[if allowance.id == 0 { 0 } else { 1 }] = limit;
        }
    }
    may_write[0]
}

#[test]
fn whoever_waits_behind_anothers_dirty_pages_has_them_written() {
    let waited_for = hog_may_write(1e6, 0.9, 20.0);
    assert!(waited_for >= 30e6, "{waited_for}");
    let not = hog_may_write(1e6, 0.0, 20.0);
    let elsewhere = hog_may_write(0.0, 0.9, 20.0);
    assert!(not < 10e6 && elsewhere < 10e6, "{not} {elsewhere}");
}

#[test]
fn who_stops_writing_leaves_the_disk_to_others_though_it_keeps_dirty_pages() {
    let mut tree = Tree::new();
    let nodes = [100, 800].map(|weight| {
        let demand = Demand::unlimited(Weight::try_from(weight).unwrap());
        tree.push(None, demand)
    });
    let mut credits = CreditLoop::new(Settings::default());
    let mut may_write = [30e6, 30e6];
    let mut light = None;
    for step in 0..36 {
        // The heavy one stops after eight seconds; what it has dirty is not old enough to be written.
        let stopped = step >= 32;
        let wishes = [may_write[0], if stopped { 0.0 } else { may_write[1] }];
        let all: f64 = wishes.iter().sum();
        let writes = wishes.map(|wish| wish * (60e6 / all).min(1.0));
        let interval = Interval {
            seconds: 0.25,
            busy: (all / 60e6).min(1.0),
            kept_up: 1.0,
            delay: if stopped { 0.0 } else { 0.01 },
        };
        let waits = [1.0, if stopped { 0.0 } else { 0.5 }];
        let dirty = [8_000_000, 50_000_000];
        let tenants = [0, 1].map(|id| writer(id, nodes[id], writes[id], waits[id], dirty[id]));
        for allowance in credits.step(&tree, interval, &tenants) {
            let limit = allowance.limits.wbps.map_or(60e6, num::to_f64);
            may_write[if allowance.id == 0 { 0 } else { 1 }] = limit;
            light = Some(allowance).filter(|a| a.id == 0).or(light);
        }
    }
    let light = light.unwrap();
    assert!(may_write[0] > 48e6, "within a second: {light:?}");
    assert!(light.correction > 0.9, "{light:?}");
}

#[test]
fn after_a_step_dirty_pages_are_written_soon() {
    let (soon, later) = (hog_may_write(1e6, 0.0, 2.0), hog_may_write(1e6, 0.0, 5.0));
    assert!(soon >= 60e6, "{soon}");
    assert!(later < 10e6, "{later}");
}

#[test]
fn who_has_more_to_write_and_does_not_while_the_disk_has_pauses_waits_for_another() {
    let mut tree = Tree::new();
    let nodes = [100, 800].map(|weight| {
        let demand = Demand::unlimited(Weight::try_from(weight).unwrap());
        tree.push(None, demand)
    });
    let mut credits = CreditLoop::new(Settings::default());
    // Both wait with 30 MB to write; at first the disk is full, then all stand still behind a commit.
    let mut step = |busy: f64, bytes: [f64; 2]| {
        let tenants = [0, 1].map(|id| writer(id, nodes[id], bytes[id], 1.0, 30_000_000));
        let interval = Interval {
            seconds: 0.25,
            busy,
            kept_up: 1.0,
            delay: 0.01,
        };
        let allowances = credits.step(&tree, interval, &tenants);
        let light = allowances.iter().find(|a| a.id == 0);
        light.map_or(0, |a| a.limits.wbps.unwrap_or(0))
    };
    let limited = (0..60).map(|_| step(1.0, [6e6, 54e6])).last().unwrap();
    assert!((1..20_000_000).contains(&limited), "{limited}");
    // All of it is a second's work for the disk, half of it the light one's.
    let lifted = (0..12).map(|_| step(0.6, [5e6, 10e6])).max().unwrap();
    assert!((25_000_000..35_000_000).contains(&lifted), "{lifted}");
}

#[test]
fn who_is_served_by_memory_may_write_without_limit_as_long_as_it_keeps_to_its_part() {
    // Weights 100, 800 and 100, a disk of 60 MB/s.
    let machine = Machine::new(&[100, 800, 100]);
    let nodes: Vec<NodeId> = machine.tree.ids().collect();
    let mut credits = CreditLoop::new(Settings::default());
    // Whether the first one's writes are limited, the second one's, and whether the third one's limits are lifted.
    let mut limited = |application: f64, written: Option<f64>, reached: f64, grows: u64| {
        let interval = Interval {
            seconds: 0.25,
            busy: 1.0,
            kept_up: 1.0,
            delay: 0.0,
        };
        let mut found = (false, false, false);
        for step in 0..160 {
            let dirty = (40 << 20) + grows * step / 4;
            let tenants = [
                Observed {
                    application: Some(application),
                    written,
                    ..writer(0, nodes[0], reached, 1.0, dirty)
                },
                writer(1, nodes[1], 54e6 - reached, 1.0, 40 << 20),
                writer(2, nodes[2], 6e6, 1.0, 40 << 20),
            ];
            let allowances = credits.step(&machine.tree, interval, &tenants);
            let of = |id| allowances.iter().find(|a| a.id == id);
            let writes = |id| of(id).is_some_and(|a| a.limits.wbps.or(a.limits.wiops).is_some());
            found = (writes(0), writes(1), of(2).is_some_and(|a| a.lifted));
        }
        found
    };
    assert_eq!(limited(6e6, Some(6e6), 6e6, 0), (true, true, false));
    assert_eq!(limited(7e6, Some(6.5e6), 3e6, 0), (false, true, true));
    let more_than_its_part = limited(40e6, Some(40e6), 15e6, 0);
    assert_eq!(more_than_its_part, (true, true, false));
    let reads_from_memory = limited(40e6, Some(6e6), 6e6, 0);
    assert_eq!(reads_from_memory, (true, true, false));
    let not_known = limited(7e6, None, 3e6, 0);
    assert_eq!(not_known, (true, true, false));
    let dirty_yet = limited(7e6, Some(6.5e6), 3e6, 3_500_000);
    assert_eq!(dirty_yet, (true, true, false));
}
