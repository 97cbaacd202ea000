//! A Debian under its own systemd in a guest, made once by mmdebstrap, and the packages to install in it.

use super::*;

/// What a minimal Debian 12 lacks for systemd and the package.
const INCLUDE: &str = "--include=systemd,systemd-sysv,dbus,libelf1,zlib1g";

/// A file system with these files.
#[track_caller]
pub(crate) fn image(path: &Path, size: &str, files: &Path) {
    run(Command::new("truncate").args(["-s", size]).arg(path));
    run(Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-d"])
        .args([files, path]));
}

/// A Debian of this release with systemd and `more` packages, in a directory of the lab, of this size; made if it is not there yet.
fn debian(lab: &LabDir, name: &str, release: &str, more: &str, size: &str) -> PathBuf {
    let dir = lab.dir(name).unwrap();
    let image_file = dir.join("root.img");
    if !image_file.exists() {
        let root = tempfile::tempdir_in(&dir).unwrap();
        let tree = root.path().join("root");
        commands::debian(release, &format!("{INCLUDE}{more}"), &tree);
        let unfinished = root.path().join("root.img");
        image(&unfinished, size, &tree);
        std::fs::rename(unfinished, &image_file).unwrap();
    }
    image_file
}

/// The package, and one that comes after it with another configuration file, in `dir`.
pub(crate) fn packages(dir: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/deb.sh");
    let programs = program("justitia");
    let programs = programs.parent().unwrap();
    run(Command::new("sh").arg(script).arg(programs).arg(dir));
    let shell = "
        mv justitia_*.deb first.deb
        dpkg-deb -R first.deb next && sed -i 's/^Version: .*/&+next/' next/DEBIAN/control
        echo '# of the next version' >>next/etc/justitia/justitia.toml
        dpkg-deb --root-owner-group -b next second.deb >/dev/null && rm -r next";
    run(Command::new("sh").args(["-ec", shell]).current_dir(dir));
}

/// systemd as the first process of its own process and mount namespace, over the guest's whole cgroup tree. Its root is the
/// namespace's: in a mere chroot the kernel refuses user namespaces. `deb`
/// runs something there. By the full path of `env`: the guest's BusyBox would take a bare name for one of its own, and
/// then `dpkg` too.
pub(crate) const BOOT: &str = "
    mkdir -p /debian && mount /dev/vdb /debian && mkdir -p /debian/packages /debian/data || exit 1
    mount -o ro /dev/vdc /debian/packages && mount /dev/vda /debian/data || exit 1
    cat >/root/deb <<'END'
#!/bin/sh
exec nsenter -t $(cat /run/systemd.pid) -m -p -- /usr/bin/env DEBIAN_FRONTEND=noninteractive NO_COLOR=1 SYSTEMD_PAGER=cat PATH=/usr/sbin:/usr/bin:/sbin:/bin \"$@\"
END
    chmod +x /root/deb
    echo debian >/debian/etc/hostname
    # Nobody makes the serial line's device here: systemd would wait 90 s for it.
    ln -sf /dev/null /debian/etc/systemd/system/serial-getty@ttyS0.service
    unshare -m -p -f sh -c '
        mount -t proc proc /debian/proc && mount -t sysfs sysfs /debian/sys && mount --bind /sys/fs/cgroup /debian/sys/fs/cgroup &&
        mount -t devtmpfs dev /debian/dev && mount -t tmpfs run /debian/run &&
        cd /debian && mount --move . / && exec chroot . /lib/systemd/systemd --unit=multi-user.target --log-target=kmsg' </dev/null >/run/systemd.out 2>&1 &
    tries=0
    until grep -la '^/lib/systemd/systemd' /proc/[0-9]*/cmdline 2>/dev/null | cut -d/ -f3 | grep . >/run/systemd.pid; do
        tries=$((tries + 1)); [ $tries -lt 300 ] || { cat /run/systemd.out; exit 1; }; usleep 100000
    done
    tries=0
    until /root/deb systemctl is-system-running 2>/dev/null | grep -E 'running|degraded'; do
        tries=$((tries + 1)); [ $tries -lt 300 ] || { /root/deb systemctl list-jobs; exit 1; }; sleep 0.5
    done";

/// What the package must not leave: every file that there is, but for what dpkg and systemd write for themselves: at midnight
/// backups, too.
pub(crate) const FILES: &str = "/root/deb find / -xdev -path /proc -prune -o -path /sys -prune -o -path /tmp -prune -o \
    -path /var/lib/dpkg -prune -o -path /var/log -prune -o -path /var/cache -prune -o -path /var/backups -prune -o -path /var/lib/systemd -prune -o -print | sort";

/// Every limit and every protection that is in force, of the knobs that the agent writes.
pub(crate) const KNOBS: &str = "cd /sys/fs/cgroup && {
        find . -name memory.low -exec grep -Hvx 0 {} +
        find . -name memory.high -exec grep -Hvx max {} +
        find . \\( -name io.weight -o -name io.bfq.weight \\) -exec grep -H '^[0-9]*:' {} +
    }; true";
/// The limits among those.
pub(crate) const LIMITS: &str =
    "cd /sys/fs/cgroup && find . -name memory.high -exec grep -Hvx max {} + | grep .";
/// Has BFQ divide the disk at `/data`.
pub(crate) const BFQ: &str = "echo bfq >/sys/block/vda/queue/scheduler";

pub(crate) struct Debian {
    vm: Vm,
    begun: Instant,
}

impl Debian {
    /// A guest with both packages at `/packages`, and a disk that one can contend for at `/data`.
    #[track_caller]
    pub(crate) fn boot() -> Self {
        let lab = LabDir::find().unwrap();
        let root = debian(&lab, "debian", commands::BOOKWORM, "", "400M");
        Self::boot_of(&lab, &root, VmSpec::default())
    }

    /// The same of this release with these packages, too, kept under this name, in a machine with so much memory.
    #[track_caller]
    pub(crate) fn boot_with(name: &str, release: &str, packages: &str, memory: u64) -> Self {
        let lab = LabDir::find().unwrap();
        let root = debian(&lab, name, release, &format!(",{packages}"), "2G");
        let machine = VmSpec {
            memory,
            // Its profiles need a package of their own.
            cmdline: "apparmor=0".to_owned(),
            ..VmSpec::default()
        };
        Self::boot_of(&lab, &root, machine)
    }

    #[track_caller]
    fn boot_of(lab: &LabDir, root: &Path, machine: VmSpec) -> Self {
        let _turn = crate::agent_guest::turn();
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
            disks: vec![DiskSpec::ext4(4 << 30)],
            // Page ownership's probe is attached and detached again and again: emulated, a second processor does not
            // survive the patching of the code that it runs.
            vcpus: 1,
            qemu_args: [
                drive("debian", root, "snapshot=on"),
                drive("packages", &disk, "readonly=on"),
            ]
            .concat(),
            ..machine
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

    pub(crate) fn step(&self, what: &str) {
        println!("{:>5} s: {what}", self.begun.elapsed().as_secs());
    }

    #[track_caller]
    pub(crate) fn ok(&self, script: &str) -> String {
        self.ok_within(Duration::from_secs(120), script)
    }

    #[track_caller]
    pub(crate) fn ok_within(&self, within: Duration, script: &str) -> String {
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

    /// The disk at `/data` delivers and takes `bytes` a second from now on.
    pub(crate) fn limit_disk(&self, bytes: u64) {
        let throttle = Throttle {
            bytes_per_second: bytes,
            ..Throttle::default()
        };
        self.vm.set_disk_speed(0, throttle).unwrap();
    }

    pub(crate) fn log(&self) -> String {
        let script = "/root/deb systemctl status justitia --no-pager; /root/deb journalctl -u justitia --no-pager -n 40; dmesg | tail -n 30";
        self.vm
            .guest()
            .sh(script)
            .map(|done| done.stdout)
            .unwrap_or_default()
    }

    /// Tries until it succeeds.
    #[track_caller]
    pub(crate) fn within(&self, seconds: u64, script: &str) {
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
    pub(crate) fn unit(&self, property: &str) -> String {
        self.ok(&format!(
            "/root/deb systemctl show justitia -p {property} --value"
        ))
        .trim()
        .to_owned()
    }

    #[track_caller]
    pub(crate) fn status(&self) -> Value {
        serde_json::from_str(&self.ok("/root/deb justitia status --json")).unwrap()
    }

    /// What is told of the tenant of which this is so, as a whole.
    #[track_caller]
    pub(crate) fn tenant(&self, is_meant: impl Fn(&Value) -> bool) -> Option<Value> {
        let status = self.status();
        let mut tenants = status["tenants"].as_array().unwrap().iter();
        let found = tenants.find(|t| t["part"].is_null() && is_meant(t));
        found.cloned()
    }

    /// The same, once there is one.
    #[track_caller]
    pub(crate) fn comes(&self, is_meant: impl Fn(&Value) -> bool) -> Value {
        for _ in 0..60 {
            if let Some(found) = self.tenant(&is_meant) {
                return found;
            }
            std::thread::sleep(Duration::from_secs(1));
        }
        panic!("{:#}\n{}", self.status()["tenants"], self.log());
    }

    /// The agent runs, sees, and has written.
    #[track_caller]
    pub(crate) fn works(&self) {
        self.within(60, "[ $(/root/deb systemctl is-active justitia) = active ]");
        self.within(
            60,
            "[ $(cat /sys/fs/cgroup/system.slice/tenant.service/memory.low) -gt 0 ]",
        );
        // Its probes are attached beside that.
        self.within(
            120,
            "/root/deb justitia status --json >/run/status && ! grep app_io_unavailable /run/status",
        );
        let status = self.status();
        assert_eq!(status["observe"], false);
        assert_eq!(status["agent_usage"]["errors"], 0, "{status:#}");
    }

    /// Restarts the agent with this beside its configuration.
    #[track_caller]
    pub(crate) fn configured(&self, toml: &str) {
        self.ok(&format!(
            "cat >{DROP_IN} <<'END'\n{toml}\nEND\n/root/deb systemctl restart justitia"
        ));
        self.works();
    }

    /// Two units, `batch` and `db`, write to the disk at `/data`; until one is limited.
    #[track_caller]
    pub(crate) fn is_written_to(&self) {
        for (name, weight) in [("batch", 100), ("db", 800)] {
            self.ok(&format!("/root/deb systemd-run --unit={name} -p IOWeight={weight} \
                sh -c 'while :; do dd if=/dev/zero of=/data/{name} bs=64k count=4000 conv=notrunc,fsync; done'"));
        }
        self.within(90, LIMITS);
    }

    /// Nothing that the agent writes differs from what a machine without it has.
    #[track_caller]
    pub(crate) fn untouched(&self) {
        assert_eq!(self.ok(KNOBS), "");
    }
}
