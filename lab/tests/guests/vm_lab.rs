//! The lab itself, with real guests: what works in one, how one fails, and that nothing is left.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use justitia_lab::LabDir;
use justitia_lab::vm::{DiskSpec, Filesystem, Guest, Throttle, Vm, VmError, VmSpec};

fn boot() -> Vm {
    let _turn = crate::agent_guest::turn();
    Vm::boot(&VmSpec {
        disks: vec![
            DiskSpec::ext4(1 << 30),
            DiskSpec::of(Some(Filesystem::Xfs), 1 << 30),
        ],
        ..VmSpec::default()
    })
    .unwrap()
}

#[test]
fn a_guest_runs_scripts_and_has_files_written() {
    let vm = boot();
    let guest = vm.guest();
    assert!(guest.kernel().starts_with("6."), "{}", guest.kernel());

    let result = guest.sh("echo out; echo err >&2; exit 7").unwrap();
    assert_eq!(
        (result.status, &*result.stdout, &*result.stderr),
        (7, "out\n", "err\n")
    );
    let error = guest.ok("echo why >&2; false").unwrap_err().to_string();
    assert!(
        error.contains("status 1") && error.contains("why"),
        "{error}"
    );

    what_takes_too_long_is_ended(guest);
    files_are_written(guest);
    controllers_are_there(guest);
    disks_are_throttled(&vm);

    // An end without a panic is distinguished from one.
    let error = guest.sh("poweroff -f; sleep 100").unwrap_err();
    assert!(matches!(error, VmError::Exit { .. }), "{error}");
}

/// What it leaves in the background is not waited for; what takes too long is ended.
fn what_takes_too_long_is_ended(guest: &Guest) {
    let begin = Instant::now();
    guest.ok("sleep 1000 & echo $! >/run/sleeper").unwrap();
    let late = guest
        .sh_within("sleep 1000", Duration::from_secs(1))
        .unwrap();
    assert!(late.timed_out && late.status == 128 + 9, "{late:?}");
    // Before either sleep is over.
    assert!(begin.elapsed() < Duration::from_secs(500));
    guest.ok("kill $(cat /run/sleeper)").unwrap();
}

fn files_are_written(guest: &Guest) {
    // Longer than a part, with every byte value.
    let content: Vec<u8> = (0..3_000_001_u32)
        .map(|i| i.to_le_bytes()[0] ^ i.to_le_bytes()[1])
        .collect();
    guest.push("/root/file", 0o750, &content).unwrap();
    let here = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(here.path(), &content).unwrap();
    let here = Command::new("md5sum").arg(here.path()).output().unwrap();
    let here = String::from_utf8(here.stdout).unwrap();
    let there = guest.ok("md5sum </root/file").unwrap();
    assert_eq!(there.split(' ').next(), here.split(' ').next());
    assert_eq!(guest.ok("stat -c %a /root/file").unwrap(), "750\n");
    guest.push("/root/file", 0o644, b"").unwrap();
    assert_eq!(guest.ok("stat -c %s /root/file").unwrap(), "0\n");
}

/// The cgroup controllers and the weights' files that experiments and the agent need.
fn controllers_are_there(guest: &Guest) {
    let controllers = guest
        .ok("cat /sys/fs/cgroup/cgroup.subtree_control")
        .unwrap();
    assert!(
        controllers.contains("memory") && controllers.contains("io"),
        "{controllers}"
    );
    guest.ok("mkdir /sys/fs/cgroup/a && cd /sys/fs/cgroup/a && cat io.weight io.bfq.weight memory.reclaim 2>&1 | grep -c default").unwrap();
    guest.ok("mount | grep -q memory_recursiveprot && test -d /sys/kernel/debug/block -a -d /sys/fs/bpf").unwrap();
    guest
        .ok("test $(cat /proc/pressure/io | wc -l) = 2")
        .unwrap();
}

/// Both disks, and the throttle: 16 MiB at 4 MB/s take 4 s, however fast the rest is, and less without.
fn disks_are_throttled(vm: &Vm) {
    let guest = vm.guest();
    guest
        .ok("modprobe xfs && mkdir -p /data /mnt && mount /dev/vda /data && mount /dev/vdb /mnt")
        .unwrap();
    let write = "dd if=/dev/zero of=/data/file bs=1M count=16 oflag=direct conv=notrunc";
    guest.ok(write).unwrap();
    vm.set_disk_speed(0, Throttle::default()).unwrap();
    let timed = || {
        let begin = Instant::now();
        guest.ok(write).unwrap();
        begin.elapsed()
    };
    let free = timed();
    let slow = Throttle {
        bytes_per_second: 4_000_000,
        requests_per_second: 0,
    };
    vm.set_disk_speed(0, slow).unwrap();
    let throttled = timed();
    assert!(
        throttled > Duration::from_secs(3) && free < throttled,
        "{free:?} {throttled:?}"
    );
}

#[test]
fn a_kernel_panic_is_detected_on_the_console() {
    let vm = boot();
    let error = vm.guest().sh("echo c >/proc/sysrq-trigger").unwrap_err();
    assert!(matches!(error, VmError::Panic { .. }), "{error}");
    assert!(error.is_crash());
    assert!(
        error.to_string().contains("sysrq triggered crash"),
        "{error}"
    );
    // And it stays so.
    let again = vm.guest().sh("true").unwrap_err();
    assert!(matches!(again, VmError::Panic { .. }), "{again}");
}

#[test]
fn a_guest_without_heartbeats_counts_as_hung() {
    let _turn = crate::agent_guest::turn();
    let vm = Vm::boot(&VmSpec {
        heartbeat_timeout: Duration::from_secs(8),
        ..VmSpec::default()
    })
    .unwrap();
    let begin = Instant::now();
    // The runner is what shows that the guest lives.
    let error = vm
        .guest()
        .sh("kill -STOP $(pidof justitia-lab-guest); sleep 1000")
        .unwrap_err();
    assert!(matches!(error, VmError::Hang { .. }), "{error}");
    // Before the script is over.
    assert!(
        begin.elapsed() < Duration::from_secs(500),
        "{:?}",
        begin.elapsed()
    );
}

#[test]
fn qemu_and_its_disks_end_with_a_killed_program() {
    let _turn = crate::agent_guest::turn();
    // The program is this one, running the test below.
    let mut victim = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "vm_lab::boots_and_waits_to_be_killed",
            "--ignored",
            "--nocapture",
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let disks = LabDir::find().unwrap().dir("disks").unwrap();
    let begin = Instant::now();
    let qemu = loop {
        assert!(
            begin.elapsed() < Duration::from_secs(300),
            "no guest came up"
        );
        assert!(
            victim.try_wait().unwrap().is_none(),
            "the program ended by itself"
        );
        if let Some(qemu) = child(victim.id()) {
            break qemu;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    victim.kill().unwrap();
    victim.wait().unwrap();
    let begin = Instant::now();
    while is_qemu(qemu) {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "QEMU {qemu} runs on"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(
        std::fs::read_dir(&disks).unwrap().count(),
        0,
        "a disk was left"
    );
    // The machine is free again, and the next guest clears away the last one's sockets.
    let vm = boot();
    let run = LabDir::find().unwrap().dir("run").unwrap();
    let dirs: Vec<_> = std::fs::read_dir(run)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(dirs, [vm.dir()]);
}

#[test]
#[ignore = "the program that qemu_and_its_disks_end_with_a_killed_program kills"]
fn boots_and_waits_to_be_killed() {
    let vm = boot();
    let ended = vm.guest().sh_within("sleep 600", Duration::from_secs(600));
    assert!(ended.is_err(), "expected to be killed");
}

/// The QEMU that a process started, if it has.
fn child(of: u32) -> Option<u32> {
    std::fs::read_dir(format!("/proc/{of}/task"))
        .ok()?
        .find_map(|task| {
            let children = std::fs::read_to_string(task.ok()?.path().join("children")).ok()?;
            children
                .split_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .find(|pid| is_qemu(*pid))
        })
}

fn is_qemu(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("qemu"))
}
