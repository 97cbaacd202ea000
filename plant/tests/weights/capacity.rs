//! A disk that nothing divides: io.cost, enabled while tenants contend, at the rate that follows what the disk can do.

use justitia_plant::{Disk, Memory, Work};
use justitia_share::num::to_f64;

use super::controlled::{Acts, Controlled, all, io_cost};
use super::{EIGHT, FOUR, STARVING, distribution, misallocated, readers, seeds};

/// A disk of `speed` MB/s, with io.cost off.
pub(super) fn undivided(speed: f64) -> Disk {
    io_cost(speed, f64::INFINITY)
}

fn direct(seed: u64, acts: Acts) -> Controlled {
    let machine = Controlled::new(undivided(60.0), Memory::guest(), &FOUR, seed, acts);
    all(machine, Work::direct(16, 65536.0))
}

#[test]
fn tenants_of_each_kind_are_divided_at_hardly_any_loss() {
    type Case = (&'static str, f64, Memory, &'static [u64], Work, f64);
    let (fast, slow) = (Memory::guest(), Memory::slow_guest());
    let queue = |depth| Work::direct(depth, 65536.0);
    let server = |rate| Work::file_server(rate);
    let cases: [Case; 8] = [
        ("direct, queue depth 16", 60.0, fast, &FOUR, queue(16), 0.15),
        ("direct, queue depth 4", 60.0, fast, &FOUR, queue(4), 0.15),
        ("readers", 60.0, fast, &FOUR, readers(), 0.15),
        ("buffered writers", 60.0, fast, &FOUR, Work::buffered(), 0.2),
        (
            "buffered writers, slow disk",
            30.0,
            fast,
            &FOUR,
            Work::buffered(),
            0.35,
        ),
        ("file servers", 20.0, slow, &FOUR, server(115e6), 0.2),
        ("file servers ×8", 20.0, slow, &EIGHT, server(90e6), 0.5),
        (
            "file servers, 1 + 7",
            20.0,
            slow,
            &STARVING,
            server(43e6),
            0.5,
        ),
    ];
    println!("| | FIFO: PV; total, MB/s | io.cost that follows the disk: PV, 95 %; total |");
    println!("|---|---|---|");
    for (what, speed, memory, weights, work, most) in cases {
        let of = |acts| {
            let run = |seed| {
                let machine = Controlled::new(undivided(speed), memory, weights, seed, acts);
                all(machine, work).window(24.0, 60.0)
            };
            let (pvs, totals) = (1..=seeds(3)).map(run).unzip();
            (distribution(pvs), distribution(totals).0)
        };
        let ((plain, _), before) = of(Acts::Nothing);
        let ((pv, worst), total) = of(Acts::Capacity);
        println!("| {what} | {plain:.2}; {before:.1} | {pv:.2}, {worst:.2}; {total:.1} |");
        assert!(pv <= most && worst <= 2.5 * most, "{what}: {pv} {worst}");
        assert!(total >= 0.97 * before, "{what}: {total} of {before}");
    }
}

#[test]
fn alone_a_tenant_is_not_limited() {
    let mut machine = direct(1, Acts::Capacity);
    machine.run(10.0);
    assert!(machine.rate.is_some());
    for tenant in 1..4 {
        machine.machine.set_work(tenant, None);
    }
    machine.run(2.5);
    assert!(machine.rate.is_none() && machine.standing.is_empty());
    let got = machine.measure(5.0);
    assert!(got[0] > 59e6, "{got:?}");
}

/// The journal writes as the root cgroup: no rate holds it, and what it takes the tenants cannot have.
#[test]
fn what_passes_io_cost_is_no_part_of_the_rate() {
    let weights = [100, 200, 400, 800, 100];
    let machine = Controlled::new(
        undivided(60.0),
        Memory::guest(),
        &weights,
        1,
        Acts::Capacity,
    );
    let mut machine = all(machine, Work::direct(16, 65536.0));
    let journal = Work {
        think: 0.01,
        ..Work::direct(1, 65536.0)
    };
    machine.machine.set_free(4);
    machine.machine.set_work(4, Some(journal));
    machine.run(20.0);
    let got = machine.measure(30.0);
    assert!(got[4] > 2e6, "{got:?}");
    assert!(got.iter().sum::<f64>() > 0.95 * 60e6, "{got:?}");
    assert!(misallocated(&got[..4], &FOUR) < 0.05, "{got:?}");
}

#[test]
fn a_disk_that_changes_is_followed() {
    for seed in 1..=seeds(3) {
        let mut machine = direct(seed, Acts::Capacity);
        machine.run(10.0);
        // Ten times slower shows at once, faster once it has been tried.
        for (speed, after) in [(6e6, 5.0), (60e6, 12.0), (45e6, 5.0), (60e6, 140.0)] {
            machine.machine.set_speed(speed);
            machine.run(after);
            let got = machine.measure(20.0);
            let total = got.iter().sum::<f64>();
            assert!(total > 0.95 * speed, "{speed}: {got:?}");
            assert!(misallocated(&got, &FOUR) < 0.1, "{speed}: {got:?}");
        }
    }
}

#[test]
fn what_small_requests_cost_is_learnt_once() {
    let mut machine = direct(1, Acts::Capacity);
    machine.machine.set_requests(2000.0);
    let large = Work::direct(16, 262_144.0);
    let small = Work::direct(16, 4096.0);
    let mut totals = Vec::new();
    for work in [large, small, large, small, large] {
        machine.machine.set_all(work);
        machine.run(5.0);
        let got = machine.measure(15.0);
        assert!(misallocated(&got, &FOUR) < 0.15, "{got:?}");
        totals.push(got.iter().sum::<f64>());
    }
    for (total, could) in totals.iter().zip([60e6, 8.2e6, 60e6, 8.2e6, 60e6]) {
        assert!(*total > 0.85 * could, "{totals:?}");
    }
}

#[test]
fn a_disk_that_is_never_the_same_keeps_most_of_what_it_can_do() {
    for seed in 1..=seeds(3) {
        let mut machine = direct(seed, Acts::Capacity);
        let mut random = justitia_plant::Rng::new(seed);
        let (mut could, mut got) = (0.0, vec![0.0; 4]);
        for second in 0..120 {
            let speed = random.between(48e6, 60e6);
            machine.machine.set_speed(speed);
            let now = machine.measure(1.0);
            if second >= 20 {
                could += speed;
                got.iter_mut().zip(now).for_each(|(sum, one)| *sum += one);
            }
        }
        let total = got.iter().sum::<f64>();
        assert!(total > 0.85 * could, "{total} of {could}");
        assert!(misallocated(&got, &FOUR) < 0.1, "{got:?}");
    }
}

#[test]
fn a_disk_that_stood_still_for_a_second_is_soon_as_before() {
    for seed in 1..=seeds(3) {
        let mut machine = direct(seed, Acts::Capacity);
        machine.run(30.0);
        machine.machine.set_speed(1e3);
        machine.run(1.0);
        machine.machine.set_speed(60e6);
        machine.run(10.0);
        let got = machine.measure(10.0);
        assert!(got.iter().sum::<f64>() > 0.95 * 60e6, "{got:?}");
        assert!(misallocated(&got, &FOUR) < 0.1, "{got:?}");
    }
}

#[test]
fn it_writes_little() {
    let mut machine = direct(1, Acts::Capacity);
    machine.run(60.0);
    machine.rates = 0;
    machine.run(300.0);
    let per_minute = to_f64(machine.rates) / 5.0;
    assert!(per_minute < 10.0, "{per_minute} models a minute");
}

/// A write cache, or the bucket of a throttled disk. A few requests are all at the disk once the rate is a hair too high.
#[test]
fn weights_hold_on_a_disk_that_takes_requests_in_advance() {
    println!(
        "| takes in advance, ms | queue depth | PV | total, MB/s | worst second of the heaviest, of its part |"
    );
    println!("|---|---|---|---|---|");
    for (ahead, depth) in [0.0, 0.03, 0.1, 0.3]
        .map(|ahead| [(ahead, 4), (ahead, 16)])
        .concat()
    {
        let disk = Disk {
            ahead,
            ..undivided(60.0)
        };
        let machine = Controlled::new(disk, Memory::guest(), &FOUR, 1, Acts::Capacity);
        let mut machine = all(machine, Work::direct(depth, 65536.0));
        let (pv, total) = machine.window(6.0, 15.0);
        let part = |got: Vec<f64>| got[3] / got.iter().sum::<f64>() * 15.0 / 8.0;
        let seconds = (0..60).map(|_| part(machine.measure(1.0)));
        let worst = seconds.fold(f64::INFINITY, f64::min);
        println!(
            "| {} | {depth} | {pv:.2} | {total:.1} | {worst:.2} |",
            ahead * 1e3
        );
        assert!(pv <= 0.1, "{ahead} s ahead, {depth} requests: {pv}");
        assert!(
            total >= 0.98 * 60.0,
            "{ahead} s ahead, {depth} requests: {total}"
        );
        assert!(worst >= 0.5, "{ahead} s ahead, {depth} requests: {worst}");
    }
}

/// Two, then four, eight and sixteen, with eight requests of 64 KiB each, as in the experiment `tenants`.
#[test]
fn weights_hold_for_those_that_were_there_when_others_come() {
    let weights: Vec<u64> = [100, 800, 200, 400]
        .into_iter()
        .chain([100, 200, 400, 800].repeat(3))
        .collect();
    for ahead in [0.0, 0.03, 0.1] {
        let disk = Disk {
            ahead,
            ..undivided(60.0)
        };
        let mut machine = Controlled::new(disk, Memory::guest(), &weights, 1, Acts::Capacity);
        for count in [2, 4, 8, 16] {
            for tenant in 0..count {
                let work = Work::direct(8, 65536.0);
                machine.machine.set_work(tenant, Some(work));
            }
            machine.run(10.0);
            let got = machine.measure(60.0);
            let wrong = misallocated(&got[..count], &weights[..count]);
            let total = got.iter().sum::<f64>() / 1e6;
            println!(
                "{ahead} s ahead, {count} tenants: {wrong:.3} in wrong hands, {total:.1} MB/s"
            );
            assert!(wrong < 0.05, "{ahead} s ahead, {count} tenants: {got:?}");
        }
    }
}

/// Sixteen want less than the disk can do together, in a pace that they make up for. Requests are under way for a while beside the time that they take
/// the disk, so that it looks busy.
#[test]
fn who_want_less_than_the_disk_can_do_have_all_they_want() {
    let weights = [100, 200, 400, 800].repeat(4);
    let mut failed = Vec::new();
    for latency in [0.0, 0.002, 0.005] {
        for (ahead, part) in [0.0, 0.1]
            .map(|ahead| [(ahead, 0.5), (ahead, 0.7), (ahead, 0.9)])
            .concat()
        {
            let disk = Disk {
                ahead,
                latency,
                ..undivided(60.0)
            };
            let wants = part * 60e6 / 16.0;
            let machine = Controlled::new(disk, Memory::guest(), &weights, 1, Acts::Capacity);
            let mut machine = all(machine, Work::direct(8, 65536.0));
            machine.run(30.0);
            machine.machine.set_all(Work {
                pace: wants,
                ..Work::direct(8, 65536.0)
            });
            machine.run(10.0);
            // Now and then it pauses, as the disk of a guest does.
            machine.machine.take_done();
            for _ in 0..15 {
                machine.machine.set_speed(1e6);
                machine.run(0.25);
                machine.machine.set_speed(60e6);
                machine.run(3.75);
            }
            let got: Vec<f64> = machine
                .machine
                .take_done()
                .iter()
                .map(|got| got / 60.0)
                .collect();
            let least = got.iter().copied().fold(f64::INFINITY, f64::min) / wants;
            let total = got.iter().sum::<f64>() / 16.0 / wants;
            println!(
                "{latency} s under way, {ahead} s ahead, {part} wanted: the least has {least:.2} of what it wants, all together {total:.2}; {:?}",
                machine.rate.map(|r| r.bytes / 1e6)
            );
            failed.extend((least < 0.95 || total < 0.98).then_some((latency, ahead, part)));
        }
    }
    assert!(
        failed.is_empty(),
        "seconds under way and ahead, part of the disk: {failed:?}"
    );
}

/// The disk slows down, or was taken for faster, at the moment in which the rate is set: its queue has never been seen empty.
#[test]
fn weights_hold_on_a_disk_that_was_taken_for_faster() {
    for (depth, speed) in [4, 16]
        .map(|depth| [(depth, 55e6), (depth, 40e6), (depth, 25e6)])
        .concat()
    {
        let machine = Controlled::new(undivided(60.0), Memory::guest(), &FOUR, 1, Acts::Capacity);
        let mut machine = all(machine, Work::direct(depth, 65536.0));
        while machine.rate.is_none() {
            machine.run(0.25);
        }
        machine.machine.set_speed(speed);
        machine.run(15.0);
        let got = machine.measure(10.0);
        let wrong = misallocated(&got, &FOUR);
        println!("{depth} requests, {speed:.0} B/s: {wrong:.3} in wrong hands");
        assert!(wrong < 0.05, "{depth} requests, {speed} B/s: {got:?}");
    }
}

/// Its queue is longer than what a slow disk does in a second, and a fast one has nothing to do.
#[test]
fn a_disk_that_becomes_ten_times_slower_or_faster_is_divided_within_seconds() {
    for (from, to) in [(60e6, 6e6), (60e6, 30e6), (6e6, 60e6)] {
        let mut machine = direct(1, Acts::Capacity);
        machine.machine.set_speed(from);
        machine.run(40.0);
        machine.machine.set_speed(to);
        machine.run(4.0);
        let got = machine.measure(4.0);
        let (wrong, total) = (misallocated(&got, &FOUR), got.iter().sum::<f64>());
        println!("{from}, then {to}: {wrong:.3} in wrong hands, {total:.0} B/s after 4 s");
        assert!(wrong < 0.1, "{from}, then {to}: {got:?}");
        assert!(total > 0.95 * to, "{from}, then {to}: {got:?}");
    }
}

/// What a disk does in a bad second is not what it can do.
#[test]
fn a_disk_that_is_slow_for_a_moment_soon_does_all_that_it_can() {
    for (seconds, slow) in [(0.5, 1e3), (3.0, 1e3), (1.0, 3e6), (2.0, 3e6), (3.0, 6e6)] {
        let mut machine = direct(1, Acts::Capacity);
        machine.run(40.0);
        let after = |machine: &mut Controlled| {
            machine.machine.set_speed(slow);
            machine.run(seconds);
            machine.machine.set_speed(60e6);
            machine.measure(20.0).iter().sum::<f64>()
        };
        let total = (0..5).map(|_| after(&mut machine)).sum::<f64>() / 5.0;
        println!(
            "{seconds} s at {slow:.0} B/s: {:.3} of what it can do in the 20 s after",
            total / 60e6
        );
        assert!(total > 0.87 * 60e6, "{seconds} s at {slow}: {total}");
    }
}
