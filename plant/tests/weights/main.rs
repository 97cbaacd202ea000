//! Weights of BFQ and of io.cost, corrected in a closed loop, on the model, beside plain ones. `SEEDS=500` plays more than a few seeds. What guests
//! have shown: docs/design/decisions/0012-bfq-weights.md.

#![expect(clippy::unwrap_used, reason = "tests say what is wrong by failing")]

mod capacity;
mod controlled;
mod protected;
mod sizes;

use controlled::{Acts, Controlled, all, bfq, io_cost};
use justitia_plant::{Disk, Kind, Memory, Work};
use justitia_share::num::to_f64;

const FOUR: [u64; 4] = [100, 200, 400, 800];
const STARVING: [u64; 8] = [100, 1000, 1000, 1000, 1000, 1000, 1000, 1000];
const EIGHT: [u64; 8] = [100, 200, 300, 400, 500, 600, 700, 800];

fn seeds(few: u64) -> u64 {
    std::env::var("SEEDS").map_or(few, |seeds| seeds.parse().unwrap())
}

/// Many tenants that do the same.
struct Case {
    what: &'static str,
    disk: Disk,
    memory: Memory,
    weights: &'static [u64],
    work: Work,
    /// Seconds before the window, and in it.
    window: (f64, f64),
    /// The most that PV may be on the median.
    most: f64,
    /// What must be left of the total with plain weights.
    keeps: f64,
}

impl Case {
    fn run(&self, seed: u64, acts: Acts) -> (f64, f64) {
        let machine = Controlled::new(self.disk, self.memory, self.weights, seed, acts);
        all(machine, self.work).window(self.window.0, self.window.1)
    }
}

fn direct_case(what: &'static str, work: Work, most: f64) -> Case {
    Case {
        what,
        disk: bfq(60.0),
        memory: Memory::guest(),
        weights: &FOUR,
        work,
        window: (6.0, 15.0),
        most,
        keeps: 0.98,
    }
}

fn writers_case(what: &'static str, disk: Disk, most: f64) -> Case {
    Case {
        disk,
        window: (12.0, 30.0),
        ..direct_case(what, Work::buffered(), most)
    }
}

/// On a slow disk, with a window of `seconds`.
fn servers_case(
    what: &'static str,
    weights: &'static [u64],
    work: Work,
    seconds: f64,
    most: f64,
) -> Case {
    Case {
        disk: bfq(20.0),
        memory: Memory::slow_guest(),
        weights,
        window: (24.0, seconds),
        ..direct_case(what, work, most)
    }
}

fn cases() -> Vec<Case> {
    let (queue, server) = (
        |depth| Work::direct(depth, 65536.0),
        |rate| Work::file_server(rate),
    );
    vec![
        direct_case("direct, queue depth 16", queue(16), 0.15),
        direct_case("direct, queue depth 4", queue(4), 0.15),
        direct_case("direct, queue depth 1", queue(1), 1.2),
        direct_case("readers", readers(), 0.15),
        writers_case("buffered writers", bfq(60.0), 0.2),
        // For a third of the window the lightest stands still behind what it got before it.
        writers_case("buffered writers, slow disk", bfq(30.0), 0.35),
        servers_case("file servers", &FOUR, server(115e6), 40.0, 0.2),
        servers_case("file servers ×8", &EIGHT, server(90e6), 40.0, 0.35),
        servers_case("file servers, 1 + 7", &STARVING, server(43e6), 80.0, 0.3),
        servers_case("direct, 1 + 7", &STARVING, queue(8), 80.0, 2.0),
    ]
}

/// The model of io.cost is this part of the disk.
fn io_cost_cases() -> Vec<Case> {
    let direct = |what, model, most| Case {
        disk: io_cost(60.0, model),
        ..direct_case(what, Work::direct(16, 65536.0), most)
    };
    // The model of the page cache writes a twentieth less again where the light tenants have less; guests do not.
    let writers = |what, model, most| Case {
        keeps: 0.95,
        ..writers_case(what, io_cost(60.0, model), most)
    };
    vec![
        direct("io.cost at 90 %, direct", 0.9, 0.15),
        direct("io.cost at 100 %, direct", 1.0, 0.4),
        writers("io.cost at 90 %, buffered writers", 0.9, 0.3),
        writers("io.cost at 100 %, buffered writers", 1.0, 0.3),
        Case {
            disk: io_cost(20.0, 0.9),
            ..servers_case(
                "io.cost at 90 %, file servers",
                &FOUR,
                Work::file_server(115e6),
                40.0,
                0.2,
            )
        },
    ]
}

fn readers() -> Work {
    Work {
        kind: Kind::Direct { writes: 0.0 },
        ..Work::direct(4, 65536.0)
    }
}

/// The median and the 95th percentile.
fn distribution(mut of: Vec<f64>) -> (f64, f64) {
    of.sort_by(f64::total_cmp);
    (of[of.len() / 2], of[of.len() * 95 / 100])
}

#[test]
fn corrected_weights_are_closer_than_plain_ones_and_nothing_is_lost() {
    let seeds = seeds(5);
    println!(
        "| BFQ where nothing is said | plain weights: PV; total, MB/s | weights corrected: PV, 95 %; total | and dirty budgets: PV, 95 %; total |"
    );
    println!("|---|---|---|---|");
    for case in cases().into_iter().chain(io_cost_cases()) {
        let of = |acts| {
            let (pvs, totals) = (1..=seeds).map(|seed| case.run(seed, acts)).unzip();
            let ((pv, worst), (total, _)) = (distribution(pvs), distribution(totals));
            (pv, worst, total)
        };
        let (plain, _, total) = of(Acts::Nothing);
        let weights = of(Acts::Weights);
        let rooms = of(Acts::WeightsAndRooms);
        let said = |(pv, worst, total): (f64, f64, f64)| format!("{pv:.2}, {worst:.2}; {total:.1}");
        println!(
            "| {} | {plain:.2}; {total:.1} | {} | {} |",
            case.what,
            said(weights),
            said(rooms)
        );
        // As the agent does it, which is with dirty budgets.
        let (pv, worst, all) = rooms;
        let what = case.what;
        assert!(
            pv <= case.most && worst <= 2.5 * case.most,
            "{what}: {pv} {worst}"
        );
        assert!(all >= case.keeps * total, "{what}: {all} of {total}");
    }
}

/// The part of what all get that is in wrong hands.
fn misallocated(got: &[f64], weights: &[u64]) -> f64 {
    let (all, of) = (got.iter().sum::<f64>(), to_f64(weights.iter().sum()));
    let wrong = |(got, weight): (&f64, &u64)| (got / all - to_f64(*weight) / of).max(0.0);
    got.iter().zip(weights).map(wrong).sum()
}

fn direct(seed: u64) -> Controlled {
    let machine = Controlled::new(bfq(60.0), Memory::guest(), &FOUR, seed, Acts::Weights);
    all(machine, Work::direct(16, 65536.0))
}

#[test]
fn alone_idle_or_equal_no_weight_is_corrected() {
    let mut machine = Controlled::new(bfq(60.0), Memory::guest(), &FOUR, 1, Acts::Weights);
    machine.machine.set_work(0, Some(Work::direct(16, 65536.0)));
    machine.run(10.0);
    assert!(!machine.engaged(), "alone");
    let machine = Controlled::new(bfq(60.0), Memory::guest(), &FOUR, 1, Acts::Weights);
    let light = Work {
        think: 0.1,
        ..Work::direct(4, 65536.0)
    };
    let mut machine = all(machine, light);
    machine.run(10.0);
    assert!(!machine.engaged(), "the disk is not busy");
}

#[test]
fn contention_is_met_within_seconds_and_left_when_it_ends() {
    let mut machine = direct(1);
    machine.run(3.0);
    assert!(machine.engaged());
    for tenant in 1..4 {
        machine.machine.set_work(tenant, None);
    }
    machine.run(2.5);
    assert!(!machine.engaged() && machine.standing.is_empty());
    let got = machine.measure(5.0);
    assert!(got[0] > 59e6, "{got:?}");
}

#[test]
fn exchanged_weights_are_followed_within_two_seconds() {
    for seed in 1..=seeds(3) {
        let mut machine = direct(seed);
        machine.run(10.0);
        let exchanged = [800, 400, 200, 100];
        machine.set_weights(&exchanged);
        machine.run(2.0);
        let got = machine.measure(2.0);
        assert!(misallocated(&got, &exchanged) < 0.1, "{got:?}");
    }
}

#[test]
fn what_one_leaves_the_others_get_by_weight() {
    let mut machine = direct(1);
    machine.run(6.0);
    machine.machine.set_work(3, None);
    machine.run(2.0);
    let got = machine.measure(10.0);
    assert!(got.iter().sum::<f64>() > 59.4e6, "{got:?}");
    assert!(misallocated(&got[..3], &FOUR[..3]) < 0.03, "{got:?}");
    // A tenant that comes back has saved nothing.
    machine.machine.set_work(3, Some(Work::direct(16, 65536.0)));
    machine.run(2.0);
    let got = machine.measure(3.0);
    assert!(misallocated(&got, &FOUR) < 0.1, "{got:?}");
}

#[test]
fn who_wants_little_has_it_and_keeps_nobody_from_the_rest() {
    let mut machine = direct(1);
    let little = Work {
        think: 0.1,
        ..Work::direct(1, 65536.0)
    };
    machine.machine.set_work(3, Some(little));
    machine.run(6.0);
    let got = machine.measure(10.0);
    assert!(got.iter().sum::<f64>() > 59e6 && got[3] > 0.3e6, "{got:?}");
    assert!(misallocated(&got[..3], &FOUR[..3]) < 0.05, "{got:?}");
}

#[test]
fn the_speed_of_the_disk_does_not_matter() {
    let mut machine = direct(1);
    machine.run(6.0);
    for speed in [6e6, 60e6] {
        machine.machine.set_speed(speed);
        machine.run(4.0);
        let got = machine.measure(8.0);
        assert!(got.iter().sum::<f64>() > 0.98 * speed, "{speed}: {got:?}");
        assert!(misallocated(&got, &FOUR) < 0.1, "{speed}: {got:?}");
    }
}

/// The slowest hundredth of `fsync` of the heaviest, milliseconds, beside three buffered writers.
fn slow_fsync(acts: Acts) -> f64 {
    let machine = Controlled::new(bfq(60.0), Memory::guest(), &FOUR, 1, acts);
    let mut machine = all(machine, Work::buffered());
    machine.machine.set_work(3, Some(Work::fsync()));
    machine.run(12.0);
    machine.machine.take_latencies(3);
    machine.run(60.0);
    let mut took = machine.machine.take_latencies(3);
    assert!(took.len() > 100, "{}", took.len());
    took.sort_by(f64::total_cmp);
    took[took.len() * 99 / 100] * 1e3
}

#[test]
fn corrections_make_nobody_wait_longer_for_fsync() {
    let (plain, corrected) = (slow_fsync(Acts::Nothing), slow_fsync(Acts::WeightsAndRooms));
    assert!(
        corrected <= 1.1 * plain,
        "{corrected} ms, plain BFQ {plain} ms"
    );
}

#[test]
fn it_comes_to_rest() {
    let mut machine = direct(1);
    machine.run(20.0);
    machine.moves = 0;
    machine.run(30.0);
    assert!(
        machine.moves < 150,
        "{} writes for four tenants in 30 s",
        machine.moves
    );
}

#[test]
fn a_look_a_second_will_do() {
    let mut machine = direct(1);
    machine.run(6.0);
    machine.period = 1.0;
    let (pv, total) = machine.window(10.0, 20.0);
    assert!(pv < 0.15 && total > 59.4, "{pv} {total}");
}

#[test]
fn shares_hold_in_a_tree() {
    // 1 : 3, and in each of the two 1 : 3 again.
    let groups = [(100, vec![100, 300]), (300, vec![100, 300])];
    let machine = Controlled::with_tree(bfq(60.0), Memory::guest(), &groups, 1, Acts::Weights);
    let mut machine = all(machine, Work::direct(16, 65536.0));
    machine.run(10.0);
    let got = machine.measure(15.0);
    assert!(misallocated(&got, &[100, 300, 300, 900]) < 0.03, "{got:?}");
}

/// One has requests at intervals, in lumps: it may want a part of its share, or all of it.
#[test]
fn a_tenant_that_wants_less_than_its_share_costs_the_others_little() {
    let ways = [
        ("BFQ", bfq(60.0), Acts::Weights),
        ("undivided", capacity::undivided(60.0), Acts::Capacity),
    ];
    for (what, disk, acts) in ways {
        for part in [0.1, 0.2, 0.4, 0.6, 0.8] {
            let machine = Controlled::new(disk, Memory::guest(), &FOUR, 1, acts);
            let mut machine = all(machine, Work::direct(16, 65536.0));
            let wants = part * 60e6 * 8.0 / 15.0;
            let paced = Work {
                think: 16.0 * 65536.0 / wants,
                ..Work::direct(16, 65536.0)
            };
            machine.machine.set_work(3, Some(paced));
            machine.run(20.0);
            let got = machine.measure(30.0);
            let wrong = misallocated(&got[..3], &FOUR[..3]);
            println!("{what}, {part} of its share: {got:.0?}, {wrong:.3} in wrong hands");
            assert!(
                got.iter().sum::<f64>() > 0.9 * 60e6,
                "{what} {part}: {got:?}"
            );
            assert!(
                got[3] > 0.5 * wants && wrong < 0.15,
                "{what} {part}: {got:?}"
            );
        }
    }
}
