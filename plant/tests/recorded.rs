//! The model beside what was recorded of guests (docs/results/device.md, "The model").

use justitia_plant::{Disk, Machine, Memory, Scheduler, Work};

const FOUR: [f64; 4] = [100.0, 200.0, 400.0, 800.0];
const STARVING: [f64; 8] = [100.0, 1e3, 1e3, 1e3, 1e3, 1e3, 1e3, 1e3];
const BFQ: Scheduler = Scheduler::Bfq { leak: 0.125 };
const NONE: Scheduler = Scheduler::Fifo;

/// A run as of an experiment of the lab.
#[derive(Clone, Copy)]
struct Run<'a> {
    /// The disk's speed, MB/s.
    disk: f64,
    scheduler: Scheduler,
    memory: Memory,
    weights: &'a [f64],
    work: Work,
    /// Seconds before the window, and in it.
    window: (f64, f64),
}

impl Run<'_> {
    /// PV and total, MB/s.
    fn measure(self) -> (f64, f64) {
        let disk = Disk::new(self.disk * 1e6, self.scheduler);
        let mut machine = Machine::new(disk, self.memory, self.weights.len(), 7);
        for (tenant, weight) in self.weights.iter().enumerate() {
            machine.set_weight(tenant, *weight);
        }
        machine.set_all(self.work);
        machine.run(self.window.0);
        machine.take_done();
        machine.run(self.window.1);
        let got = machine.take_done();
        let unit = got[0] / self.weights[0];
        let off = self
            .weights
            .iter()
            .zip(&got)
            .map(|(w, g)| (w - g / unit).abs() / self.weights[0]);
        let (sum, count) = off.fold((0.0, 0.0), |(sum, n), one| (sum + one, n + 1.0));
        (sum / count, got.iter().sum::<f64>() / self.window.1 / 1e6)
    }
}

/// What an experiment is called, the recorded PV and total in MB/s, and the run.
type Recorded<'a> = (&'a str, f64, Option<f64>, Run<'a>);

fn by(run: Run<'static>, scheduler: Scheduler) -> Run<'static> {
    Run { scheduler, ..run }
}

fn cost(run: Run<'static>, model: f64) -> Run<'static> {
    let rate = model * run.disk * 1e6;
    let requests = f64::INFINITY;
    by(
        run,
        Scheduler::IoCost {
            bytes: rate,
            requests,
        },
    )
}

fn direct() -> Run<'static> {
    Run {
        disk: 60.0,
        scheduler: NONE,
        memory: Memory::guest(),
        weights: &FOUR,
        work: Work::direct(16, 65536.0),
        window: (6.0, 15.0),
    }
}

/// Of a file server's files about half exist at a time.
fn servers() -> Run<'static> {
    Run {
        disk: 20.0,
        memory: Memory::slow_guest(),
        work: Work::file_server(115e6),
        window: (24.0, 40.0),
        ..direct()
    }
}

fn recorded() -> Vec<Recorded<'static>> {
    let (direct, servers) = (direct(), servers());
    let writers = Run {
        work: Work::buffered(),
        window: (12.0, 30.0),
        ..direct
    };
    let starving = Run {
        weights: &STARVING,
        work: Work::file_server(43e6),
        window: (24.0, 80.0),
        ..servers
    };
    vec![
        ("direct ×4, none", 2.79, Some(60.0), direct),
        ("direct ×4, BFQ", 0.98, Some(60.0), by(direct, BFQ)),
        (
            "direct ×4, io.cost at 98 %",
            0.0,
            Some(58.8),
            cost(direct, 0.98),
        ),
        (
            "direct ×4, io.cost at 100 %",
            0.0,
            Some(60.0),
            cost(direct, 1.0),
        ),
        (
            "direct ×4, io.cost at 103 %",
            2.37,
            Some(60.0),
            cost(direct, 1.03),
        ),
        ("writers ×4, none", 2.75, Some(71.9), writers),
        ("writers ×4, BFQ", 0.92, None, by(writers, BFQ)),
        (
            "writers ×4, io.cost at 100 %",
            1.55,
            Some(74.1),
            cost(writers, 1.0),
        ),
        ("file servers ×4, none", 2.80, Some(104.0), servers),
        ("file servers ×4, BFQ", 0.80, Some(100.9), by(servers, BFQ)),
        ("file servers 1 + 7, none", 7.94, None, starving),
        ("file servers 1 + 7, BFQ", 0.74, None, by(starving, BFQ)),
    ]
}

/// What the model is known not to reproduce; docs/results/device.md says so.
const FAR: [&str; 3] = [
    "direct ×4, io.cost at 100 %",
    "direct ×4, io.cost at 103 %",
    "file servers 1 + 7, BFQ",
];

#[test]
fn as_guests_have_shown() {
    println!("| | PV recorded | of the model | total recorded, MB/s | of the model |");
    println!("|---|---|---|---|---|");
    let mut far = Vec::new();
    for (what, pv, total, run) in recorded() {
        let (model, bandwidth) = run.measure();
        let said = total.map_or(String::new(), |total| format!("{total:.1}"));
        println!("| {what} | {pv:.2} | {model:.2} | {said} | {bandwidth:.1} |");
        let off = total.map_or(0.0, |total| (bandwidth / total - 1.0).abs());
        if (model - pv).abs() > 0.25 + 0.25 * pv || off > 0.3 {
            far.push(what);
        }
    }
    assert_eq!(far, FAR);
}
