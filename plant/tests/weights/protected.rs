//! A tenant that needs little beside greedy ones, and a heavy one among many: both have what their weights give them.

use justitia_plant::{Kind, Memory, Work};

use super::capacity::undivided;
use super::controlled::{Acts, Controlled, bfq};
use super::{distribution, misallocated, seeds};

/// Reads 16 KiB, one after the other, with a pause of `think` seconds between two.
fn careful(think: f64) -> Work {
    Work {
        kind: Kind::Direct { writes: 0.0 },
        think,
        ..Work::direct(1, 16384.0)
    }
}

/// What a careful reader of weight 800 has beside one of weight 100 that keeps 64 requests at the disk, of what it has alone; and
/// what both have, MB/s.
fn beside_greedy(acts: Acts, think: f64) -> (f64, f64) {
    let machine = || Controlled::new(undivided(60.0), Memory::guest(), &[100, 800], 1, acts);
    let mut alone = machine();
    alone.machine.set_work(1, Some(careful(think)));
    let alone = alone.measure(10.0)[1];
    let mut beside = machine();
    beside.machine.set_work(0, Some(Work::direct(64, 65536.0)));
    beside.run(5.0);
    beside.machine.set_work(1, Some(careful(think)));
    beside.run(10.0);
    let got = beside.measure(60.0);
    (got[1] / alone, (got[0] + got[1]) / 1e6)
}

#[test]
fn a_careful_reader_keeps_nearly_all_of_its_pace_beside_a_greedy_one() {
    let mut failed = Vec::new();
    for think in [0.002, 0.005, 0.01, 0.02] {
        let (without, _) = beside_greedy(Acts::Nothing, think);
        let (kept, total) = beside_greedy(Acts::Capacity, think);
        println!(
            "pause {think} s: {kept:.2} of its pace, without us {without:.2}; {total:.1} MB/s"
        );
        assert!(without < 0.4, "pause {think} s: {without}");
        failed.extend((kept < 0.85 || total < 55.0).then_some(think));
    }
    assert!(failed.is_empty(), "pauses of {failed:?} s");
}

/// Without the agent each has a fourth of the disk, a heavy one less than a third of its part.
#[test]
fn a_heavy_tenant_is_found_among_light_ones() {
    let weights = [100, 100, 100, 3000];
    for (what, disk, acts) in [
        ("BFQ", bfq(60.0), Acts::Weights),
        ("undivided", undivided(60.0), Acts::Capacity),
    ] {
        let mut machine = Controlled::new(disk, Memory::guest(), &weights, 1, acts);
        machine.machine.set_all(Work::direct(16, 65536.0));
        machine.run(15.0);
        let got = machine.measure(30.0);
        let wrong = misallocated(&got, &weights);
        println!("{what}: {got:.0?}, {wrong:.3} in wrong hands");
        assert!(wrong < 0.05, "{what}: {got:?}");
    }
}

/// Buffered writers with a pace of their own. That of the heaviest is little above what its weight gives it: it waits
/// for a part of the time only.
#[test]
fn a_heavy_writer_that_waits_seldom_has_no_more_than_its_part() {
    let weights = [100, 200, 400, 800];
    for (what, disk, acts) in [
        ("BFQ", bfq(30.0), Acts::WeightsAndRooms),
        ("undivided", undivided(30.0), Acts::Capacity),
    ] {
        for pace in [24e6, 27e6, 35e6] {
            let of = |seed| {
                let mut machine = Controlled::new(disk, Memory::guest(), &weights, seed, acts);
                machine.machine.set_all(Work {
                    think: 65536.0 / pace,
                    ..Work::buffered()
                });
                machine.run(20.0);
                misallocated(&machine.measure(60.0), &weights)
            };
            let (wrong, worst) = distribution((1..=seeds(5)).map(of).collect());
            println!("{what}, {pace:.0}: {wrong:.3}, at most {worst:.3} in wrong hands");
            assert!(wrong < 0.08, "{what}, {pace}: {wrong}");
        }
    }
}
