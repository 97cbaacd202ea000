//! `justitia host run` over two real guests: memory follows the weights, and a guest in need gets all back.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use justitia_common::kill_on_drop::KillOnDrop;
use justitia_lab::vm::{DiskSpec, Vm, VmSpec};
use rustix::process::{Pid, Signal};
use serde_json::Value;

use super::cache_daemon::program;
use super::guest_host::{comes, run};
use super::retry::retry_after_a_crash;

const MIB: u64 = 1 << 20;

/// The memory of each guest.
const RAM: u64 = 1024 * MIB;

/// What both may hold together, MiB, where each QEMU has some 250 of its own: 1.4 times less than they have.
const MOST: u64 = 2100;
/// The headroom in it: the default, a tenth.
const HEADROOM: u64 = MOST / 10;

/// How long something may take: emulated guests on a busy machine are slow.
const PATIENCE: Duration = Duration::from_secs(180);

/// Two guests, and a directory for the sockets of their monitors.
struct Guests {
    directory: tempfile::TempDir,
    vms: Vec<Vm>,
}

/// The daemon, killed when dropped.
struct Daemon {
    child: KillOnDrop,
    state: PathBuf,
}

/// The name of one of two guests.
pub(crate) fn name(index: usize) -> String {
    format!("lab{}-{index}", std::process::id())
}

/// Two guests at once, each as its number says.
pub(crate) fn boot_two(spec: impl Fn(usize) -> VmSpec) -> Vec<Vm> {
    let first = Vm::boot(&spec(0)).unwrap();
    let second = first.boot_beside(&spec(1)).unwrap();
    vec![first, second]
}

impl Guests {
    /// Boots them; in those with an agent it runs.
    fn boot(agents: [bool; 2]) -> Self {
        let _turn = crate::agent_guest::turn();
        let directory = tempfile::tempdir().unwrap();
        let vms = boot_two(|index| {
            let qmp = directory.path().join(format!("{index}.qmp"));
            let qmp = format!("unix:{},server=on,wait=off", qmp.display());
            VmSpec {
                memory: RAM,
                vcpus: 1,
                disks: vec![DiskSpec::ext4(3 << 30)],
                gives_memory: true,
                qemu_args: ["-name", &format!("guest={}", name(index)), "-qmp", &qmp]
                    .map(Into::into)
                    .to_vec(),
                ..VmSpec::default()
            }
        });
        for (vm, agent) in vms.iter().zip(agents) {
            run(
                vm,
                "mkdir -p /mnt && mount /dev/vda /mnt && modprobe virtio_balloon",
            );
            if agent {
                run(vm, "justitia guest >/run/guest.log 2>&1 &");
                comes(vm, "grep -q 'questions about memory' /run/guest.log");
            }
        }
        Self { directory, vms }
    }

    /// The configuration of the daemon: weights, and what both may hold together, MiB.
    fn config(&self, weights: [u64; 2], most: u64) -> PathBuf {
        let mut config = format!("discover = false\nmost = \"{most}MiB\"\n");
        for (index, weight) in weights.into_iter().enumerate() {
            config += &format!("[[vm]]\nname = \"{}\"\nweight = {weight}\n", name(index));
        }
        let file = self.directory.path().join("host.toml");
        std::fs::write(&file, config).unwrap();
        file
    }

    fn manage(&self, weights: [u64; 2], most: u64) -> Daemon {
        let file = self.config(weights, most);
        let state = self.directory.path().join("state");
        let child = program()
            .args(["host", "run", "--config"])
            .arg(&file)
            .arg("--directory")
            .arg(&state)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let child = KillOnDrop(child);
        Daemon { child, state }
    }

    fn held(&self) -> [u64; 2] {
        [0, 1].map(|index| self.vms[index].resident().unwrap() / MIB)
    }

    /// Reads a file of `mib` MiB again and again.
    fn read(&self, index: usize, mib: u64) {
        run(
            &self.vms[index],
            &format!(
                "dd if=/dev/zero of=/mnt/set bs=1M count={mib} 2>/dev/null; sync
                 while true; do cat /mnt/set >/dev/null; done >/dev/null 2>&1 & echo $! >/run/reader.pid"
            ),
        );
    }
}

impl Daemon {
    fn vm(&self, index: usize) -> Option<Value> {
        let status = program()
            .args(["host", "status", "--json", "--directory"])
            .arg(&self.state)
            .output()
            .unwrap();
        let status: Value = serde_json::from_slice(&status.stdout).ok()?;
        let mut vms = status["vms"].as_array()?.iter();
        vms.find(|vm| vm["name"] == name(index).as_str()).cloned()
    }

    fn explain(&self, index: usize) -> String {
        explain(&self.state, index)
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    fn stop(mut self) {
        self.signal(Signal::TERM);
        assert!(self.child.wait().unwrap().success());
    }
}

fn explain(state: &Path, index: usize) -> String {
    let explained = program()
        .args(["host", "explain", &name(index), "--directory"])
        .arg(state)
        .output()
        .unwrap();
    String::from_utf8_lossy(&explained.stdout).into_owned()
}

/// Waits until it comes; how long that took.
fn wait(what: &str, mut come: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !come() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(200));
    }
    begun.elapsed()
}

/// Processes that the guest's kernel has killed for memory.
pub(crate) fn oom_kills(vm: &Vm) -> String {
    run(vm, "awk '/^oom_kill / { print $2 }' /proc/vmstat")
}

#[test]
#[ignore = "minutes in two VMs: make test-vms"]
fn memory_follows_the_weights() {
    retry_after_a_crash(|| {
        let guests = Guests::boot([true, true]);
        let daemon = guests.manage([100, 100], MOST);
        wait("both agents answer", || {
            [0, 1]
                .iter()
                .all(|index| daemon.vm(*index).is_some_and(|vm| vm["agent"] == "answers"))
        });
        wait("their guests tell their tenants", || {
            let vms = [0, 1].map(|index| daemon.vm(index).unwrap_or_default());
            vms.iter().all(|vm| vm["tenants"]["list"].is_array())
        });
        guests.read(0, 800);
        guests.read(1, 800);
        wait("both together hold what they may", || {
            let [a, b] = guests.held();
            println!("{a} : {b} MiB");
            a + b > MOST - 2 * HEADROOM && a.abs_diff(b) < 150
        });
        std::thread::sleep(Duration::from_secs(20));
        let before = guests.held();
        println!(
            "equal weights: {before:?} MiB\n{}\n{}",
            daemon.explain(0),
            daemon.explain(1)
        );
        // From the first to the second, and back.
        for (weights, to) in [([100, 400], 1), ([400, 100], 0)] {
            let before = guests.held();
            guests.config(weights, MOST);
            daemon.signal(Signal::HUP);
            let took = wait("256 MiB move", || {
                let now = guests.held();
                println!("{now:?}");
                now[to] >= before[to] + 256 && now[1 - to] + 256 <= before[1 - to]
            });
            std::thread::sleep(Duration::from_secs(15));
            let held = guests.held();
            println!(
                "weights {weights:?}: moved after {took:?}; then {held:?} MiB\n{}\n{}",
                daemon.explain(0),
                daemon.explain(1)
            );
            let most = held.iter().sum::<u64>();
            assert!(most <= MOST, "{most} MiB");
        }
        daemon.stop();
        for vm in &guests.vms {
            assert_eq!(oom_kills(vm), "0");
        }
    });
}

/// A random load of a guest: memory that programs hold, MiB, a set that is read again and again, MiB, or nothing, and whether
/// other files are read once.
fn random_load(rng: &mut fastrand::Rng) -> (u64, u64, bool) {
    let set = [0, 50, 100, 200, 400][rng.usize(..5)];
    (rng.u64(0..250), set, rng.bool())
}

/// Programs allocate at most some 50 MiB a second: the headroom holds that for four seconds.
fn begin(vm: &Vm, (held, set, once): (u64, u64, bool)) {
    let read = match set {
        0 => String::new(),
        set => format!(
            "(while true; do dd if=/mnt/set of=/dev/null bs=1M count={set}; usleep 100000; done) &"
        ),
    };
    let once = match once {
        true => "(while true; do dd if=/mnt/once of=/dev/null bs=1M; usleep 500000; done) &",
        false => "",
    };
    run(
        vm,
        &format!(
            "for pid in $(cat /run/load.pids 2>/dev/null); do kill -9 -$pid 2>/dev/null; done
             cat >/run/load <<'END'
truncate -s {held}M /dev/shm/held
at=$(cat /run/held 2>/dev/null || echo 0)
echo {held} >/run/held
(while [ $at -lt {held} ]; do dd if=/dev/zero of=/dev/shm/held bs=1M seek=$at count=8 conv=notrunc; at=$((at + 8)); usleep 150000; done; truncate -s {held}M /dev/shm/held) &
{read}
{once}
wait
END
             setsid sh /run/load >/dev/null 2>&1 & echo $! >/run/load.pids"
        ),
    );
}

#[test]
#[ignore = "minutes in two VMs: make test-vms"]
fn fifty_random_loads_kill_nothing() {
    retry_after_a_crash(|| {
        let guests = Guests::boot([true, true]);
        for vm in &guests.vms {
            run(
                vm,
                "mkdir -p /dev/shm; mount -t tmpfs -o size=95% tmpfs /dev/shm
                 dd if=/dev/zero of=/mnt/set bs=1M count=400 2>/dev/null
                 dd if=/dev/zero of=/mnt/once bs=1M count=1000 2>/dev/null; sync",
            );
        }
        let daemon = guests.manage([100, 100], MOST);
        // The files have filled both.
        let together = || guests.held().iter().sum::<u64>();
        wait("both hold what they may", || together() <= MOST);
        let mut rng = fastrand::Rng::with_seed(7);
        let (mut most, mut over, mut samples) = (0, 0, 0);
        for step in 0..50 {
            let (index, load) = (rng.usize(..2), random_load(&mut rng));
            begin(&guests.vms[index], load);
            for _ in 0..rng.usize(4..24) {
                std::thread::sleep(Duration::from_millis(250));
                let held = together();
                (most, samples) = (most.max(held), samples + 1);
                over += u64::from(held > MOST);
            }
            println!("{step}: guest {index}, {load:?}: {:?} MiB", guests.held());
        }
        println!("together at most {most} of {MOST} MiB; more in {over} of {samples} samples");
        assert_eq!(over, 0, "a host of that size would have swapped");
        for vm in &guests.vms {
            assert_eq!(oom_kills(vm), "0");
            assert_eq!(
                run(vm, "dmesg | grep -c 'Out of puff' || true"),
                "0",
                "its balloon lacked pages"
            );
        }
        daemon.stop();
    });
}

/// `need`: programs take 600 MiB; after how many seconds the balloon holds nothing any more, how many that is after memory was
/// waited for first (PSI), and after how many the programs have all.
const NEED: &str = r#"
ballooned() { awk '/^balloon_inflate/ { a = $2 } /^balloon_deflate/ { b = $2 } END { print a - b }' /proc/vmstat; }
now() { awk '{ print $1 }' /proc/uptime; }
waited() { sed -n 's/^some .*total=//p' /proc/pressure/memory; }
since() { awk -v a=$1 -v b=$2 'BEGIN { printf "%.2f", b - a }'; }
need() {
    mkdir -p /dev/shm; mount -t tmpfs -o size=95% tmpfs /dev/shm
    begun=$(now) before=$(waited) pressed= looks=0 held=$(($(ballooned) / 256))
    dd if=/dev/zero of=/dev/shm/need bs=1M count=600 2>/dev/null &
    until [ "$(ballooned)" = 0 ]; do
        [ -n "$pressed" ] || [ "$(waited)" = $before ] || pressed=$(now)
        looks=$((looks + 1)); [ $looks -lt 600 ] || { echo "its balloon holds $(ballooned) pages"; break; }
        usleep 50000
    done
    back=$(now); wait; ended=$(now)
    echo "$held MiB of its balloon are back after $(since $begun $back) s, $(since ${pressed:-$back} $back) s after it waited for memory first; 600 MiB after $(since $begun $ended) s"
}"#;

#[test]
#[ignore = "minutes in two VMs: make test-vms"]
fn a_guest_in_need_takes_back_all() {
    retry_after_a_crash(|| {
        // The first gives by its agent, the second, without one, by its balloon.
        let guests = Guests::boot([true, false]);
        let daemon = guests.manage([100, 100], 1700);
        for vm in &guests.vms {
            run(
                vm,
                "dd if=/dev/zero of=/mnt/cold bs=1M count=700 2>/dev/null; sync",
            );
        }
        let balloon = |daemon: &Daemon| daemon.vm(1).and_then(|vm| vm["balloon"][0].as_u64());
        wait("both give", || {
            let given = daemon
                .vm(0)
                .is_some_and(|vm| vm["given"].as_u64() > Some(64 * MIB));
            let left = balloon(&daemon);
            println!("{:?} {left:?}", guests.held());
            given && left.is_some_and(|left| left < RAM * 7 / 8)
        });
        std::thread::sleep(Duration::from_secs(10));
        println!(
            "{:?} MiB\n{}\n{}",
            guests.held(),
            daemon.explain(0),
            daemon.explain(1)
        );
        // Each wants most of its memory for itself, the second more than its balloon leaves it.
        for index in [0, 1] {
            let vm = &guests.vms[index];
            let took = run(vm, &format!("{NEED}; need"));
            println!(
                "guest {index}: {took}; {:?} MiB\n{}",
                guests.held(),
                daemon.explain(index)
            );
            assert_eq!(oom_kills(vm), "0");
            assert_eq!(run(vm, "stat -c %s /dev/shm/need"), (600 * MIB).to_string());
            run(vm, "rm /dev/shm/need");
        }
        let log = run(&guests.vms[1], "dmesg | grep -c 'Out of puff' || true");
        println!("out of puff: {log}");
        daemon.stop();
        let held = run(&guests.vms[1], &format!("{NEED}; ballooned"));
        assert_eq!(held, "0", "its balloon is as before");
    });
}
