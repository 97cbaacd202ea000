//! The Debian package on a Debian system, under a real systemd: installed, run with the unit's hardening (device
//! bandwidth and recharging included), watched over, upgraded, removed, purged.
//!
//! The system is made once by mmdebstrap, beside the lab's kernels. Minutes under emulation: `make test-package`.

mod cache;
pub(crate) mod debian;

use justitia_lab::LabDir;
use justitia_lab::vm::{DiskSpec, Throttle, Vm, VmSpec};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::commands::{self, program, run};
use debian::*;

/// What a test adds to the configuration, and to the unit.
const DROP_IN: &str = "/debian/etc/justitia/justitia.toml.d/test.toml";

const UNIT: &str = "/debian/etc/systemd/system/justitia.service.d";

#[test]
#[ignore = "minutes under emulation: make test-package"]
fn a_package_installs_runs_upgrades_and_leaves_nothing() {
    let debian = Debian::boot();
    let before = debian.ok(FILES);
    installs(&debian);
    the_cache_and_its_guest_run(&debian);
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

#[test]
#[ignore = "minutes under emulation: make test-package"]
fn the_cache_is_restarted_and_has_what_was_cached() {
    let debian = Debian::boot();
    debian.ok("/root/deb dpkg -i /packages/first.deb");
    cache::survives_restarts(&debian);
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
    // Under the unit's hardening its pages are locked.
    debian.ok(r#"/root/deb sh -c 'grep -P "^VmLck:\s*[1-9]" /proc/$(systemctl show justitia -p MainPID --value)/status'"#);
    println!(
        "{}",
        debian.ok("/root/deb systemd-analyze security justitia --no-pager | tail -n 1")
    );
    debian.step("installed and works");
}

/// The units of the hypervisor cache wait to be asked, too. Under their hardening the daemon serves an image with io_uring,
/// and the guest's agent has its probe attached, and looks for a port.
fn the_cache_and_its_guest_run(debian: &Debian) {
    let state = "/root/deb systemctl is-enabled justitia-cache justitia-guest; true";
    assert_eq!(debian.ok(state), "disabled\ndisabled\n");
    // As it is installed it has no disk, and runs.
    debian.ok("/root/deb systemctl start justitia-cache && /root/deb justitia cache list | grep 'no disk'");
    debian.ok("/root/deb systemctl stop justitia-cache");
    debian.ok(
        "truncate -s 40M /debian/data/disk && cat >/debian/etc/justitia/cache.toml <<'END'
[memory]
size = \"8MiB\"
[ssd]
path = \"/data/ssd\"
size = \"8MiB\"
[listen]
unix = \"/run/justitia/nbd.sock\"
[[vm]]
name = \"web\"
[[vm.disk]]
name = \"web-root\"
image = \"/data/disk\"
END
        /root/deb systemctl start justitia-cache justitia-guest",
    );
    let stats: Value =
        serde_json::from_str(&debian.ok("/root/deb justitia cache stats --json")).unwrap();
    assert_eq!(stats["exports"][0]["name"], "web-root", "{stats:#}");
    assert_eq!(stats["io_uring_unsupported"], Value::Null);
    debian.ok("/root/deb ls /run/justitia/nbd.sock /run/justitia/ledger");
    debian.within(
        60,
        "/root/deb journalctl -u justitia-guest --no-pager | grep 'no port; looking for it'",
    );
    let state = "/root/deb systemctl is-active justitia-guest justitia-cache justitia";
    assert_eq!(debian.ok(state), "active\nactive\nactive\n");
    for unit in ["justitia-cache", "justitia-guest"] {
        let exposure = format!("/root/deb systemd-analyze security {unit} --no-pager | tail -n 1");
        println!("{}", debian.ok(&exposure));
    }
    debian.ok("/root/deb systemctl stop justitia-guest");
    debian.step("the cache and its guest run");
}

/// systemd writes its own `memory.low` into every unit when it is reloaded, or executes itself anew. The agent says so of each
/// wherever it finds it first: at its event, or while it plans.
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

/// An agent that hangs: its watchdog process removes its limits before systemd notices; systemd ends it; its
/// protections go back; and another one takes over.
fn a_hung_agent_limits_nobody_and_is_replaced(debian: &Debian) {
    // Time to see what has come back before the next one begins.
    debian.ok(&format!(
        "mkdir -p {UNIT} && printf '[Service]\\nRestartSec=20\\n' >{UNIT}/slow.conf && /root/deb systemctl daemon-reload"
    ));
    debian.ok(BFQ);
    debian.configured("[io]\nenabled = true");
    debian.is_written_to();
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

/// Recharging: what the unit leaves the agent suffices to open a file by its handle, to ask what of it is dirty, to
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
    debian.configured("[recharge]\nenabled = true\ninterval = \"10s\"");
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
    let cache = "/root/deb systemctl show justitia-cache -p MainPID --value";
    let first_cache = debian.ok(cache);
    debian.ok("/root/deb dpkg --force-confold -i /packages/second.deb");
    debian.ok(&format!("cmp {conffile} /run/mine.toml"));
    debian.ok(&format!("grep 'of the next version' {conffile}.dpkg-dist"));
    debian.works();
    assert_ne!(debian.unit("MainPID"), first);
    assert_eq!(
        debian.ok(cache),
        first_cache,
        "VMs have their disks from it"
    );
    // It has executed the program of the second package.
    debian.within(
        60,
        "/root/deb sh -c 'readlink /proc/$(systemctl show justitia-cache -p MainPID --value)/exe' | grep '/usr/bin/justitia$'",
    );
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
