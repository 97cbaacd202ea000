//! The Debian package on a Debian system, under a real systemd: installed, run with the unit's hardening (device credits
//! and page ownership included), watched over, upgraded, removed, purged.
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

use justitia_lab::LabDir;
use justitia_lab::vm::{DiskSpec, Vm, VmSpec};
use serde_json::Value;

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

/// The program, built beside this test's directory.
fn justitia() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().join("justitia")
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
fn debian(lab: &LabDir) -> PathBuf {
    let dir = lab.dir("debian").unwrap();
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

/// The package, and one that comes after it with another configuration file, in `dir`.
fn packages(dir: &Path) {
    let binary = dir.join("justitia");
    run(Command::new("objcopy")
        .arg("--strip-all")
        .args([&justitia(), &binary]));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/deb.sh");
    run(Command::new("sh").arg(script).arg(&binary).arg(dir));
    std::fs::remove_file(binary).unwrap();
    let shell = "
        mv justitia_*.deb first.deb
        dpkg-deb -R first.deb next && sed -i 's/^Version: .*/&+next/' next/DEBIAN/control
        echo '# of the next version' >>next/etc/justitia/justitia.toml
        dpkg-deb --root-owner-group -b next second.deb >/dev/null && rm -r next";
    run(Command::new("sh").args(["-ec", shell]).current_dir(dir));
}

/// systemd as the first process of its own process and mount namespace, over the guest's whole cgroup tree. `deb`
/// runs something there. By the full path of `env`: the guest's BusyBox would take a bare name for one of its own, and
/// then `dpkg` too.
const BOOT: &str = "
    mkdir -p /debian && mount /dev/vdb /debian && mkdir -p /debian/packages /debian/data || exit 1
    mount -o ro /dev/vdc /debian/packages && mount /dev/vda /debian/data || exit 1
    cat >/root/deb <<'END'
#!/bin/sh
exec nsenter -t $(cat /run/systemd.pid) -m -p -- chroot /debian /usr/bin/env DEBIAN_FRONTEND=noninteractive NO_COLOR=1 SYSTEMD_PAGER=cat PATH=/usr/sbin:/usr/bin:/sbin:/bin \"$@\"
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

/// Every limit and every protection that is in force, of the knobs that the agent writes.
const KNOBS: &str = "cd /sys/fs/cgroup && {
        find . -name memory.low -exec grep -Hvx 0 {} +
        find . -name memory.high -exec grep -Hvx max {} +
        find . -name io.max -exec grep -H . {} +
    }; true";
const LIMITS: &str = "cd /sys/fs/cgroup && find . -name io.max -exec grep -H . {} + | grep .";

/// What a test adds to the configuration, and to the unit.
const DROP_IN: &str = "/debian/etc/justitia/justitia.toml.d/test.toml";
const UNIT: &str = "/debian/etc/systemd/system/justitia.service.d";

struct Debian {
    vm: Vm,
    begun: Instant,
}

impl Debian {
    /// A guest with both packages at `/packages`, and a disk that one can contend for at `/data`.
    #[track_caller]
    fn boot() -> Self {
        let lab = LabDir::find().unwrap();
        let root = debian(&lab);
        let dir = tempfile::tempdir_in(lab.root()).unwrap();
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
            disks: vec![DiskSpec::ext4(2 << 30)],
            // Page ownership's probe is attached and detached again and again: emulated, a second processor does not
            // survive the patching of the code that it runs.
            vcpus: 1,
            qemu_args: [
                drive("debian", &root, "snapshot=on"),
                drive("packages", &disk, "readonly=on"),
            ]
            .concat(),
            ..VmSpec::default()
        };
        let debian = Self {
            begun: Instant::now(),
            vm: Vm::boot(&spec).unwrap(),
        };
        // QEMU has them open.
        drop(dir);
        debian.step("booted");
        debian.ok(BOOT);
        debian.step("systemd runs");
        debian
    }

    fn step(&self, what: &str) {
        println!("{:>5} s: {what}", self.begun.elapsed().as_secs());
    }

    #[track_caller]
    fn ok(&self, script: &str) -> String {
        let within = Duration::from_secs(120);
        let done = self.vm.guest().sh_within(script, within).unwrap();
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
        self.vm
            .guest()
            .sh(script)
            .map(|done| done.stdout)
            .unwrap_or_default()
    }

    /// Tries until it succeeds.
    #[track_caller]
    fn within(&self, seconds: u64, script: &str) {
        let begun = Instant::now();
        while self.vm.guest().sh(script).unwrap().status != 0 {
            assert!(
                begun.elapsed() < Duration::from_secs(seconds),
                "did not come to pass within {seconds} s: {script}\n{}",
                self.log()
            );
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    /// What systemd says of the agent's service.
    #[track_caller]
    fn unit(&self, property: &str) -> String {
        self.ok(&format!(
            "/root/deb systemctl show justitia -p {property} --value"
        ))
        .trim()
        .to_owned()
    }

    #[track_caller]
    fn status(&self) -> Value {
        serde_json::from_str(&self.ok("/root/deb justitia status --json")).unwrap()
    }

    /// The agent runs, sees, and has written.
    #[track_caller]
    fn works(&self) {
        self.within(60, "[ $(/root/deb systemctl is-active justitia) = active ]");
        self.within(
            60,
            "[ $(cat /sys/fs/cgroup/system.slice/tenant.service/memory.low) -gt 0 ]",
        );
        let status = self.status();
        assert!(status.get("app_io_unavailable").is_none(), "{status:#}");
        assert_eq!(status["observe"], false);
        assert_eq!(status["agent_usage"]["errors"], 0, "{status:#}");
    }

    /// Restarts the agent with this beside its configuration.
    #[track_caller]
    fn configured(&self, toml: &str) {
        self.ok(&format!(
            "cat >{DROP_IN} <<'END'\n{toml}\nEND\n/root/deb systemctl restart justitia"
        ));
        self.works();
    }

    /// Nothing that the agent writes differs from what a machine without it has.
    #[track_caller]
    fn untouched(&self) {
        assert_eq!(self.ok(KNOBS), "");
    }
}

#[test]
#[ignore = "minutes under emulation: make test-package"]
fn a_package_installs_runs_upgrades_and_leaves_nothing() {
    let debian = Debian::boot();
    let before = debian.ok(FILES);
    installs(&debian);
    protection_outlasts_a_reload(&debian);
    a_hung_agent_limits_nobody_and_is_replaced(&debian);
    hands_pages_over(&debian);
    upgrades(&debian);
    is_removed(&debian);

    debian.ok("/root/deb sh -c 'dpkg -P justitia; systemctl stop tenant; systemctl daemon-reload'");
    debian.ok("! /root/deb dpkg-query -s justitia && ! /root/deb ls /run/justitia /etc/justitia");
    let after = debian.ok(FILES);
    let left: Vec<&str> = after
        .lines()
        .filter(|line| !before.lines().any(|was| was == *line))
        .collect();
    assert_eq!(left, Vec::<&str>::new());
    debian.step("purged");
}

/// It waits to be asked, and then works under the unit's hardening.
fn installs(debian: &Debian) {
    debian.ok("/root/deb dpkg -i /packages/first.deb && /root/deb dpkg --verify justitia");
    debian.ok(
        "/root/deb dpkg-query -W -f '${Conffiles}' justitia | grep /etc/justitia/justitia.toml",
    );
    let state =
        "/root/deb systemctl is-active justitia; /root/deb systemctl is-enabled justitia; true";
    assert_eq!(debian.ok(state), "inactive\ndisabled\n");
    debian.untouched();
    debian.ok("truncate -s 40M /debian/data/own
        /root/deb systemd-run --unit=tenant -p IOWeight=300 sh -c 'while :; do cat /data/own >/dev/null; sleep 0.5; done'");
    debian.ok("/root/deb systemctl enable --now justitia");
    debian.works();
    assert_eq!(debian.unit("Type"), "notify");
    assert_eq!(debian.unit("WatchdogUSec"), "30s");
    println!(
        "{}",
        debian.ok("/root/deb systemd-analyze security justitia --no-pager | tail -n 1")
    );
    debian.step("installed and works");
}

/// systemd writes its own `memory.low` into every unit when it is reloaded, or executes itself anew.
fn protection_outlasts_a_reload(debian: &Debian) {
    debian.ok(&format!(
        "mkdir -p {UNIT} && printf '[Service]\\nEnvironment=JUSTITIA_LOG=debug\\n' >{UNIT}/log.conf
        /root/deb systemctl daemon-reload && /root/deb systemctl restart justitia"
    ));
    debian.works();
    let again = |least: u32| {
        format!(
            "[ $(/root/deb journalctl -u justitia --no-pager | grep -c 'the original value was reapplied.*tenant.service') -ge {least} ]"
        )
    };
    for (n, what) in (1..).zip(["daemon-reload", "daemon-reexec", "daemon-reload"]) {
        debian.ok(&format!("/root/deb systemctl {what}"));
        debian.within(60, &again(n));
        debian.within(
            60,
            "[ $(cat /sys/fs/cgroup/system.slice/tenant.service/memory.low) -gt 0 ]",
        );
    }
    let external = debian.status()["external"].clone();
    assert_eq!(external.as_array().map(Vec::len), Some(0), "{external:#}");
    debian.ok(&format!("rm {UNIT}/log.conf && /root/deb systemctl daemon-reload && /root/deb systemctl restart justitia"));
    debian.works();
    debian.step("protected after reloads");
}

/// An agent that hangs: its limits lapse before anybody notices that it hangs, systemd ends it, what it protected goes
/// back, and another one takes over.
fn a_hung_agent_limits_nobody_and_is_replaced(debian: &Debian) {
    // Time to see what has come back before the next one begins.
    debian.ok(&format!(
        "mkdir -p {UNIT} && printf '[Service]\\nRestartSec=20\\n' >{UNIT}/slow.conf && /root/deb systemctl daemon-reload"
    ));
    debian.configured("[io]\nenabled = true");
    for (name, weight) in [("batch", 100), ("db", 800)] {
        debian.ok(&format!("/root/deb systemd-run --unit={name} -p IOWeight={weight} \
            sh -c 'while :; do dd if=/dev/zero of=/data/{name} bs=64k count=4000 conv=notrunc,fsync; done'"));
    }
    debian.within(90, LIMITS);
    debian.ok("/root/deb systemctl kill --kill-whom=main -s STOP justitia");
    debian.within(15, &format!("! {{ {LIMITS}; }}"));
    assert_eq!(debian.unit("NRestarts"), "0", "they lapse while it hangs");
    assert_eq!(debian.unit("ActiveState"), "active");
    debian.step("the limits of one that hangs have lapsed");
    debian.within(
        60,
        "[ $(/root/deb systemctl show justitia -p SubState --value) = auto-restart ]",
    );
    debian.untouched();
    debian.works();
    debian.ok("dmesg | grep \"justitia.service: Failed with result 'watchdog'\"");
    assert_eq!(debian.unit("NRestarts"), "1");
    debian.ok(&format!(
        "/root/deb systemctl stop batch db; rm /debian/data/batch /debian/data/db
        rm -r {UNIT}; /root/deb systemctl daemon-reload"
    ));
    debian.step("the watchdog has replaced it");
}

/// Page ownership: what the unit leaves the agent suffices to open a file by its handle, to ask what of it is dirty, to
/// start a process in another's cgroup and to read there.
fn hands_pages_over(debian: &Debian) {
    let file_of = |unit: &str| -> u64 {
        let text = debian.ok(&format!(
            "awk '$1 == \"inactive_file\" || $1 == \"active_file\" {{ sum += $2 }} END {{ print int(sum / 1048576) }}' /sys/fs/cgroup/system.slice/{unit}.service/memory.stat"
        ));
        text.trim().parse().unwrap()
    };
    debian.ok("cd /debian/data && dd if=/dev/urandom of=lib bs=1M count=64 2>/dev/null && truncate -s 400M light && sync && echo 3 >/proc/sys/vm/drop_caches
        /root/deb systemd-run --unit=light -p IOWeight=100 sh -c 'cat /data/lib /data/light >/dev/null; touch /data/read; exec sleep 100000'");
    debian.within(60, "[ -e /debian/data/read ]");
    debian.ok("/root/deb systemd-run --unit=heavy -p IOWeight=800 sh -c 'while :; do cat /data/lib >/dev/null; sleep 0.3; done'");
    let (light, heavy) = (file_of("light"), file_of("heavy"));
    assert!(light > 440 && heavy < 20, "{light} {heavy}");
    debian.configured("[recharge]\nenabled = true\nevery = \"10s\"");
    let begun = Instant::now();
    let told = loop {
        let status = debian.status();
        let all = status["decisions"].as_array().cloned().unwrap_or_default();
        let own = all.into_iter().find(|decision| {
            let has = |key: &str, what: &str| {
                decision[key]
                    .as_str()
                    .is_some_and(|text| text.contains(what))
            };
            has("path", "heavy") && has("what", "recharge ")
        });
        if let Some(own) = own {
            break own;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(90),
            "nothing was handed over: {status:#}\n{}",
            debian.log()
        );
        std::thread::sleep(Duration::from_secs(1));
    };
    let (light, heavy) = (file_of("light"), file_of("heavy"));
    assert!(light < 420 && heavy > 56, "{light} {heavy}: {told:#}");
    debian.ok("/root/deb systemctl stop light heavy; rm /debian/data/lib /debian/data/light /debian/data/read");
    debian.step("a shared file's pages have gone to their heaviest user");
}

/// The next version goes on where this one stops, and what the operator has written into the configuration stays.
fn upgrades(debian: &Debian) {
    let conffile = "/debian/etc/justitia/justitia.toml";
    debian.ok(&format!(
        "rm {DROP_IN} && printf '\\n[cache]\\ndemand = \"usage\"\\n' >>{conffile} && cp {conffile} /run/mine.toml"
    ));
    let first = debian.unit("MainPID");
    debian.ok("/root/deb dpkg --force-confold -i /packages/second.deb");
    debian.ok(&format!("cmp {conffile} /run/mine.toml"));
    debian.ok(&format!("grep 'of the next version' {conffile}.dpkg-dist"));
    debian.works();
    assert_ne!(debian.unit("MainPID"), first);
    assert_eq!(debian.unit("UnitFileState"), "enabled");
    let version = debian.ok("/root/deb dpkg-query -W -f '${Version}' justitia");
    assert!(version.ends_with("+next"), "{version}");
    debian.step("upgraded");
}

/// Every knob is back where it stood, the program is gone, the configuration waits.
fn is_removed(debian: &Debian) {
    assert_ne!(debian.ok(KNOBS), "");
    debian.ok(
        "/root/deb dpkg -r justitia && ! /root/deb pidof justitia && ! ls /debian/usr/bin/justitia",
    );
    debian.untouched();
    debian.ok("cmp /debian/etc/justitia/justitia.toml /run/mine.toml");
    debian.step("removed");
}

/// What the package says are the defaults is accepted, each line of it.
#[test]
fn the_packaged_configuration_is_valid() {
    let packaged = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/justitia.toml");
    let text = std::fs::read_to_string(packaged).unwrap();
    // Keys, sections and comments behind them; a sentence is neither.
    let uncommented: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("# "))
        .filter(|line| {
            let word = line.split(' ').next().unwrap_or_default();
            line.starts_with('[') || line[word.len()..].starts_with(" = ")
        })
        .collect();
    assert!(uncommented.len() > 20, "{uncommented:#?}");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("justitia.toml");
    std::fs::write(&file, uncommented.join("\n")).unwrap();
    run(Command::new(justitia())
        .args(["run", "--check-config", "--config"])
        .arg(&file));
}
