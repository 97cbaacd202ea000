//! The Debian package on a Debian system, under a real systemd: installed, run with the unit's hardening, watched over,
//! upgraded, removed, purged.
//!
//! The system is made once by mmdebstrap, beside the lab's kernels. Minutes under emulation: `make test-package`.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test's helpers are tests"
)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use justitia_lab::Places;
use justitia_lab::vm::{Vm, VmSpec};

/// What a minimal Debian 12 lacks for systemd and the package.
const INCLUDE: &str = "--include=systemd,systemd-sysv,dbus,libelf1,zlib1g";

#[track_caller]
fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| {
        panic!("{command:?}: {error} (`make deps` installs what the tests need)")
    });
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A file system with these files.
#[track_caller]
fn image(path: &Path, size: &str, files: &Path) {
    run(Command::new("truncate").args(["-s", size]).arg(path));
    run(Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-d"])
        .args([files, path]));
}

/// A Debian with systemd, made if it is not there yet.
fn debian(places: &Places) -> PathBuf {
    let dir = places.dir("debian").unwrap();
    let image_file = dir.join("root.img");
    if !image_file.exists() {
        let root = tempfile::tempdir_in(&dir).unwrap();
        let tree = root.path().join("root");
        run(Command::new("mmdebstrap")
            .args(["--variant=minbase", INCLUDE])
            .args(
                ["doc", "man", "locale"]
                    .map(|what| format!("--dpkgopt=path-exclude=/usr/share/{what}/*")),
            )
            .arg("bookworm")
            .arg(&tree));
        let unfinished = root.path().join("root.img");
        image(&unfinished, "400M", &tree);
        std::fs::rename(unfinished, &image_file).unwrap();
    }
    image_file
}

/// The package, and one that comes after it, in `dir`.
fn packages(dir: &Path) {
    let binary = dir.join("justitia");
    // Beside this test's directory.
    let test = std::env::current_exe().unwrap();
    let built = test.ancestors().nth(2).unwrap().join("justitia");
    run(Command::new("objcopy")
        .arg("--strip-all")
        .args([&built, &binary]));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/deb.sh");
    run(Command::new("sh").arg(script).arg(&binary).arg(dir));
    std::fs::remove_file(binary).unwrap();
    let shell = "
        mv justitia_*.deb first.deb
        dpkg-deb -R first.deb next && sed -i 's/^Version: .*/&+next/' next/DEBIAN/control
        dpkg-deb --root-owner-group -b next second.deb >/dev/null && rm -r next";
    run(Command::new("sh").args(["-ec", shell]).current_dir(dir));
}

/// systemd as the first process of its own process and mount namespace, over the guest's whole cgroup tree. `deb`
/// runs something there.
const BOOT: &str = "
    mkdir -p /debian && mount /dev/vda /debian && mkdir -p /debian/packages && mount -o ro /dev/vdb /debian/packages || exit 1
    cat >/root/deb <<'END'
#!/bin/sh
exec nsenter -t $(cat /run/systemd.pid) -m -p -- chroot /debian env DEBIAN_FRONTEND=noninteractive NO_COLOR=1 SYSTEMD_PAGER=cat PATH=/usr/sbin:/usr/bin:/sbin:/bin \"$@\"
END
    chmod +x /root/deb
    echo debian >/debian/etc/hostname
    unshare -m -p -f sh -c '
        mount -t proc proc /debian/proc && mount -t sysfs sysfs /debian/sys && mount --bind /sys/fs/cgroup /debian/sys/fs/cgroup &&
        mount -t devtmpfs dev /debian/dev && mount -t tmpfs run /debian/run &&
        exec chroot /debian /lib/systemd/systemd --unit=multi-user.target --log-target=kmsg' </dev/null >/run/systemd.out 2>&1 &
    tries=0
    until grep -la '^/lib/systemd/systemd' /proc/[0-9]*/cmdline 2>/dev/null | cut -d/ -f3 | grep . >/run/systemd.pid; do
        tries=$((tries + 1)); [ $tries -lt 300 ] || { cat /run/systemd.out; exit 1; }; usleep 100000
    done
    tries=0
    until /root/deb systemctl is-system-running 2>/dev/null | grep -E 'running|degraded'; do
        tries=$((tries + 1)); [ $tries -lt 300 ] || { /root/deb systemctl list-jobs; exit 1; }; sleep 0.5
    done";

/// What the package must not leave: every file that there is, but for what dpkg and systemd write for themselves.
const FILES: &str = "/root/deb find / -xdev -path /proc -prune -o -path /sys -prune -o -path /tmp -prune -o \
    -path /var/lib/dpkg -prune -o -path /var/log -prune -o -path /var/cache -prune -o -path /var/lib/systemd -prune -o -print | sort";

struct Debian(Vm);

impl Debian {
    #[track_caller]
    fn ok(&self, script: &str) -> String {
        let done = self
            .0
            .guest()
            .sh_within(script, Duration::from_secs(120))
            .unwrap();
        assert!(
            done.status == 0 && !done.timed_out,
            "{script}\n{}\n{}\n{}",
            done.stdout,
            done.stderr,
            self.log()
        );
        done.stdout
    }

    fn log(&self) -> String {
        let script = "/root/deb systemctl status justitia --no-pager; /root/deb journalctl -u justitia --no-pager -n 40; dmesg | tail -n 30";
        self.0
            .guest()
            .sh(script)
            .map(|done| done.stdout)
            .unwrap_or_default()
    }

    /// Tries until it succeeds.
    #[track_caller]
    fn within(&self, seconds: u64, script: &str) {
        let begun = Instant::now();
        while self.0.guest().sh(script).unwrap().status != 0 {
            assert!(
                begun.elapsed() < Duration::from_secs(seconds),
                "did not come to pass within {seconds} s: {script}\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    fn low(&self) -> String {
        let text = self.ok("cat /sys/fs/cgroup/system.slice/tenant.service/memory.low");
        text.trim().to_owned()
    }

    /// The agent runs, sees, and has written.
    #[track_caller]
    fn works(&self) {
        self.within(60, "[ $(/root/deb systemctl is-active justitia) = active ]");
        self.within(
            60,
            "[ $(cat /sys/fs/cgroup/system.slice/tenant.service/memory.low) -gt 0 ]",
        );
        let status = self.ok("/root/deb justitia status --json");
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        assert!(status.get("blind").is_none(), "{status:#}");
        assert_eq!(status["observe"], false);
        assert_eq!(status["cost"]["errors"], 0, "{status:#}");
    }
}

#[test]
#[ignore = "minutes under emulation: make test-package"]
fn a_package_installs_runs_upgrades_and_leaves_nothing() {
    let places = Places::find().unwrap();
    let root = debian(&places);
    let dir = tempfile::tempdir_in(places.root()).unwrap();
    let files = dir.path().join("packages");
    std::fs::create_dir(&files).unwrap();
    packages(&files);
    let disk = dir.path().join("packages.img");
    image(&disk, "200M", &files);
    let drive = |id: &str, path: &Path, how: &str| {
        vec![
            "-drive".to_owned(),
            format!("if=none,id={id},format=raw,file={},{how}", path.display()),
            "-device".to_owned(),
            format!("virtio-blk-pci,drive={id}"),
        ]
    };
    let spec = VmSpec {
        qemu_args: [
            drive("debian", &root, "snapshot=on"),
            drive("packages", &disk, "readonly=on"),
        ]
        .concat(),
        ..VmSpec::default()
    };
    let begun = Instant::now();
    let step = |what: &str| println!("{:>5.0?} s: {what}", begun.elapsed().as_secs());
    let debian = Debian(Vm::boot(&spec).unwrap());
    step("booted");
    debian.ok(BOOT);
    step("systemd runs");
    let before = debian.ok(FILES);

    debian.ok("/root/deb dpkg -i /packages/first.deb && /root/deb dpkg --verify justitia");
    debian.ok("[ $(/root/deb systemctl is-active justitia) = inactive ] && [ $(/root/deb systemctl is-enabled justitia) = disabled ]");
    debian.ok("/root/deb systemd-run --unit=tenant -p IOWeight=300 sh -c 'dd if=/dev/zero of=/var/tmp/data bs=1M count=40; while :; do cat /var/tmp/data >/dev/null; sleep 0.5; done'");
    debian.ok("/root/deb systemctl enable --now justitia");
    step("installed and enabled");
    debian.works();
    debian.ok("/root/deb systemctl show justitia -p Type | grep -x Type=notify && /root/deb systemctl show justitia -p WatchdogUSec | grep -x WatchdogUSec=30s");
    println!(
        "{}",
        debian.ok("/root/deb systemd-analyze security justitia --no-pager | tail -n 1")
    );
    step("works");

    // An agent that hangs is ended by the watchdog, and the next one gives back and takes over.
    debian.ok("/root/deb mkdir -p /run/systemd/system/justitia.service.d
        /root/deb sh -c 'printf \"[Service]\\nWatchdogSec=8\\n\" >/run/systemd/system/justitia.service.d/w.conf; systemctl daemon-reload; systemctl restart justitia'");
    debian.works();
    debian.ok("/root/deb systemctl kill -s STOP justitia");
    debian.within(
        90,
        "[ $(/root/deb systemctl show justitia -p NRestarts --value) -ge 1 ]",
    );
    debian.works();
    debian.ok(
        "/root/deb sh -c 'rm -r /run/systemd/system/justitia.service.d; systemctl daemon-reload'",
    );
    step("the watchdog has ended one that hung");

    debian.ok("/root/deb systemctl show justitia -p MainPID --value >/run/first.pid; /root/deb dpkg -i /packages/second.deb
        [ $(/root/deb systemctl show justitia -p MainPID --value) != $(cat /run/first.pid) ]");
    debian.works();
    let version = debian.ok("/root/deb dpkg-query -W -f '${Version}' justitia");
    assert!(version.ends_with("+next"), "{version}");
    step("upgraded");

    assert_ne!(debian.low(), "0");
    debian.ok("/root/deb dpkg -r justitia && ! /root/deb sh -c 'pidof justitia' && ! ls /debian/usr/bin/justitia");
    assert_eq!(debian.low(), "0", "what stood there before is back");
    step("removed");
    debian.ok("/root/deb sh -c 'dpkg -P justitia; systemctl stop tenant; rm -f /var/tmp/data; systemctl daemon-reload'");
    debian.ok("! /root/deb dpkg-query -s justitia && ! /root/deb ls /run/justitia");
    let after = debian.ok(FILES);
    let left: Vec<&str> = after
        .lines()
        .filter(|line| !before.lines().any(|was| was == *line))
        .collect();
    assert_eq!(left, Vec::<&str>::new());
    step("purged");
}
