//! The probes through the agent, in a guest: how long calls take, in its status and its metrics.

use std::time::{Duration, Instant};

use super::agent_guest::{Guest, in_guest, small, tenant};
use serde_json::Value;

/// A tenant that writes and syncs, and one that reads what is cached, for as long as the test goes.
const WORK: &str = "
    live writer && live reader && live idle && hole /data/cached 8
    sh -c 'echo $$ >\"$0/cgroup.procs\" && while :; do dd if=/dev/zero of=/data/synced bs=4k count=8 conv=fsync 2>/dev/null; done' $C/writer >/dev/null 2>&1 &
    echo $! >>/run/loads
    sh -c 'echo $$ >\"$0/cgroup.procs\" && while :; do dd if=/data/cached of=/dev/null bs=4k 2>/dev/null; done' $C/reader >/dev/null 2>&1 &
    echo $! >>/run/loads
";

/// Calls are reported of the last whole window of ten seconds; an agent that an emulated machine holds up looks
/// at them more rarely.
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

fn latency(guest: &Guest, path: &str) -> Value {
    tenant(&guest.status(), path)["app"]["latency"].clone()
}

#[test]
#[ignore = "minutes: make test-vm"]
fn io_latency_is_reported_when_enabled() {
    in_guest(small, |guest| {
        guest.ok(&format!(
            "mkdir -p /etc/justitia && echo 'trace_latency = true' >/etc/justitia/justitia.toml && {LITTLE_ROOM}
            start --observe\n{WORK}\nsleep 2\n{CROWD}"
        ));
        let number = |of: &Value, name: &str| of[name].as_f64();
        let begun = Instant::now();
        let (writer, reader) = loop {
            let both = (latency(guest, "writer"), latency(guest, "reader"));
            let known =
                number(&both.0, "sync_p99").is_some() && number(&both.1, "read_p50").is_some();
            if known || begun.elapsed() > LONGEST {
                break both;
            }
            std::thread::sleep(Duration::from_secs(2));
        };
        let (Some(read), Some(sync)) = (number(&reader, "read_p50"), number(&writer, "sync_p99"))
        else {
            panic!(
                "expected times of reads and syncs, found {reader} and {writer}; the agent says:\n{}",
                guest.log()
            )
        };
        assert!(read > 0.0 && read < sync, "{reader} and {writer}");
        let (Some(p50), Some(p99)) = (number(&writer, "write_p50"), number(&writer, "write_p99"))
        else {
            panic!("expected times of writes, found {writer}")
        };
        assert!(p50 <= p99, "{writer}");
        assert_eq!(number(&reader, "sync_p99"), None, "{reader}");
        assert!(latency(guest, "idle")["read_p50"].is_null());

        a_newcomer_is_counted(guest);
        assert_losses_and_times_are_reported(guest);
    });
}

/// The others are idle by now: the next one is counted.
fn a_newcomer_is_counted(guest: &Guest) {
    guest.ok("live newcomer && cache newcomer /data/cached 8");
    let begun = Instant::now();
    let read = || {
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

fn assert_losses_and_times_are_reported(guest: &Guest) {
    let status = guest.status();
    let metrics = guest.ok("wget -qO- http://127.0.0.1:9742/metrics");
    guest.ok(REST);
    assert_reported(
        &status,
        &metrics,
        "map_full",
        "events count for no tenant; the map has 16 entries",
    );
    assert_reported(
        &status,
        &metrics,
        "latency_untimed",
        "were not timed; the map has 16 entries",
    );
    for what in ["map_busy", "shared_file_evicted", "lock_wait"] {
        let none = format!("justitia_probe_dropped_events_total{{kind=\"{what}\"}} 0\n");
        assert!(metrics.contains(&none), "expected {none} in {metrics}");
    }
    assert!(
        metrics.contains("# TYPE justitia_tenant_io_latency_seconds histogram"),
        "{metrics}"
    );
    for words in [["reader", "read"], ["writer", "write"], ["writer", "sync"]] {
        assert!(
            metrics.lines().any(|line| words
                .iter()
                .all(|word| line.contains(&format!("\"{word}\"")))),
            "no {words:?} in {metrics}"
        );
    }
}

#[test]
#[ignore = "minutes: make test-vm"]
fn io_latency_is_not_traced_by_default() {
    in_guest(small, |guest| {
        guest.ok(&format!("start --observe\n{WORK}\nsleep 15"));
        let app = tenant(&guest.status(), "reader")["app"].clone();
        guest.ok(REST);
        assert!(app["reads"].as_u64().is_some_and(|n| n > 0), "{app}");
        assert!(app["latency"].is_null(), "{app}");

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
