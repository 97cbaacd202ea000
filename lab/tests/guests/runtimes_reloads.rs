//! Reloads and executions anew of systemd under memory pressure, and short units and scopes without end: no knob is lost for
//! good, nothing leaks, nothing is misnamed. Minutes under emulation: `make test-runtimes`.

use std::time::{Duration, Instant};

use serde_json::Value;

use super::package::debian::Debian;

/// How many reloads and executions anew, and how far apart.
const RELOADS: u32 = 50;
const APART: Duration = Duration::from_secs(5);
/// For so long units come and go.
const CHURN: Duration = Duration::from_secs(240);
/// A container of Docker, of which the scope is real and runc's file made by hand.
const ID: &str = "46ec00ce0123456789abcdef0123456789abcdef0123456789abcdef01234567";

/// An agent that writes weights back, two tenants, and memory that is short.
fn start() -> Debian {
    let debian = Debian::boot();
    debian.ok("/root/deb dpkg -i /packages/first.deb && truncate -s 40M /debian/data/own && truncate -s 1500M /debian/data/much
        mkdir -p /debian/etc/justitia/justitia.toml.d
        printf '[weights]\\nrestore = true\\n' >/debian/etc/justitia/justitia.toml.d/test.toml
        cat >/debian/root/start.sh <<'END'
read='while :; do cat /data/own >/dev/null; sleep 0.5; done'
systemd-run --quiet --unit=tenant -p IOWeight=300 sh -c \"$read\"
systemd-run --quiet --unit=stream sh -c 'while :; do cat /data/much >/dev/null; sleep 0.2; done'
mkdir -p /run/docker/runtime-runc/moby/$1
echo '{\"cgroup_paths\":{\"\":\"/sys/fs/cgroup/system.slice/docker-'$1'.scope\"},\"config\":{\"cgroups\":{\"blkio_weight\":400}}}' \\
    >/run/docker/runtime-runc/moby/$1/state.json
systemd-run --quiet --scope --slice=system.slice --unit=docker-$1.scope sh -c \"$read\" >/dev/null 2>&1 &
systemctl start justitia
END");
    debian.ok(&format!(
        "/root/deb setsid sh /root/start.sh {ID} </dev/null >/dev/null 2>&1"
    ));
    debian.works();
    debian.step("runs");
    debian
}

/// Watches two knobs, by what a shell reads without a process of its own: each line is what a knob stood at another value for,
/// in hundredths of a second.
const WATCH: &str = r#"cat >/run/watch.sh <<'END'
low=$1/system.slice/tenant.service/memory.low weight=$1/system.slice/docker-$2.scope/io.bfq.weight
at() { read -r up idle </proc/uptime; now=${up%.*}${up#*.}; }
lost_low= lost_weight= looks=0
while [ ! -e /run/stop ]; do
    read -r value <$low; read -r default number <$weight; looks=$((looks + 1)); at
    if [ "$value" -le 1048576 ]; then [ -n "$lost_low" ] || lost_low=$now
    elif [ -n "$lost_low" ]; then echo low $((now - lost_low)); lost_low=; fi
    if [ "$number" != 400 ]; then [ -n "$lost_weight" ] || lost_weight=$now
    elif [ -n "$lost_weight" ]; then echo weight $((now - lost_weight)); lost_weight=; fi
    usleep 5000
done
echo looks $looks
END
rm -f /run/stop; sh /run/watch.sh /sys/fs/cgroup ID >/run/watched 2>&1 </dev/null &"#;

/// The median, the 99th percentile and the longest, milliseconds.
fn summary(mut times: Vec<u64>) -> String {
    times.sort_unstable();
    let at = |part: usize| times.get((times.len() * part / 100).min(times.len().max(1) - 1));
    let [median, p99, longest] =
        [50, 99, 100].map(|part| at(part).map_or(0, |hundredths| hundredths * 10));
    format!(
        "{} times, median {median} ms, p99 {p99} ms, longest {longest} ms",
        times.len()
    )
}

#[test]
#[ignore = "ten minutes under emulation: make test-runtimes"]
fn reloads_under_pressure_take_no_knob_for_good() {
    let debian = start();
    let stands = format!(
        "[ $(cat /sys/fs/cgroup/system.slice/tenant.service/memory.low) -gt 1048576 ] &&
        grep -qx 'default 400' /sys/fs/cgroup/system.slice/docker-{ID}.scope/io.bfq.weight"
    );
    debian.within(60, &stands);
    debian.ok(&WATCH.replace("ID", ID));
    for n in 0..RELOADS {
        let begun = Instant::now();
        let how = if n % 2 == 0 { "reload" } else { "reexec" };
        debian.ok(&format!("/root/deb systemctl daemon-{how}"));
        std::thread::sleep(APART.saturating_sub(begun.elapsed()));
    }
    let paused = debian.ok(
        "/root/deb journalctl -u justitia --no-pager -o cat | grep -c 'reapplied too often'; true",
    );
    println!(
        "{} times a knob was left for the rest of a minute",
        paused.trim()
    );
    let slice = debian.ok("cd /sys/fs/cgroup/system.slice; grep . */memory.low */io*.weight; true");
    println!(
        "after the last one:\n{slice}\n{:#}",
        debian.status()["external"]
    );
    // The longest pause of a knob that was applied again too often is over by then.
    debian.within(120, &stands);
    let watched = debian.ok("touch /run/stop; sleep 1; cat /run/watched");
    let of = |what: &str| -> Vec<u64> {
        let lines = watched.lines().filter_map(|line| line.strip_prefix(what));
        lines.map(|number| number.trim().parse().unwrap()).collect()
    };
    println!(
        "{RELOADS} reloads; another value stood in memory.low {}; in io.bfq.weight {}; {} looks",
        summary(of("low")),
        summary(of("weight")),
        of("looks")[0]
    );
    let status = debian.status();
    let external = &status["external"];
    assert_eq!(external, &Value::Array(Vec::new()), "yielded for good");
    debian.ok("/root/deb systemctl stop justitia");
    debian.ok(&format!(
        "grep -x 'default 100' /sys/fs/cgroup/system.slice/docker-{ID}.scope/io.bfq.weight"
    ));
    debian.step("done");
}

/// Units that end at once, four at a time, and what the agent keeps of them.
const UNITS: &str = r#"cat >/debian/root/churn.sh <<'END'
n=0
while [ ! -e /run/churn.stop ]; do
    for k in 1 2 3 4; do
        n=$((n + 1))
        systemd-run --quiet --collect --unit=churn-$n -p IOWeight=$((100 + n % 900)) sh -c 'cat /data/own >/dev/null; sleep 0.3' &
    done
    wait
    echo $n >/run/churn.count
done
END
/root/deb setsid sh /root/churn.sh </dev/null >/dev/null 2>&1 &"#;

/// The agent's resident memory in KiB, its descriptors, and how many tenants and knobs it has.
fn held(debian: &Debian) -> (u64, u64, usize, u64) {
    let text = debian.ok(
        "pid=$(/root/deb systemctl show justitia -p MainPID --value)
        /root/deb sh -c \"grep VmRSS /proc/$pid/status | grep -o '[0-9]*'; ls /proc/$pid/fd | wc -l\"",
    );
    let numbers: Vec<u64> = text
        .split_whitespace()
        .map(|n| n.parse().unwrap())
        .collect();
    let status = debian.status();
    let tenants = status["tenants"].as_array().unwrap().len();
    (
        numbers[0],
        numbers[1],
        tenants,
        status["agent_usage"]["errors"].as_u64().unwrap(),
    )
}

/// Whether a tenant is one of the short units; then its name and weight are its own, if they are known yet.
fn is_rightly_named(tenant: &Value) -> bool {
    let path = tenant["path"].as_str().unwrap();
    let unit = path.rsplit('/').next().unwrap();
    let Some(number) = unit.strip_prefix("churn-") else {
        return false;
    };
    let number: u64 = number.trim_end_matches(".service").parse().unwrap();
    let name = tenant["name"].as_str().unwrap_or_default();
    let weight = tenant["weight"].as_u64().unwrap();
    assert!(["", path, unit].contains(&name), "{tenant:#}");
    assert!([100, 100 + number % 900].contains(&weight), "{tenant:#}");
    true
}

#[test]
#[ignore = "ten minutes under emulation: make test-runtimes"]
fn short_units_leak_nothing_and_are_never_misnamed() {
    let debian = start();
    let before = held(&debian);
    debian.ok(UNITS);
    let begun = Instant::now();
    let (mut seen, mut longest) = (0, 0);
    while begun.elapsed() < CHURN {
        std::thread::sleep(Duration::from_secs(2));
        let status = debian.status();
        let churning = status["tenants"].as_array().unwrap().iter();
        let churning = churning.filter(|tenant| is_rightly_named(tenant));
        let now = churning.count();
        (seen, longest) = (seen + now, longest.max(now));
    }
    let count =
        debian.ok("/root/deb touch /run/churn.stop; sleep 5; /root/deb cat /run/churn.count");
    std::thread::sleep(Duration::from_secs(40));
    let after = held(&debian);
    println!(
        "{} units came and went, {seen} of them were looked at, {longest} at once; resident KiB, descriptors, tenants, errors: {before:?} before, {after:?} after",
        count.trim()
    );
    let log = debian.ok("/root/deb journalctl -u justitia --no-pager -p warning -o cat; true");
    println!("warnings in the log: {log}");
    assert_eq!(after.3, 0);
    assert!(
        after.1 <= before.1 + 8,
        "descriptors of cgroups that are gone"
    );
    assert!(after.2 <= before.2 + 4, "tenants that are gone");
    assert!(!log.contains("ERROR"), "{log}");
    assert_eq!(debian.status()["external"], Value::Array(Vec::new()));
    debian.step("done");
}
