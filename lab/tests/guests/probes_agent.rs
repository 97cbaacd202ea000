//! The probes through the agent, in a guest: what is counted and what is lost, in its status and its metrics.

use std::time::{Duration, Instant};

use super::agent_guest::{Guest, in_guest, small, tenant};
use serde_json::Value;

/// A tenant that reads what is cached, for as long as the test goes.
const WORK: &str = "
    live reader && live idle && hole /data/cached 8
    sh -c 'echo $$ >\"$0/cgroup.procs\" && while :; do dd if=/data/cached of=/dev/null bs=4k 2>/dev/null; done' $C/reader >/dev/null 2>&1 &
    echo $! >>/run/loads
";

/// An agent that an emulated machine holds up looks at the probes more rarely.
const LONGEST: Duration = Duration::from_secs(120);

const LITTLE_ROOM: &str = "printf '[probes]\\nmax_cgroups = 16\\n' >>/etc/justitia/justitia.toml";

/// More tenants than there is room for, each of which reads a little, one right after the other: sooner than any of them
/// could be known to rest.
const CROWD: &str = "
    echo little >/data/little
    for number in $(seq 60); do live \"crowd$number\" || exit 1; done
    sh -c 'for number in $(seq 60); do echo $$ >\"$0/crowd$number/cgroup.procs\"; read word </data/little; done' $C
";

/// A loss is in the status in words and as a number, and in the metrics.
#[track_caller]
fn assert_reported(status: &Value, metrics: &str, what: &str, words: &str) {
    let limits = status["limitations"].to_string();
    assert!(limits.contains(words), "expected {words:?} in {limits}");
    let losses = status["probe_drops"].as_array().into_iter().flatten();
    let count = losses
        .filter(|loss| loss["what"] == what)
        .find_map(|loss| loss["count"].as_u64());
    assert!(count.is_some_and(|count| count > 0), "{what} in {status:#}");
    let series = format!("justitia_probe_dropped_events_total{{kind=\"{what}\"}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&series));
    let number = line.and_then(|line| line.parse::<u64>().ok());
    // It may have grown since the status was taken.
    assert!(number >= count, "{what}: {count:?} and then {line:?}");
}

/// Emulated processors sometimes trip over a function that is patched while they run it: probes come and
/// go while nothing reads.
const REST: &str = "rest; sleep 1";

#[test]
#[ignore = "minutes: make test-vm"]
fn what_the_probes_lose_is_reported() {
    in_guest(small, |guest| {
        guest.ok(&format!(
            "mkdir -p /etc/justitia && {LITTLE_ROOM}
            start --observe\n{WORK}\nsleep 2\n{CROWD}"
        ));
        a_newcomer_is_counted(guest);
        assert_losses_are_reported(guest);
    });
}

/// The others are idle by now: the next one is counted.
fn a_newcomer_is_counted(guest: &Guest) {
    guest.ok("live newcomer");
    let begun = Instant::now();
    let read = || {
        // What it reads before one of the others has lost its entry counts for no tenant.
        guest.ok("cache newcomer /data/cached 8");
        let status = guest.status();
        let mut tenants = status["tenants"].as_array().into_iter().flatten();
        let newcomer = tenants.find(|tenant| tenant["path"] == "newcomer");
        newcomer.and_then(|tenant| tenant["app"]["read_bytes"].as_u64())
    };
    while read().unwrap_or(0) == 0 {
        assert!(begun.elapsed() < LONGEST, "{}", guest.log());
        std::thread::sleep(Duration::from_secs(1));
    }
}

fn assert_losses_are_reported(guest: &Guest) {
    let status = guest.status();
    let metrics = guest.ok("wget -qO- http://127.0.0.1:9742/metrics");
    guest.ok(REST);
    assert_reported(
        &status,
        &metrics,
        "map_full",
        "events count for no tenant; the map has 16 entries",
    );
    for what in ["map_busy", "shared_file_evicted"] {
        let none = format!("justitia_probe_dropped_events_total{{kind=\"{what}\"}} 0\n");
        assert!(metrics.contains(&none), "expected {none} in {metrics}");
    }
}

#[test]
#[ignore = "minutes: make test-vm"]
fn bytes_are_as_of_the_query() {
    in_guest(small, |guest| {
        guest.ok(&format!("start --observe\n{WORK}\nsleep 15"));
        let app = tenant(&guest.status(), "reader")["app"].clone();
        guest.ok(REST);
        assert!(app["reads"].as_u64().is_some_and(|n| n > 0), "{app}");

        // The probes are read when the status is asked for: between two samples of the agent's own there may be seconds.
        let read = || tenant(&guest.status(), "idle")["app"]["read_bytes"].as_u64();
        guest.ok("cache idle /data/cached 1");
        for _ in 0..5 {
            let before = read().unwrap_or_default();
            guest.ok("cache idle /data/cached 8");
            let seen = read().map(|now| now - before);
            assert_eq!(seen, Some(8 << 20));
        }
    });
}
