//! The probes against the truth, in guests: every path of I/O on every filesystem, and the hit ratio.
//!
//! The tests boot a guest and run this very program in it: [`in_guest`] attaches the probes and starts
//! each case in a cgroup of its own, again as this program ([`one_case`]), which says what it
//! really did.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the helpers of tests are tests"
)]

mod probes_guest;
#[path = "../guests/programs.rs"]
mod programs;
#[path = "../guests/retry.rs"]
mod retry;

use std::process::Command;
use std::time::Duration;

use justitia_lab::kernel::{KernelChoice, every_series};
use justitia_lab::vm::{DiskSpec, Filesystem, Vm, VmSpec};

const PROGRAM: &str = "/run/probes";

/// This program and libraries that only it needs, in the guest.
fn push(vm: &Vm) {
    let program = std::env::current_exe().unwrap();
    let stripped = tempfile::NamedTempFile::new().unwrap();
    let done = Command::new("strip")
        .arg("-o")
        .arg(stripped.path())
        .arg(&program)
        .status()
        .unwrap();
    assert!(done.success());
    let content = std::fs::read(stripped.path()).unwrap();
    vm.guest().push(PROGRAM, 0o755, &content).unwrap();
    let listing = Command::new("ldd").arg(&program).output().unwrap();
    for line in String::from_utf8_lossy(&listing.stdout).lines() {
        let Some(library) = line.split_whitespace().find(|word| word.starts_with('/')) else {
            continue;
        };
        if vm.guest().sh(&format!("test -e {library}")).unwrap().status != 0 {
            let content = std::fs::read(library).unwrap();
            vm.guest().push(library, 0o755, &content).unwrap();
        }
    }
}

fn boot(kernel: &str) -> Vm {
    boot_with(kernel, &[])
}

fn boot_with(kernel: &str, qemu_args: &[&str]) -> Vm {
    let Ok(kernel) = kernel.parse::<KernelChoice>();
    let vm = Vm::boot(&VmSpec {
        kernel,
        qemu_args: qemu_args.iter().map(|&word| word.to_owned()).collect(),
        disks: vec![
            DiskSpec::ext4(2 << 30),
            DiskSpec::of(Some(Filesystem::Xfs), 2 << 30),
        ],
        ..VmSpec::default()
    })
    .unwrap();
    push(&vm);
    vm
}

/// Runs a part of [`in_guest`] there.
fn run(vm: &Vm, part: &str, directory: &str) {
    let script = format!(
        "PROBES_PART={part} PROBES_DIRECTORY={directory} \
         {PROGRAM} --ignored --exact probes_guest::in_guest --nocapture 2>&1"
    );
    let result = vm
        .guest()
        .sh_within(&script, Duration::from_secs(280))
        .unwrap_or_else(|error| retry::fail(&error));
    println!(
        "{part} {directory} on {}:\n{}",
        vm.guest().kernel(),
        result.stdout
    );
    assert_eq!(result.status, 0, "{part} in {directory} failed, see above");
}

/// ext4 at /data, overlayfs over it at /run/overlay.
fn mount_ext4(vm: &Vm) {
    vm.guest()
        .ok("mount /dev/vda /data && modprobe overlay \
             && mkdir -p /data/lower /data/upper /data/work /run/overlay \
             && mount -t overlay overlay \
                -o lowerdir=/data/lower,upperdir=/data/upper,workdir=/data/work /run/overlay")
        .unwrap();
}

fn mount_xfs(vm: &Vm) {
    vm.guest()
        .ok("modprobe xfs && mkdir -p /run/xfs && mount /dev/vdb /run/xfs")
        .unwrap();
}

#[test]
fn every_io_path_is_counted_once_and_hit_ratios_are_exact() {
    retry::retry_after_a_crash(|| {
        let vm = boot("6.12");
        mount_ext4(&vm);
        run(&vm, "paths", "/data");
        run(&vm, "hits", "/data");
        run(&vm, "demand", "/data");
        run(&vm, "reuse", "/data");
    });
}

#[test]
#[ignore = "takes minutes: make test-probes"]
fn snapshots_of_btrfs_are_files_of_their_own() {
    retry::retry_after_a_crash(|| {
        let vm = Vm::boot(&VmSpec {
            disks: vec![DiskSpec::of(Some(Filesystem::Btrfs), 1 << 30)],
            ..VmSpec::default()
        })
        .unwrap();
        push(&vm);
        programs::take_along(vm.guest(), "btrfs", "btrfs");
        vm.guest()
            .ok("modprobe btrfs && mount /dev/vda /data && cd /data && btrfs subvolume create a \
                 && dd if=/dev/urandom of=a/reuse bs=1M count=32 && sync && btrfs subvolume snapshot a b")
            .unwrap();
        run(&vm, "snapshots", "/data");
    });
}

#[test]
#[ignore = "takes minutes: make test-probes"]
fn every_filesystem_on_every_kernel() {
    for kernel in every_series().unwrap() {
        let vm = boot(&kernel);
        mount_ext4(&vm);
        mount_xfs(&vm);
        for directory in ["/data", "/run/overlay", "/run/xfs"] {
            run(&vm, "paths", directory);
            run(&vm, "hits", directory);
            run(&vm, "demand", directory);
            run(&vm, "reuse", directory);
        }
    }
}

#[test]
#[ignore = "takes minutes: make test-probes"]
fn counters_follow_created_and_removed_cgroups() {
    let vm = boot("6.12");
    mount_ext4(&vm);
    // Or entering a cgroup takes tens of milliseconds.
    vm.guest()
        .ok("mount -o remount,favordynmods,memory_recursiveprot /sys/fs/cgroup")
        .unwrap();
    run(&vm, "churn", "/data");
}

#[test]
fn thousands_of_cgroups_do_not_hide_another_tenant() {
    retry::retry_after_a_crash(|| {
        let vm = boot("6.12");
        mount_ext4(&vm);
        // Or entering a cgroup takes tens of milliseconds.
        vm.guest()
            .ok("mount -o remount,favordynmods,memory_recursiveprot /sys/fs/cgroup")
            .unwrap();
        run(&vm, "many_cgroups", "/data");
    });
}

/// Waits for throttled I/O and dirty pages, and what finds no room, on every kernel that the archive has.
#[test]
#[ignore = "takes minutes: make test-probes"]
fn waits_and_full_maps_are_reported() {
    for kernel in every_series().unwrap() {
        let vm = boot(&kernel);
        mount_ext4(&vm);
        run(&vm, "waits", "/data");
        run(&vm, "map_full", "/data");
    }
}

#[test]
#[ignore = "a measurement: make test-probes"]
fn probe_overhead_in_time() {
    let vm = boot("6.12");
    mount_ext4(&vm);
    run(&vm, "time", "/data");
}

/// In a guest whose clock advances by one nanosecond with every instruction, the same measurement
/// counts instructions: without noise, whatever else the machine does.
#[test]
#[ignore = "a measurement: make test-probes"]
fn probe_overhead_in_instructions() {
    let vm = boot_with("6.12", &["-icount", "shift=0,sleep=off"]);
    mount_ext4(&vm);
    run(&vm, "instructions", "/data");
}
