//! Containers that are cgroups with the files of their runtimes, made by hand in a small guest without systemd: what is told of
//! them, how a weight is written back, what a thousand of them cost, and that they come and go without a trace.

use serde_json::Value;

use super::agent_guest::{Guest, in_guest, small, tenant};

/// `made ID NAME WEIGHT`: a container of Docker with the cgroupfs driver; `unmade ID`. `bare NAME`: a cgroup without a
/// container.
const FUNCTIONS: &str = r#"
made() {
    mkdir -p /run/docker/runtime-runc/moby/$1 /var/lib/docker/containers/$1
    echo "{\"cgroup_paths\":{\"\":\"$C/docker/$1\"},\"config\":{\"cgroups\":{\"blkio_weight\":$3}}}" >/run/docker/runtime-runc/moby/$1/state.json
    echo "{\"Name\":\"/$2\",\"Config\":{\"Image\":\"nginx:1.25\",\"Labels\":{\"tier\":\"front\"}}}" >/var/lib/docker/containers/$1/config.v2.json
    live docker/$1
}
unmade() {
    echo 1 >$C/docker/$1/cgroup.kill
    until rmdir $C/docker/$1 2>/dev/null; do usleep 10000; done
    rm -r /run/docker/runtime-runc/moby/$1 /var/lib/docker/containers/$1
}
id() { printf '%064x' $1; }
ticks() { awk '{ print $14 + $15 }' /proc/$(cat /run/agent.pid)/stat; }
"#;

fn ok(guest: &Guest, script: &str) -> String {
    guest.ok(&format!("{FUNCTIONS}\n{script}"))
}

/// Nothing of another test's.
fn emptied(guest: &Guest) {
    ok(guest, "rm -rf /run/docker /var/lib/docker; inner docker");
}

#[test]
#[ignore = "minutes: make test-runtimes"]
fn a_container_has_its_name_and_its_weight_back_by_files_alone() {
    in_guest(small, |guest| {
        emptied(guest);
        ok(
            guest,
            "made $(id 1) web 400; made $(id 2) shop 800; made $(id 3) batch 200
            echo 400 >$C/docker/$(id 1)/io.weight; for file in $C/docker/$(id 3)/io*.weight; do echo 77 >$file; done
            mkdir -p /etc/justitia; printf '[weights]\nrestore = true\n[[tenant]]\nlabel = \"tier=front\"\nmin_cache = \"8MiB\"\n' >/etc/justitia/justitia.toml
            start",
        );
        all_are_told(guest);
        weights_are_written_back_and_restored(guest);
    });
}

/// As after a reload; as a start without a weight leaves it; another's value.
fn all_are_told(guest: &Guest) {
    for (n, name, weight) in [(1, "web", 400), (2, "shop", 800), (3, "batch", 200)] {
        let path = format!("docker/{n:064x}");
        assert!(
            guest.comes(20, || tenant(&guest.status(), &path)["name"] == name),
            "{:#}",
            guest.status()
        );
        let status = guest.status();
        let told = tenant(&status, &path);
        assert_eq!(
            (&told["weight"], &told["weight_source"]),
            (&weight.into(), &"runtime".into())
        );
    }
}

fn weights_are_written_back_and_restored(guest: &Guest) {
    // BFQ is loaded, so runc would write its file alone.
    let stands = |n: u64, file: &str, value: u64| {
        format!("within 20 grep -qx 'default {value}' $C/docker/$(id {n})/{file}")
    };
    let shop = |value| stands(2, "io.bfq.weight", value);
    ok(
        guest,
        &format!(
            "{} && {} && {}",
            stands(1, "io.weight", 400),
            shop(800),
            stands(3, "io.weight", 77)
        ),
    );
    let status = guest.status();
    let external = status["external"].as_array().unwrap().iter();
    let of_others = external.filter(|one| one["value"] == "default 77").count();
    assert!(of_others > 0, "{:#}", status["external"]);
    assert_eq!(
        tenant(&status, &format!("docker/{:064x}", 3))["declared"]["drift"],
        true
    );
    let explained = ok(guest, "justitia explain shop");
    assert!(explained.contains("800 was declared in"), "{explained}");
    // A killed agent's value is restored by a reset, as every knob is.
    ok(guest, &format!("end KILL; justitia reset && {}", shop(100)));
    ok(
        guest,
        &format!("start && {} && end TERM && {}", shop(800), shop(100)),
    );
    assert_eq!(
        ok(guest, "cat $C/docker/$(id 3)/io.weight").trim(),
        "default 77"
    );
}

/// Hundredths of a second of the processor in a minute.
fn minute(guest: &Guest) -> u64 {
    let ticks = ok(
        guest,
        "before=$(ticks); sleep 60; echo $(($(ticks) - before))",
    );
    ticks.trim().parse().unwrap()
}

#[test]
#[ignore = "minutes under emulation: make test-runtimes"]
fn a_thousand_containers_cost_what_as_many_bare_cgroups_do() {
    in_guest(small, |guest| {
        for (what, make) in [
            ("bare cgroups", "live docker/$(id $n)"),
            ("containers", "made $(id $n) name-$n $((100 + n % 900))"),
        ] {
            ok(
                guest,
                "clean; rm -rf /run/docker /var/lib/docker; inner docker",
            );
            for hundred in 0..10 {
                ok(
                    guest,
                    &format!(
                        "for n in $(seq {} {}); do {make}; done",
                        hundred * 100,
                        hundred * 100 + 99
                    ),
                );
            }
            ok(guest, "start");
            let known = || {
                let status = guest.status();
                let all = status["tenants"].as_array().unwrap().iter();
                let all = all.filter(|t| t["path"].as_str().unwrap().starts_with("docker/"));
                let named = all.filter(|t| {
                    what == "bare cgroups" || t["name"].as_str().unwrap().starts_with("name-")
                });
                named.count() >= 1000
            };
            assert!(guest.comes(60, known), "{what}");
            // What the start has asked for is over.
            ok(guest, "sleep 40");
            let cost = [minute(guest), minute(guest)];
            println!("1000 {what}: {cost:?} hundredths of a second of the processor in a minute");
            ok(guest, "end TERM");
        }
    });
}

/// The agent's resident memory in KiB, and its descriptors.
fn held(guest: &Guest) -> (u64, u64) {
    let text = ok(
        guest,
        "pid=$(cat /run/agent.pid); grep VmRSS /proc/$pid/status | grep -o '[0-9]*'; ls /proc/$pid/fd | wc -l",
    );
    let numbers: Vec<u64> = text
        .split_whitespace()
        .map(|n| n.parse().unwrap())
        .collect();
    (numbers[0], numbers[1])
}

/// How many containers have their names and weights; none has another's.
fn rightly_named(guest: &Guest) -> usize {
    let status = guest.status();
    let containers = status["tenants"].as_array().unwrap().iter();
    let is_right = |one: &&Value| {
        let Some(id) = one["path"].as_str().unwrap().strip_prefix("docker/") else {
            return false;
        };
        let number = u64::from_str_radix(id, 16).unwrap();
        let name = one["name"].as_str().unwrap();
        let is_right = name == format!("name-{number}") && one["weight"] == 100 + number % 900;
        // Before it was asked for, it has no name of another.
        assert!(is_right || !name.starts_with("name-"), "{one:#}");
        is_right
    };
    containers.filter(is_right).count()
}

#[test]
#[ignore = "minutes under emulation: make test-runtimes"]
fn two_thousand_short_containers_leave_nothing_and_none_is_misnamed() {
    in_guest(small, |guest| {
        emptied(guest);
        ok(
            guest,
            "hole /data/much 1200; live reader; reread reader /data/much 0
            mkdir -p /etc/justitia; printf '[weights]\nrestore = true\n' >/etc/justitia/justitia.toml; start; sleep 5",
        );
        let before = held(guest);
        let mut looked = 0;
        for turn in 0..100 {
            let first = turn * 20;
            ok(
                guest,
                &format!(
                    "for n in $(seq {first} {}); do made $(id $n) name-$n $((100 + n % 900)); done; usleep 400000",
                    first + 19
                ),
            );
            looked += rightly_named(guest);
            ok(
                guest,
                &format!(
                    "for n in $(seq {first} {}); do unmade $(id $n); done",
                    first + 19
                ),
            );
        }
        ok(guest, "rest; sleep 40");
        let after = held(guest);
        let status = guest.status();
        println!(
            "2000 containers came and went, {looked} were seen under their names; KiB and descriptors: {before:?}, then {after:?}; the agent uses {}",
            status["agent_usage"]
        );
        let left = status["tenants"].as_array().unwrap().iter();
        assert_eq!(
            left.filter(|t| t["path"].as_str().unwrap().starts_with("docker/"))
                .count(),
            0
        );
        assert!(
            after.1 <= before.1 + 8,
            "descriptors of cgroups that are gone"
        );
        assert_eq!(status["agent_usage"]["errors"], Value::from(0));
        let log = guest.ok("grep -E 'ERROR|WARN' $LOG; true");
        println!("warnings in the log: {log}");
        assert!(!log.contains("ERROR"), "{log}");
        guest.ok("end TERM");
    });
}
