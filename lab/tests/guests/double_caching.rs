//! Double caching (Linux Symposium 2010, sections 3 and 4): a build in a guest over QEMU's cache modes, as
//! `lab/experiments/vms/double-caching.toml` and `double-caching-search.toml` say. What both cache is what `justitia host duplicates` says.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use justitia_common::kill_on_drop::KillOnDrop;
use justitia_lab::LabDir;
use justitia_lab::vm::{Vm, VmSpec};
use rustix::fs::Advice;
use serde::Deserialize;
use serde_json::Value;

use super::agent_guest::turn;
use super::cache_daemon::{Daemon, nbd_disk, program};
use super::commands::run as run_here;
use super::guest_host::{comes, run};
use super::retry::retry_after_a_crash;
use super::unmapped::image;

const MIB: u64 = 1 << 20;
/// Two builds under emulation, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(900);
/// The serial of the disk, and its name in the hypervisor cache.
const DISK: &str = "debian";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Experiment {
    title: String,
    question: String,
    memory: String,
    /// Memory of the guest that holds nothing of use.
    ballast_mib: u32,
    vcpus: u32,
    jobs: u32,
    builds: usize,
    /// Run before each build, in its cgroup and in its time.
    #[serde(default)]
    before: String,
    every_s: u64,
    mode: Vec<Mode>,
    goal: Vec<Goal>,
    paper: Paper,
}

/// A way of caching.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Mode {
    id: String,
    label: String,
    what: String,
    /// QEMU's, or `exclusive`.
    cache: String,
    /// Run in the guest before the build.
    #[serde(default)]
    guest: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Goal {
    mode: String,
    share: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Paper {
    figure: String,
    results: Vec<String>,
}

/// What was cached at a moment, MiB.
#[derive(Clone, Copy, Debug, Default)]
struct Sample {
    host: f64,
    guest: f64,
    both: f64,
    /// What of the guest's the build's processes have mapped.
    mapped: f64,
}

/// What came of a mode.
#[derive(Debug, Default)]
struct Outcome {
    /// Of each build, and MiB that the guest read from its disk meanwhile.
    builds: Vec<(f64, u64)>,
    samples: Vec<Sample>,
    /// Those in which the guest's time was up, so that it caches more.
    partial: u32,
    /// MiB of files that the guest caches, and that it tells.
    told: [f64; 2],
    /// Blocks of the guest's in the samples, all together.
    sampled: u64,
    /// What QEMU holds at the end, MiB.
    resident: u64,
}

/// What a mode takes on the host; ended when dropped.
struct Host {
    /// Ended first.
    manager: Option<KillOnDrop>,
    daemon: Daemon,
    dir: tempfile::TempDir,
}

impl Host {
    /// A copy of the image, of which nothing is cached.
    fn new(lab: &LabDir, image: &Path) -> Self {
        let dir = tempfile::tempdir_in(lab.dir("unmapped").unwrap()).unwrap();
        let copy = dir.path().join("image");
        run_here(
            Command::new("cp")
                .arg("--sparse=always")
                .args([image, &copy]),
        );
        let file = File::open(&copy).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        Self {
            daemon: Daemon::default(),
            manager: None,
            dir,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The arguments with which QEMU has the disk; starts what serves it.
    fn disks(&mut self, cache: &str) -> Vec<String> {
        if cache != "exclusive" {
            let image = self.path("image");
            let drive = format!(
                "if=none,id=d,format=raw,cache={cache},file={}",
                image.display()
            );
            let device = format!("virtio-blk-pci,drive=d,serial={DISK}");
            return vec!["-drive".to_owned(), drive, "-device".to_owned(), device];
        }
        let config = format!(
            "control = {:?}\n[memory]\nsize = \"256MiB\"\n[[vm]]\nname = \"web\"\nsocket = {:?}\n[vm.port]\n\
             [[vm.disk]]\nname = \"{DISK}\"\nimage = {:?}\nmode = \"exclusive\"\n",
            self.path("control"),
            self.path("nbd"),
            self.path("image"),
        );
        std::fs::write(self.path("cache.toml"), config).unwrap();
        self.daemon.start(self.dir.path());
        let socket = self.path("nbd");
        [(DISK, DISK), ("web/port", "justitia-port")]
            .map(|(export, serial)| nbd_disk(&socket, export, serial))
            .concat()
    }

    /// Observes the VM of this name.
    fn observe(&mut self, vm: &Vm, name: &str) {
        let config = format!(
            "discover = false\ncache = {:?}\n[[vm]]\nname = \"{name}\"\nchannel = {:?}\n",
            self.path("control"),
            vm.memory_channel(),
        );
        std::fs::write(self.path("host.toml"), config).unwrap();
        let mut command = program();
        command.args(["host", "run", "--observe", "--config"]);
        command.arg(self.path("host.toml")).arg("--directory");
        command.arg(self.path("state")).stdin(Stdio::null());
        let _ = self.manager.insert(KillOnDrop(command.spawn().unwrap()));
    }

    /// The VM as `justitia host duplicates` has it.
    fn duplicates(&self) -> Option<Value> {
        let mut command = program();
        command.args(["host", "duplicates", "--json", "--directory"]);
        let done = command.arg(self.path("state")).output().unwrap();
        let found: Value = serde_json::from_slice(&done.stdout).ok()?;
        found["vms"].as_array()?.first().cloned()
    }
}

/// What a script in a guest begins with that has [`push_builds`].
pub(crate) const SOURCED: &str = ". /root/build.sh; . /root/builds.sh";

/// The functions with which Lua is built.
pub(crate) fn push_builds(vm: &Vm) {
    let push = |to: &str, text: &str| vm.guest().push(to, 0o644, text.as_bytes()).unwrap();
    push("/root/build.sh", include_str!("unmapped/build.sh"));
    push("/root/builds.sh", include_str!("double_caching/build.sh"));
}

/// A guest of this name with the disk mounted, in which what the mode takes runs.
fn boot(experiment: &Experiment, mode: &Mode, host: &mut Host, name: &str) -> Vm {
    let mut qemu_args = host.disks(&mode.cache);
    qemu_args.extend(["-name".to_owned(), format!("guest={name}")]);
    let vm = Vm::boot(&VmSpec {
        memory: justitia_api::size::parse(&experiment.memory).unwrap(),
        vcpus: experiment.vcpus,
        heartbeat_timeout: Duration::from_secs(120),
        gives_memory: true,
        qemu_args,
        ..VmSpec::default()
    })
    .unwrap();
    push_builds(&vm);
    let ballast = experiment.ballast_mib;
    let agent = format!("prepare; ballast {ballast}; justitia guest >/run/guest.log 2>&1 &");
    run(&vm, &format!("{SOURCED}; {agent}\nsleep 1"));
    comes(&vm, "grep -q 'questions about memory' /run/guest.log");
    if mode.cache == "exclusive" {
        comes(&vm, "grep -q 'offered to the host' /run/guest.log");
    }
    let guest = &mode.guest;
    run(
        &vm,
        &format!("{SOURCED}; {{ {guest}\n:; }} >/run/mode.log 2>&1"),
    );
    vm
}

/// Builds in a guest, and looks at what is cached meanwhile.
fn measure(experiment: &Experiment, mode: &Mode, lab: &LabDir, image: &Path) -> Outcome {
    let mut host = Host::new(lab, image);
    let name = format!("lab{}", std::process::id());
    let vm = boot(experiment, mode, &mut host, &name);
    host.observe(&vm, &name);
    // The lab's own programs lie in memory.
    let before: f64 = mapped(&vm);
    let (jobs, builds, before_each) = (experiment.jobs, experiment.builds, &experiment.before);
    run(
        &vm,
        &format!("{SOURCED}; builds {jobs} {builds} '{before_each}' >/run/build.log 2>&1 &"),
    );
    let mut outcome = Outcome::default();
    let begun = Instant::now();
    let lines = loop {
        assert!(begun.elapsed() < PATIENCE, "the builds do not end");
        std::thread::sleep(Duration::from_secs(experiment.every_s));
        let found = host.duplicates();
        let mapped = self::mapped(&vm) - before;
        let lines = run(&vm, "cat /run/result");
        if lines.ends_with("end") {
            break lines;
        }
        if let Some(found) = found {
            outcome.add(&found, mapped.max(0.0));
        }
    };
    outcome.resident = vm.resident().unwrap() / MIB;
    outcome.builds = lines.lines().filter_map(build).collect();
    let log = run(
        &vm,
        "tail -5 /run/build.log /run/mode.log /run/guest.log; grep oom_kill /proc/vmstat",
    );
    println!("{}: {log}", mode.id);
    assert_eq!(outcome.builds.len(), builds, "{log}");
    println!("{}: {outcome:?}", mode.id);
    outcome
}

/// Pages that processes have mapped, MiB.
fn mapped(vm: &Vm) -> f64 {
    let pages = run(vm, "awk '/^nr_mapped / { print $2 }' /proc/vmstat");
    pages.parse::<f64>().unwrap() / 256.0
}

/// A line of `builds`.
fn build(line: &str) -> Option<(f64, u64)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        [_, "seconds", seconds, "read", mib] => Some((seconds.parse().ok()?, mib.parse().ok()?)),
        _ => None,
    }
}

impl Outcome {
    fn add(&mut self, vm: &Value, mapped: f64) {
        println!("{vm} {mapped}");
        let mib = |value: &Value| value.as_f64().map(|bytes| bytes / (1 << 20) as f64);
        let disks = vm["disks"].as_array().unwrap();
        let Some(disk) = disks.iter().find(|disk| !disk["both"].is_null()) else {
            return;
        };
        self.partial += u32::from(vm["guest_is_whole"] != true);
        let [host, guest, both] = ["host", "guest", "both"].map(|key| mib(&disk[key]).unwrap());
        self.sampled += disk["sampled"].as_u64().unwrap();
        self.told[0] += mib(&vm["guest_file"]).unwrap();
        self.told[1] += guest;
        let mapped = mapped.min(guest);
        self.samples.push(Sample {
            host,
            guest,
            both,
            mapped,
        });
    }

    fn mean(&self) -> Sample {
        let count = f64::from(u32::try_from(self.samples.len()).unwrap());
        let sum = |of: fn(&Sample) -> f64| self.samples.iter().map(of).sum::<f64>() / count;
        Sample {
            host: sum(|sample| sample.host),
            guest: sum(|sample| sample.guest),
            both: sum(|sample| sample.both),
            mapped: sum(|sample| sample.mapped),
        }
    }
}

impl Sample {
    fn share(&self) -> f64 {
        let either = self.host + self.guest - self.both;
        if either > 0.0 {
            self.both / either
        } else {
            0.0
        }
    }

    /// The share of what the guest has not mapped, at most: as if all that it has mapped were in both.
    fn unmapped_share(&self) -> f64 {
        let both = (self.both - self.mapped).max(0.0);
        let either = self.host + self.guest - self.both - self.mapped;
        if either > 0.0 { both / either } else { 0.0 }
    }
}

#[test]
#[ignore = "a quarter of an hour in VMs; a table of docs/results/vms.md"]
fn a_build_over_cache_modes() {
    over_cache_modes(include_str!("../../experiments/vms/double-caching.toml"));
}

#[test]
#[ignore = "ten minutes in VMs; a table of docs/results/vms.md"]
fn a_search_and_a_build_over_cache_modes() {
    over_cache_modes(include_str!(
        "../../experiments/vms/double-caching-search.toml"
    ));
}

/// `MODES=guest,capped` runs these alone.
fn over_cache_modes(experiment: &str) {
    let experiment: Experiment = toml::from_str(experiment).unwrap();
    let wanted = std::env::var("MODES").unwrap_or_default();
    let is_wanted = |mode: &&Mode| wanted.is_empty() || wanted.split(',').any(|id| id == mode.id);
    println!("{}\n{}", experiment.title, experiment.question);
    retry_after_a_crash(|| {
        let _turn = turn();
        let lab = LabDir::find().unwrap();
        let image = image(&lab);
        let modes = experiment.mode.iter().filter(is_wanted);
        let outcomes: Vec<(&Mode, Outcome)> = modes
            .map(|mode| (mode, measure(&experiment, mode, &lab, &image)))
            .collect();
        print_table(&experiment, &outcomes);
        for goal in &experiment.goal {
            let found = outcomes.iter().find(|(mode, _)| mode.id == goal.mode);
            if let Some((mode, outcome)) = found {
                let share = outcome.mean().share();
                assert!(
                    share <= goal.share,
                    "{}: {share:.3} is more than {}",
                    mode.id,
                    goal.share
                );
            }
        }
    });
}

fn print_table(experiment: &Experiment, outcomes: &[(&Mode, Outcome)]) {
    println!(
        "| mode | builds, s | of cache=none | read, MiB | host; guest (mapped); both, MiB | both, of all; of what is not mapped | guest told | QEMU, MiB |"
    );
    let none = outcomes.iter().find(|(mode, _)| mode.cache == "none");
    for (mode, outcome) in outcomes {
        let seconds: Vec<String> = outcome
            .builds
            .iter()
            .map(|(s, _)| format!("{s:.1}"))
            .collect();
        let read: Vec<String> = outcome
            .builds
            .iter()
            .map(|(_, mib)| mib.to_string())
            .collect();
        let relative = none.map(|(_, none)| {
            let pairs = outcome.builds.iter().zip(&none.builds);
            let ratios: Vec<String> = pairs.map(|(a, b)| format!("{:.2}", a.0 / b.0)).collect();
            ratios.join(", ")
        });
        let mean = outcome.mean();
        println!(
            "| {} ({}) | {} | {} | {} | {:.1}; {:.1} ({:.1}); {:.1} | {:.1}; {:.1} % | {:.0} % | {} | {} samples, {} of them partial, {} blocks",
            mode.label,
            mode.what,
            seconds.join(", "),
            relative.unwrap_or_default(),
            read.join(", "),
            mean.host,
            mean.guest,
            mean.mapped,
            mean.both,
            100.0 * mean.share(),
            100.0 * mean.unmapped_share(),
            100.0 * outcome.told[1] / outcome.told[0].max(1.0),
            outcome.resident,
            outcome.samples.len(),
            outcome.partial,
            outcome.sampled,
        );
    }
    println!("{}:", experiment.paper.figure);
    experiment
        .paper
        .results
        .iter()
        .for_each(|line| println!("  {line}"));
}
