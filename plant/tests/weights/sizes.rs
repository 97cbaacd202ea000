//! Small requests beside large ones, on a disk where each request costs something: the tenant with the small ones has
//! few bytes and most of the disk.

use justitia_plant::{Disk, Memory, Scheduler, Work};
use justitia_share::num::to_f64;

use super::capacity::undivided;
use super::controlled::{Acts, Controlled, all, bfq, io_cost};
use super::{distribution, seeds};

/// io.cost with a model of `requests` a second, too.
fn with_requests(mut disk: Disk, requests: f64) -> Disk {
    if let Scheduler::IoCost {
        requests: model, ..
    } = &mut disk.scheduler
    {
        *model = requests;
    }
    disk
}

/// What each of four gets of its part of the disk, of equal parts: the first has requests of 4 KiB, the second of 64, two of 256.
fn got(disk: Disk, requests: f64, seed: u64, acts: Acts) -> Vec<f64> {
    let machine = Controlled::new(disk, Memory::guest(), &[100; 4], seed, acts);
    let mut machine = all(machine, Work::direct(16, 262_144.0));
    machine.machine.set_requests(requests);
    let sizes = [4096.0, 65536.0, 262_144.0, 262_144.0];
    for (tenant, size) in sizes.into_iter().enumerate() {
        machine
            .machine
            .set_work(tenant, Some(Work::direct(16, size)));
    }
    machine.run(60.0);
    let got = machine.measure(40.0);
    let speed = disk.bytes_per_second;
    let whole = |size: f64| size / (size / speed).max(1.0 / requests);
    let parts = got
        .iter()
        .zip(sizes)
        .map(|(got, size)| 4.0 * got / whole(size));
    parts.collect()
}

/// The least that a tenant has of its part, and the sum: of [`seeds`] the median.
fn of(disk: Disk, requests: f64, acts: Acts) -> (f64, f64) {
    let runs = (1..=seeds(3)).map(|seed| got(disk, requests, seed, acts));
    let (least, sums) = runs
        .map(|got| {
            (
                got.iter().copied().fold(f64::MAX, f64::min),
                got.iter().sum::<f64>() / 4.0,
            )
        })
        .unzip();
    (distribution(least).0, distribution(sums).0)
}

#[test]
fn nobody_has_less_of_the_disk_than_its_part() {
    for requests in [500.0, 2000.0, 20_000.0] {
        for (what, disk, acts) in [
            ("BFQ", bfq(60.0), Acts::Weights),
            (
                "io.cost at 90 %",
                with_requests(io_cost(60.0, 0.9), 0.9 * requests),
                Acts::Weights,
            ),
            ("undivided", undivided(60.0), Acts::Capacity),
        ] {
            let (plain, before) = of(disk, requests, Acts::Nothing);
            let (least, sum) = of(disk, requests, acts);
            println!(
                "{what}, {requests} requests/s: {plain:.2} of its part, {before:.2} of the disk; {least:.2}, {sum:.2}"
            );
            assert!(
                least > 0.75 || least > 0.9 * plain,
                "{what}, {requests}: {least}, {plain}"
            );
            assert!(sum > 0.9 * before, "{what}, {requests}: {sum}, {before}");
        }
    }
}

/// What each of four gets of its part: weights 100 to 800, requests of 4, 64, 256 and 4 KiB, as the lab's `sizes-x4`.
fn parts_by_weight(requests: f64, two_limits: bool, seed: u64) -> Vec<f64> {
    let (weights, sizes) = ([100, 200, 400, 800], [4096.0, 65536.0, 262_144.0, 4096.0]);
    let disk = Disk {
        two_limits,
        ..undivided(60.0)
    };
    let machine = Controlled::new(disk, Memory::guest(), &weights, seed, Acts::Capacity);
    let mut machine = all(machine, Work::direct(16, 4096.0));
    machine.machine.set_requests(requests);
    for (tenant, size) in sizes.into_iter().enumerate() {
        machine
            .machine
            .set_work(tenant, Some(Work::direct(16, size)));
    }
    machine.run(20.0);
    let got = machine.measure(30.0);
    let whole = |size: f64| size / (size / 60e6_f64).max(1.0 / requests);
    let parts = got.iter().zip(sizes).zip(weights);
    let part =
        |((got, size), weight): ((&f64, f64), u64)| got / whole(size) * 1500.0 / to_f64(weight);
    parts.map(part).collect()
}

/// Two of four have many small requests at the disk all the time, so there is no moment with few of them. A disk with two limits has no price that
/// is right for all mixtures.
#[test]
fn a_heavy_tenant_with_small_requests_has_its_part_beside_large_ones() {
    for (two_limits, heavy, least) in [(false, 0.8, 0.6), (true, 0.6, 0.6)] {
        for requests in [500.0, 1000.0, 1500.0, 3000.0, 6000.0] {
            let parts = parts_by_weight(requests, two_limits, 1);
            println!("{requests} requests/s, two limits {two_limits}: {parts:.2?} of their parts");
            let worst = parts.iter().copied().fold(f64::MAX, f64::min);
            assert!(parts[3] > heavy, "{requests} requests/s: {parts:?}");
            assert!(worst > least, "{requests} requests/s: {parts:?}");
        }
    }
}
