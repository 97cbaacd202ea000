//! Cooperative ballooning (Linux Symposium 2010, Table 1, Fig. 6 and 7): builds in two guests at once, as
//! `lab/experiments/vms/cooperation.toml` says, by the controller that moves memory between them.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use justitia_host::monitor::Monitor;
use justitia_host::socket::Socket;
use justitia_lab::LabDir;
use justitia_lab::vm::{Vm, VmSpec};
use justitia_share::num::to_f64;
use rustix::process::{Pid, Signal};
use serde::Deserialize;

use super::agent_guest::turn;
use super::cache_daemon::program;
use super::commands::run as run_here;
use super::double_caching::{SOURCED, push_builds};
use super::guest_host::{comes, run};
use super::host_memory::{boot_two, name, oom_kills};
use super::retry::retry_after_a_crash;
use super::unmapped::{image, median};

const MIB: u64 = 1 << 20;
/// A search and a build under emulation, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(900);
/// The headroom controller takes and gives at most this much in a step.
const STEP: u64 = 100 * MIB;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Experiment {
    title: String,
    question: String,
    memory: String,
    /// Memory of each guest that holds nothing of use.
    ballast_mib: u32,
    vcpus: u32,
    jobs: u32,
    repeats: usize,
    most_mib: u64,
    mode: Vec<Mode>,
    goal: Goal,
}

/// The controller that moves memory.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mode {
    id: String,
    label: String,
    what: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Goal {
    longer: f64,
    paper: String,
}

/// What came of one run of a mode; of both guests together, but for the first.
#[derive(Clone, Debug, Default)]
struct Outcome {
    /// Of the slower build.
    seconds: f64,
    /// Of both QEMU processes, during the builds.
    processor_seconds: f64,
    /// Read from the disks during the builds.
    read_mib: u64,
    /// Held by the QEMU processes during the builds: the mean and the most.
    held_mib: f64,
    most_mib: u64,
}

/// Two guests, with a disk and a monitor each.
struct Guests {
    vms: Vec<Vm>,
    dir: tempfile::TempDir,
    memory: u64,
}

/// `justitia host run`, ended by SIGTERM when dropped, which gives back what it took.
struct Manager(Child);

impl Drop for Manager {
    fn drop(&mut self) {
        let _ = rustix::process::kill_process(Pid::from_child(&self.0), Signal::TERM);
        let _ = self.0.wait();
    }
}

impl Guests {
    fn boot(experiment: &Experiment, mode: &Mode, lab: &LabDir) -> Self {
        let dir = tempfile::tempdir_in(lab.dir("unmapped").unwrap()).unwrap();
        let memory = justitia_api::size::parse(&experiment.memory).unwrap();
        let vms = boot_two(|index| {
            let disk = dir.path().join(format!("{index}.img"));
            let mut copy = Command::new("cp");
            run_here(copy.arg("--sparse=always").args([&image(lab), &disk]));
            VmSpec {
                memory,
                vcpus: experiment.vcpus,
                heartbeat_timeout: Duration::from_secs(120),
                gives_memory: true,
                qemu_args: qemu_args(dir.path(), index, &disk),
                ..VmSpec::default()
            }
        });
        let guests = Self { vms, dir, memory };
        guests
            .vms
            .iter()
            .for_each(|vm| prepare(vm, experiment, mode));
        guests
    }

    fn monitor(&self, index: usize) -> Monitor {
        Monitor::Socket(Socket::trusted(
            self.dir.path().join(format!("{index}.qmp")),
        ))
    }

    /// What each QEMU holds, bytes.
    fn held(&self) -> u64 {
        self.vms.iter().map(|vm| vm.resident().unwrap()).sum()
    }

    /// Seconds of processors that both QEMU processes have taken.
    fn processor_seconds(&self) -> f64 {
        let ticks = self.vms.iter().map(|vm| {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", vm.process_id())).unwrap();
            let fields = stat.rsplit_once(')').unwrap().1.split_whitespace();
            // utime and stime, the 14th and 15th of proc_pid_stat(5).
            let times = fields.skip(11).take(2).map(|field| field.parse::<u64>());
            times.map(Result::unwrap).sum::<u64>()
        });
        let ticks: u64 = ticks.sum();
        to_f64(ticks) / to_f64(rustix::param::clock_ticks_per_second())
    }

    fn set_balloon(&self, index: usize, bytes: u64) {
        let mut session = self.monitor(index).session().unwrap();
        session.set_balloon(bytes).unwrap();
    }

    fn manage(&self, experiment: &Experiment) -> Manager {
        let mut config = format!("discover = false\nmost = \"{}MiB\"\n", experiment.most_mib);
        for index in 0..self.vms.len() {
            config += &format!("[[vm]]\nname = \"{}\"\n", name(index));
        }
        let file = self.dir.path().join("host.toml");
        std::fs::write(&file, config).unwrap();
        let mut command = program();
        command.args(["host", "run", "--config"]).arg(&file);
        command
            .arg("--directory")
            .arg(self.dir.path().join("state"));
        Manager(command.stdin(Stdio::null()).spawn().unwrap())
    }
}

fn qemu_args(dir: &Path, index: usize, disk: &Path) -> Vec<String> {
    let qmp: PathBuf = dir.join(format!("{index}.qmp"));
    [
        "-name".to_owned(),
        format!("guest={}", name(index)),
        "-qmp".to_owned(),
        format!("unix:{},server=on,wait=off", qmp.display()),
        "-drive".to_owned(),
        format!(
            "if=none,id=debian,format=raw,cache=none,file={}",
            disk.display()
        ),
        "-device".to_owned(),
        "virtio-blk-pci,drive=debian,serial=debian".to_owned(),
    ]
    .to_vec()
}

fn prepare(vm: &Vm, experiment: &Experiment, mode: &Mode) {
    push_builds(vm);
    run(
        vm,
        &format!("{SOURCED}; prepare; ballast {}", experiment.ballast_mib),
    );
    if mode.id != "none" {
        run(vm, "modprobe virtio_balloon");
    }
    if mode.id == "justitia" {
        run(vm, "justitia guest >/run/guest.log 2>&1 &");
        comes(vm, "grep -q 'questions about memory' /run/guest.log");
    }
    // What is read once fills the cache, the compiler among it.
    let script = format!("{SOURCED}; cat $(find /debian/usr -xdev -type f) >/dev/null");
    run(vm, &format!("({script}; touch /run/prepared) &"));
}

/// A step of a controller that only knows what the host has left (Proxmox VE's): by which each balloon is moved.
fn step_by_headroom(most: u64, held: u64) -> i64 {
    // A tenth is to be left, as for ours (there a fifth of the host); both have the same share.
    let goal = i128::from(most * 9 / 10) - i128::from(held);
    let each = (goal / 2).clamp(-i128::from(STEP), i128::from(STEP));
    i64::try_from(each).unwrap()
}

#[test]
fn the_controller_by_headroom_moves_at_most_a_step() {
    for (held, moved) in [
        (900 * MIB, 0),
        (800 * MIB, 50 << 20),
        (0, 100 << 20),
        (1000 * MIB, -(50 << 20)),
        (4000 * MIB, -(100 << 20)),
    ] {
        assert_eq!(step_by_headroom(1000 * MIB, held), moved);
    }
}

/// The builds of both, and what is held meanwhile.
fn measure(experiment: &Experiment, mode: &Mode, lab: &LabDir) -> Outcome {
    let guests = Guests::boot(experiment, mode, lab);
    let most = experiment.most_mib * MIB;
    // Of the balloons: what is left of the guests' memory.
    let mut left = guests.memory;
    let _manager = (mode.id == "justitia").then(|| guests.manage(experiment));
    if mode.id == "static" {
        // Overcommitted by a half, as both are for the others.
        left = guests.memory * 2 / 3;
        (0..2).for_each(|index| guests.set_balloon(index, left));
    }
    for vm in &guests.vms {
        wait_for(vm, "test -e /run/prepared");
        let script = format!("{SOURCED}; builds {} 1 :", experiment.jobs);
        run(vm, &format!("{{ {script}; }} >/run/build.log 2>&1 &"));
    }
    let (begun, before) = (Instant::now(), guests.processor_seconds());
    let mut held = Vec::new();
    let ended = |vm: &Vm| run(vm, "cat /run/result").ends_with("end");
    while !guests.vms.iter().all(ended) {
        assert!(begun.elapsed() < PATIENCE, "the builds do not end");
        held.push(guests.held());
        if mode.id == "headroom" {
            let moved = step_by_headroom(most, guests.held());
            left = left
                .saturating_add_signed(moved)
                .clamp(guests.memory / 2, guests.memory);
            (0..2).for_each(|index| guests.set_balloon(index, left));
        }
        std::thread::sleep(Duration::from_secs(2));
    }
    let mean = to_f64(held.iter().sum()) / to_f64(held.len() as u64);
    let mut outcome = Outcome {
        processor_seconds: guests.processor_seconds() - before,
        held_mib: mean / to_f64(MIB),
        most_mib: held.iter().max().unwrap() / MIB,
        ..Outcome::default()
    };
    for vm in &guests.vms {
        let line = run(vm, "head -1 /run/result");
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "seconds", seconds, "read", mib] = words[..] else {
            panic!(
                "{}: {line:?}\n{}",
                mode.id,
                run(vm, "tail -20 /run/build.log")
            );
        };
        outcome.seconds = outcome.seconds.max(seconds.parse().unwrap());
        outcome.read_mib += mib.parse::<u64>().unwrap();
        assert_eq!(oom_kills(vm), "0");
    }
    println!("{}: {outcome:?}", mode.id);
    outcome
}

fn wait_for(vm: &Vm, script: &str) {
    let begun = Instant::now();
    while run(vm, &format!("{script} && echo yes || true")) != "yes" {
        assert!(begun.elapsed() < PATIENCE, "expected {script}");
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Modes in turn, so that what the machine does beside them is the same for all. `REPEATS=1` or `MODES=none,justitia` for less;
/// the first and the last are always run.
#[test]
#[ignore = "an hour in two VMs; a table of docs/results/vms.md"]
fn builds_over_controllers() {
    let experiment: Experiment =
        toml::from_str(include_str!("../../experiments/vms/cooperation.toml")).unwrap();
    println!("{}\n{}", experiment.title, experiment.question);
    let repeats = std::env::var("REPEATS").map_or(experiment.repeats, |n| n.parse().unwrap());
    let _turn = turn();
    let lab = LabDir::find().unwrap();
    let wanted = std::env::var("MODES").unwrap_or_default();
    let is_wanted = |id: &str| {
        wanted.is_empty()
            || ["none", "justitia"].contains(&id)
            || wanted.split(',').any(|of| of == id)
    };
    let modes: Vec<&Mode> = experiment
        .mode
        .iter()
        .filter(|mode| is_wanted(&mode.id))
        .collect();
    let mut runs = vec![Vec::new(); modes.len()];
    for _ in 0..repeats {
        for (mode, runs) in modes.iter().zip(&mut runs) {
            let outcome = std::cell::Cell::new(None);
            retry_after_a_crash(|| outcome.set(Some(measure(&experiment, mode, &lab))));
            runs.extend(outcome.take());
        }
    }
    println!(
        "| mode | seconds | of none | processor seconds | of none | read, MiB | held, MiB: mean; most |"
    );
    let of =
        |runs: &[Outcome], figure: fn(&Outcome) -> f64| median(runs.iter().map(figure).collect());
    let figures: [fn(&Outcome) -> f64; 5] = [
        |run| run.seconds,
        |run| run.processor_seconds,
        |run| to_f64(run.read_mib),
        |run| run.held_mib,
        |run| to_f64(run.most_mib),
    ];
    let [none, .., ours] = &runs[..] else {
        panic!("expected modes, the first without control and the last ours")
    };
    for (mode, runs) in modes.iter().zip(&runs) {
        let [seconds, processor, read, held, most] = figures.map(|figure| of(runs, figure));
        println!(
            "| {} ({}) | {seconds:.1} | {:.2} | {processor:.1} | {:.2} | {read:.0} | {held:.0}; {most:.0} |",
            mode.label,
            mode.what,
            seconds / of(none, figures[0]),
            processor / of(none, figures[1]),
        );
    }
    println!("paper: {}", experiment.goal.paper);
    let longer = of(ours, figures[1]) / of(none, figures[1]) - 1.0;
    assert!(
        longer <= experiment.goal.longer,
        "{:.1} % more processor time than without control, more than {:.1} %",
        longer * 100.0,
        experiment.goal.longer * 100.0
    );
}
