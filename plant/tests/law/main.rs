//! A law for device bandwidth that may replace the one of `share::credit`, on the model: proportional, work conserving, quick,
//! quiet. `SEEDS=500` plays more than a few seeds. Guests have not confirmed it: docs/results/device.md.

#![expect(clippy::unwrap_used, reason = "tests say what is wrong by failing")]

mod controlled;
mod law;
mod properties;

use controlled::Controlled;
use justitia_plant::{Disk, Machine, Memory, Scheduler, Work};
use justitia_share::num::to_f64;

const FOUR: [u64; 4] = [100, 200, 400, 800];
const STARVING: [u64; 8] = [100, 1000, 1000, 1000, 1000, 1000, 1000, 1000];

fn seeds(few: u64) -> u64 {
    std::env::var("SEEDS").map_or(few, |seeds| seeds.parse().unwrap())
}

/// Many tenants that do the same.
struct Case {
    what: &'static str,
    /// The disk's speed, MB/s.
    disk: f64,
    memory: Memory,
    weights: &'static [u64],
    work: Work,
    /// Seconds before the window, and in it.
    window: (f64, f64),
    /// The most that PV may be on the median, and the least total, of the kernel's.
    goal: (f64, f64),
}

impl Case {
    fn run(&self, seed: u64) -> (f64, f64) {
        let mut machine = Controlled::new(self.disk, self.memory, self.weights, seed);
        machine.machine.set_all(self.work);
        machine.window(self.window.0, self.window.1)
    }

    /// The total of the kernel alone, MB/s.
    fn kernel(&self) -> f64 {
        let disk = Disk::new(self.disk * 1e6, Scheduler::Fifo);
        let mut machine = Machine::new(disk, self.memory, self.weights.len(), 1);
        machine.set_all(self.work);
        machine.run(self.window.0);
        machine.take_done();
        machine.run(self.window.1);
        machine.take_done().iter().sum::<f64>() / self.window.1 / 1e6
    }
}

fn cases() -> Vec<Case> {
    let direct = |what, work| Case {
        what,
        disk: 60.0,
        memory: Memory::guest(),
        weights: &FOUR,
        work,
        window: (6.0, 15.0),
        goal: (0.1, 0.99),
    };
    let writers = |what, disk, pv| Case {
        disk,
        window: (12.0, 30.0),
        goal: (pv, 0.99),
        ..direct(what, Work::buffered())
    };
    let servers = |what, weights, work, seconds, pv| Case {
        disk: 20.0,
        memory: Memory::slow_guest(),
        weights,
        window: (24.0, seconds),
        goal: (pv, 0.95),
        ..direct(what, work)
    };
    let asynchronous = Work {
        asynchronous: true,
        ..Work::direct(16, 65536.0)
    };
    vec![
        direct("direct", Work::direct(16, 65536.0)),
        direct("direct, asynchronous", asynchronous),
        direct("direct, requests of 4 KiB", Work::direct(16, 4096.0)),
        writers("buffered writers", 60.0, 0.15),
        writers("buffered writers, slow disk", 30.0, 0.25),
        servers("file servers", &FOUR, Work::file_server(115e6), 40.0, 0.3),
        servers(
            "file servers, 1 + 7",
            &STARVING,
            Work::file_server(43e6),
            80.0,
            0.5,
        ),
        servers(
            "direct, 1 + 7",
            &STARVING,
            Work::direct(8, 65536.0),
            80.0,
            0.3,
        ),
    ]
}

/// The median and the 95th percentile.
fn distribution(mut of: Vec<f64>) -> (f64, f64) {
    of.sort_by(f64::total_cmp);
    (of[of.len() / 2], of[of.len() * 95 / 100])
}

#[test]
fn bandwidth_of_applications_follows_the_weights_and_nothing_is_lost() {
    let seeds = seeds(3);
    println!("| | PV: median | 95 % | total, MB/s | of the kernel alone |");
    println!("|---|---|---|---|---|");
    for case in cases() {
        let (pvs, totals) = (1..=seeds).map(|seed| case.run(seed)).unzip();
        let (pv, worst) = distribution(pvs);
        let (total, _) = distribution(totals);
        let part = total / case.kernel();
        println!(
            "| {} | {pv:.2} | {worst:.2} | {total:.1} | {part:.2} |",
            case.what
        );
        let (most, least) = case.goal;
        assert!(
            pv <= most && worst <= 2.0 * most,
            "{}: {pv} {worst}",
            case.what
        );
        assert!(part >= least, "{}: {part} of the kernel's", case.what);
    }
}

fn direct(seed: u64) -> Controlled {
    let mut machine = Controlled::new(60.0, Memory::guest(), &FOUR, seed);
    machine.machine.set_all(Work::direct(16, 65536.0));
    machine
}

/// The part of what all get that is in wrong hands.
fn misallocated(got: &[f64], weights: &[u64]) -> f64 {
    let (all, of) = (got.iter().sum::<f64>(), to_f64(weights.iter().sum()));
    let wrong = |(got, weight): (&f64, &u64)| (got / all - to_f64(*weight) / of).max(0.0);
    got.iter().zip(weights).map(wrong).sum()
}

#[test]
fn alone_idle_or_equal_nobody_is_limited() {
    let mut machine = Controlled::new(60.0, Memory::guest(), &FOUR, 1);
    machine.machine.set_work(0, Some(Work::direct(16, 65536.0)));
    machine.run(10.0);
    assert!(!machine.engaged(), "alone");
    let mut machine = Controlled::new(60.0, Memory::guest(), &FOUR, 1);
    let light = Work {
        think: 0.1,
        ..Work::direct(4, 65536.0)
    };
    machine.machine.set_all(light);
    machine.run(10.0);
    assert!(!machine.engaged(), "the disk is not busy");
    let mut machine = Controlled::new(60.0, Memory::guest(), &[100; 4], 1);
    machine.machine.set_all(Work::direct(16, 65536.0));
    machine.run(10.0);
    assert!(!machine.engaged(), "equal");
}

#[test]
fn contention_is_met_within_a_second_and_left_when_it_ends() {
    let mut machine = direct(1);
    machine.run(1.25);
    assert!(machine.engaged());
    for tenant in 1..4 {
        machine.machine.set_work(tenant, None);
    }
    machine.run(2.5);
    assert!(!machine.engaged());
    let got = machine.measure(5.0);
    assert!(got[0] > 59e6, "{got:?}");
}

#[test]
fn what_one_leaves_the_others_get() {
    let mut machine = direct(1);
    machine.run(6.0);
    machine.machine.set_work(3, None);
    machine.run(3.0);
    let got = machine.measure(10.0);
    assert!(got.iter().sum::<f64>() > 59.4e6, "{got:?}");
    assert!(misallocated(&got[..3], &FOUR[..3]) < 0.03, "{got:?}");
    // One that wants a little has it, and keeps nobody from the rest.
    let little = Work {
        think: 0.1,
        ..Work::direct(1, 65536.0)
    };
    machine.machine.set_work(3, Some(little));
    machine.run(3.0);
    let got = machine.measure(10.0);
    assert!(got.iter().sum::<f64>() > 59e6 && got[3] > 0.3e6, "{got:?}");
}

#[test]
fn exchanged_weights_are_followed_within_a_second() {
    for seed in 1..=seeds(3) {
        let mut machine = direct(seed);
        machine.run(10.0);
        let exchanged = [800, 400, 200, 100];
        machine.set_weights(&exchanged);
        machine.run(1.0);
        let got = machine.measure(1.0);
        assert!(misallocated(&got, &exchanged) < 0.1, "{got:?}");
    }
}

#[test]
fn a_disk_of_another_speed_is_found_within_seconds() {
    let mut machine = direct(1);
    machine.run(6.0);
    for speed in [6e6, 60e6] {
        machine.machine.set_speed(speed);
        machine.run(3.0);
        // Three quarters of it within three seconds, and all within eight.
        for part in [0.75, 0.97] {
            let got = machine.measure(2.0);
            assert!(got.iter().sum::<f64>() > part * speed, "{speed}: {got:?}");
            assert!(misallocated(&got, &FOUR) < 0.1, "{speed}: {got:?}");
            machine.run(3.0);
        }
    }
}

#[test]
fn it_comes_to_rest() {
    let mut machine = direct(1);
    machine.run(20.0);
    machine.take_moves();
    machine.run(30.0);
    let moves = machine.take_moves();
    assert!(moves < 60, "{moves} writes for four tenants in 30 s");
}

#[test]
fn a_look_a_second_will_do() {
    let mut machine = direct(1);
    machine.run(6.0);
    machine.period = 1.0;
    machine.run(10.0);
    let (pv, total) = machine.window(0.0, 20.0);
    assert!(pv < 0.15 && total > 59.4, "{pv} {total}");
}

#[test]
fn shares_hold_in_a_tree() {
    // 1 : 3, and in each of the two 1 : 3 again.
    let groups = [(100, vec![100, 300]), (300, vec![100, 300])];
    let mut machine = Controlled::with_tree(60.0, Memory::guest(), &groups, 1);
    machine.machine.set_all(Work::direct(16, 65536.0));
    machine.run(6.0);
    let got = machine.measure(15.0);
    assert!(misallocated(&got, &[100, 300, 300, 900]) < 0.02, "{got:?}");
}

#[test]
fn who_comes_back_has_saved_nothing() {
    let mut machine = direct(1);
    machine.run(6.0);
    machine.machine.set_work(0, None);
    machine.run(30.0);
    machine.machine.set_work(0, Some(Work::direct(16, 65536.0)));
    machine.run(1.0);
    let got = machine.measure(2.0);
    let part = got[0] / got.iter().sum::<f64>();
    assert!(part < 1.5 / 15.0, "{got:?}");
}
