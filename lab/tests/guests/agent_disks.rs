//! Disks that come and go beneath an agent with device bandwidth: a disk that comes is divided, one that goes takes with it
//! what was said of its number. BFQ schedules them, by its default weights.

use super::agent_guest::{in_guest, small};
use justitia_lab::vm::{DiskSpec, Throttle, VmSpec};
use serde_json::Value;

/// Two disks beside the one with the files, slow enough to be what readers wait for.
fn three_disks() -> VmSpec {
    let slow = || DiskSpec {
        throttle: Throttle {
            bytes_per_second: 20 << 20,
            requests_per_second: 0,
        },
        ..DiskSpec::of(None, 64 << 20)
    };
    let mut spec = small();
    spec.disks.extend([slow(), slow()]);
    spec
}

const TENANTS: &str = "
    mkdir -p /etc/justitia && printf '[io]\\nenabled = true\\n' >/etc/justitia/justitia.toml
    live light && live heavy || exit 1
    echo 100 >$C/light/io.weight && echo 800 >$C/heavy/io.weight
    readlink -f /sys/block/vdb/device | xargs basename >/run/first
    readlink -f /sys/block/vdc/device | xargs basename >/run/second
    cat /sys/block/vdb/dev >/run/number
    knobs | grep -v memory.low >/run/before
";

/// The disk that is plugged in is `vdb`, with the same number each time, once the one before is not open any more.
/// Readers go on while there is none.
const DISKS: &str = "
    bind() { echo $(cat /run/$1) >/sys/bus/virtio/drivers/virtio_blk/bind; }
    pull() { echo $(cat /run/$1) >/sys/bus/virtio/drivers/virtio_blk/unbind; }
    plug_once() {
        bind $1
        [ \"$(cat /sys/block/vdb/dev)\" = \"$(cat /run/number)\" ] || { pull $1; return 1; }
    }
    plug() { within 30 plug_once $1 && echo bfq >/sys/block/vdb/queue/scheduler; }
    reader() {
        sh -c 'echo $$ >\"$0/cgroup.procs\" && while :; do dd if=/dev/vdb of=/dev/null bs=256k iflag=direct 2>/dev/null || usleep 100000; done' $C/$1 >/dev/null 2>&1 &
        echo $! >>/run/loads
    }
    corrected() { grep -q \"^$(cat /run/number) \" $C/$1/io.bfq.weight; }
    both() { corrected light && corrected heavy; }
    back() { knobs | grep -v memory.low | cmp -s /run/before -; }
";

#[test]
#[ignore = "minutes: make test-vm"]
fn an_added_disk_is_divided_and_a_removed_one_leaves_nothing() {
    in_guest(three_disks, |guest| {
        guest.ok(&format!("{DISKS} {TENANTS} pull first && pull second"));
        guest.ok("start");
        // One that was not there when the agent began.
        guest.ok(&format!(
            "{DISKS} plug first || exit 1
            reader light; reader heavy; within 60 both"
        ));
        // It goes, with corrected weights: the kernel has dropped them, and no other writer is reported.
        guest.ok(&format!("{DISKS} pull first"));
        let knobs = |status: &Value| -> String {
            let tenants = status["tenants"].as_array().into_iter().flatten();
            tenants.map(|tenant| tenant["knobs"].to_string()).collect()
        };
        let status = (0..20)
            .find_map(|_| {
                let status = guest.status();
                let forgotten = !knobs(&status).contains("io.bfq.weight");
                forgotten.then_some(status).or_else(|| {
                    guest.ok("sleep 1");
                    None
                })
            })
            .expect("weights that are forgotten");
        assert_eq!(
            status["external"].as_array().map(Vec::len),
            Some(0),
            "{status:#}"
        );
        // Another one has its number now.
        guest.ok(&format!("{DISKS} plug second && within 60 both"));
        // And the first one again, as soon as it can have it.
        guest.ok(&format!(
            "{DISKS} pull second && plug first && sleep 3; within 60 both"
        ));
        guest.ok(&format!(
            "{DISKS} rest; [ $(end TERM) = 0 ] && within 20 back || {{ knobs | grep -v memory.low | diff /run/before -; exit 1; }}
            bind second"
        ));
    });
}
