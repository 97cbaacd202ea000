//! The eyes through the agent, in a guest: how long calls take, in its status and its metrics.

mod agent_guest;

use agent_guest::{Guest, in_guest, tenant};
use justitia_lab::vm::{DiskSpec, VmSpec};
use serde_json::Value;

fn small() -> VmSpec {
    VmSpec {
        memory: 768 << 20,
        disks: vec![DiskSpec::ext4(2 << 30)],
        ..VmSpec::default()
    }
}

/// A tenant that writes and syncs, and one that reads what is cached, for as long as the test goes.
const WORK: &str = "
    live writer && live reader && live idle && hole /data/cached 8
    sh -c 'echo $$ >\"$0/cgroup.procs\" && while :; do dd if=/dev/zero of=/data/synced bs=4k count=8 conv=fsync 2>/dev/null; done' $C/writer >/dev/null 2>&1 &
    echo $! >>/run/loads
    sh -c 'echo $$ >\"$0/cgroup.procs\" && while :; do dd if=/data/cached of=/dev/null bs=4k 2>/dev/null; done' $C/reader >/dev/null 2>&1 &
    echo $! >>/run/loads
";

/// Emulated processors sometimes trip over a function that is patched while they run it: probes come and
/// go while nothing reads.
const REST: &str = "for pid in $(cat /run/loads); do kill -9 $pid; done; sleep 1";

fn latency(guest: &Guest, path: &str) -> Value {
    tenant(&guest.status(), path)["app"]["latency"].clone()
}

#[test]
fn calls_are_timed_when_asked_for() {
    in_guest(small, |guest| {
        guest.ok(&format!(
            "mkdir -p /etc/justitia && echo 'latency = true' >/etc/justitia/justitia.toml\nstart --observe\n{WORK}\nsleep 25"
        ));
        let (writer, reader) = (latency(guest, "writer"), latency(guest, "reader"));
        let number = |of: &Value, name: &str| of[name].as_f64();
        let (Some(read), Some(sync)) = (number(&reader, "read_p50"), number(&writer, "sync_p99"))
        else {
            panic!("expected times of reads and syncs, found {reader} and {writer}")
        };
        assert!(read > 0.0 && read < sync, "{reader} and {writer}");
        let (Some(p50), Some(p99)) = (number(&writer, "write_p50"), number(&writer, "write_p99"))
        else {
            panic!("expected times of writes, found {writer}")
        };
        assert!(p50 <= p99, "{writer}");
        assert_eq!(number(&reader, "sync_p99"), None, "{reader}");
        assert!(latency(guest, "idle")["read_p50"].is_null());

        let metrics = guest.ok("wget -qO- http://127.0.0.1:9742/metrics | grep latency_bound");
        guest.ok(REST);
        assert!(
            metrics.contains("# UNIT justitia_tenant_latency_bound_seconds seconds"),
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
    });
}

#[test]
fn calls_are_not_timed_otherwise() {
    in_guest(small, |guest| {
        guest.ok(&format!("start --observe\n{WORK}\nsleep 15"));
        let app = tenant(&guest.status(), "reader")["app"].clone();
        guest.ok(REST);
        assert!(app["reads"].as_u64().is_some_and(|n| n > 0), "{app}");
        assert!(app["latency"].is_null(), "{app}");
    });
}
