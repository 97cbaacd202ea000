//! Which processes write knobs under a real systemd: what systemd applies again, what it decides, and what a shell
//! writes; and the configuration read again by its `reload`. Minutes under emulation.

use std::time::Duration;

use super::package::debian::{BFQ, Debian, LIMITS};

/// The knob, as the agent names it, and its file.
const KNOB: &str = "system.slice/tenant.service/memory.low";
const LOW: &str = "/sys/fs/cgroup/system.slice/tenant.service/memory.low";
const DROP_IN: &str = "/debian/etc/justitia/justitia.toml.d/test.toml";

/// An agent, a tenant, and memory that is short.
fn start() -> Debian {
    let debian = Debian::boot();
    debian.ok("/root/deb dpkg -i /packages/first.deb && truncate -s 40M /debian/data/own && truncate -s 1500M /debian/data/much
        /root/deb systemd-run --unit=tenant -p IOWeight=300 sh -c 'while :; do cat /data/own >/dev/null; sleep 0.5; done'
        /root/deb systemd-run --unit=stream sh -c 'while :; do cat /data/much >/dev/null; sleep 0.2; done'
        /root/deb systemctl start justitia");
    debian.works();
    let limitations = debian.status()["limitations"].to_string();
    assert!(!limitations.contains("their writers"), "{limitations}");
    debian.step("runs");
    debian
}

/// If the tenant's knob is external: the value, and its writer.
fn external(debian: &Debian) -> Option<(String, String)> {
    let status = debian.status();
    let all = status["external"].as_array().unwrap();
    let own = all
        .iter()
        .find(|one| one["path"] == "system.slice/tenant.service")?;
    let text = |key: &str| own[key].as_str().unwrap_or_default().to_owned();
    Some((text("value"), text("by")))
}

#[track_caller]
fn is_protected(debian: &Debian, seconds: u64) {
    debian.within(seconds, &format!("[ $(cat {LOW}) -gt 1048576 ]"));
}

#[test]
#[ignore = "minutes under emulation: make test-runtimes"]
fn systemd_is_told_from_everybody_else() {
    let debian = start();
    configurations_are_read_again(&debian);
    reloads_take_no_knob(&debian);
    a_property_is_a_policy_while_it_stands(&debian);
    what_a_shell_writes_is_left(&debian);
    debian.ok(&format!(
        "/root/deb justitia release {KNOB}; sleep 3; [ $(cat {LOW}) = 0 ]"
    ));
    debian.ok("/root/deb systemctl stop justitia tenant stream");
    debian.untouched();
    debian.step("stopped");
}

/// Reloads and executions anew, more than the agent answers within a minute.
fn reloads_take_no_knob(debian: &Debian) {
    let waits = debian.ok(&format!(
        "for what in reload reexec reload reload reexec; do
            /root/deb systemctl daemon-$what; n=0
            until [ $(cat {LOW}) -gt 1048576 ]; do usleep 20000; n=$((n + 1)); [ $n -lt 1500 ] || exit 1; done
            echo $((n * 20))
        done"
    ));
    println!(
        "after a reload ours was back after so many ms: {}",
        waits.trim().replace('\n', " ")
    );
    assert_eq!(external(debian), None);
    debian.ok("for n in 1 2 3 4 5 6 7 8; do /root/deb systemctl daemon-reload; done");
    // At most a minute later than the limit allows.
    is_protected(debian, 120);
    assert_eq!(external(debian), None);
    debian.step("13 reloads took no knob for good");
}

fn a_property_is_a_policy_while_it_stands(debian: &Debian) {
    // What was counted of the reloads is over.
    std::thread::sleep(Duration::from_secs(60));
    debian.ok("/root/deb systemctl set-property --runtime tenant.service MemoryLow=7M");
    let policy = Some(("7340032".to_owned(), "systemd".to_owned()));
    debian.within(60, &format!("[ $(cat {LOW}) = 7340032 ]"));
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(external(debian), policy);
    // It is written again at a reload, and is a policy still.
    debian.ok("/root/deb systemctl daemon-reload; sleep 3");
    assert_eq!(external(debian), policy);
    debian.ok("/root/deb systemctl set-property --runtime tenant.service MemoryLow=0");
    is_protected(debian, 60);
    assert_eq!(external(debian), None);
    let decisions = debian.status()["decisions"].to_string();
    assert!(decisions.contains("take memory.low back"), "{decisions}");
    debian.step("a property is a policy while it stands");
}

/// Other values, and that which stood there before us; by a shell that ends at once.
fn what_a_shell_writes_is_left(debian: &Debian) {
    let mut left = 0;
    for _ in 0..10 {
        let counted = debian.ok(&format!(
            "n=0; for value in 0 5242880 0 5242880 0; do
                /root/deb justitia take {KNOB} >/dev/null || exit 1
                tries=0; until [ $(cat {LOW}) -gt 6291456 ]; do usleep 100000; tries=$((tries + 1)); [ $tries -lt 300 ] || exit 1; done
                /root/deb sh -c \"echo $value >{LOW}\"; sleep 2
                [ $(cat {LOW}) = $value ] && n=$((n + 1))
            done; echo $n"
        ));
        left += counted.trim().parse::<u32>().unwrap();
    }
    assert_eq!(left, 50);
    let (_, by) = external(debian).unwrap();
    assert!(by.starts_with("process "), "{by}");
    debian.ok(&format!("/root/deb justitia take {KNOB}"));
    is_protected(debian, 60);
    debian.step("of 50 values that a shell wrote 50 were left");
}

fn configurations_are_read_again(debian: &Debian) {
    let pid = debian.unit("MainPID");
    let configure = |toml: &str| {
        debian.ok(&format!(
            "mkdir -p $(dirname {DROP_IN}) && cat >{DROP_IN} <<'END'\n{toml}\nEND"
        ));
    };
    let reload = "/root/deb systemctl reload justitia";
    let log = "/root/deb journalctl -u justitia --no-pager";
    configure("[[tenant]]\nmatch = \"system.slice/tenant.service\"\nexclude = true");
    debian.ok(&format!("{reload} && [ $(cat {LOW}) = 0 ]"));
    configure("cpu_budget = 3\nstate_dir = 7");
    debian.ok(&format!(
        "! {reload} && {log} | grep 'test.toml:2: .*expected an absolute path'"
    ));
    configure("[probes]\nmax_cgroups = 99");
    debian.ok(&format!(
        "! {reload} && {log} | grep 'probes.max_cgroups cannot change'"
    ));
    debian.ok(&format!("sleep 2; [ $(cat {LOW}) = 0 ]"));
    configure("[io]\nenabled = true");
    debian.ok(&format!("{BFQ} && {reload}"));
    is_protected(debian, 60);
    debian.is_written_to();
    configure("[io]\nenabled = false");
    debian.ok(&format!("{reload} && ! {{ {LIMITS}; }}"));
    debian.ok("/root/deb systemctl stop batch db");
    debian.ok(&format!(
        "rm {DROP_IN} /debian/data/batch /debian/data/db; /root/deb systemctl kill --kill-whom=main -s HUP justitia"
    ));
    debian.within(
        30,
        &format!("[ $({log} | grep -c 'the configuration was read again') = 4 ]"),
    );
    is_protected(debian, 30);
    assert_eq!(debian.unit("MainPID"), pid);
    debian.step("configurations are read again");
}
