//! Device bandwidth in a guest: what is set comes with contention, by weight, and goes with it, with the agent, and with
//! whatever else ends or stops it; an operator's stays.

use super::agent_guest::{in_guest, small};

/// Three tenants, one of which has a limit of its operator's, and a disk that BFQ schedules, by its default weights.
const TENANTS: &str = "
    echo bfq >/sys/block/vda/queue/scheduler
    mkdir -p /etc/justitia && printf '[io]\\nenabled = true\\n' >/etc/justitia/justitia.toml
    live light && live heavy && live own || exit 1
    echo 100 >$C/light/io.weight && echo 800 >$C/heavy/io.weight
    echo \"$(cat /sys/block/vda/dev) wbps=20971520\" >$C/own/io.max || exit 1
    knobs | grep -v memory.low >/run/before
";

const WRITERS: &str = "
    writer() {
        sh -c 'echo $$ >\"$0/cgroup.procs\" && while :; do dd if=/dev/zero of=\"$1\" bs=256k count=64 oflag=direct conv=notrunc 2>/dev/null; done' $C/$1 /data/$1 &
        echo $! >>/run/loads
    }
    # Buffered, over and over, without waiting for the disk but where the kernel makes it wait.
    buffered() {
        sh -c 'echo $$ >\"$0/cgroup.procs\" && while :; do dd if=/dev/zero of=\"$1\" bs=256k count=1024 conv=notrunc 2>/dev/null; done' $C/$1 /data/$1 &
        echo $! >>/run/loads
    }
    rooms() { for one in light heavy; do [ $(cat $C/$one/memory.high) != max ] || return 1; done; }
    background() { cat /proc/sys/vm/dirty_background_ratio; }
    late() { [ $(background) = 19 ]; }
    usual() { [ $(background) = 10 ]; }
    back() { knobs | grep -v memory.low | cmp -s /run/before -; }
";

#[test]
#[ignore = "minutes: make test-vm"]
fn writers_are_released_when_the_disk_is_idle() {
    in_guest(small, |guest| {
        guest.ok(TENANTS);
        guest.ok(&format!(
            "{WRITERS} usual && start && {{ buffered light; buffered heavy; }} >/dev/null 2>&1; within 90 rooms && within 60 late"
        ));
        let why = guest.ok("justitia explain -");
        assert!(
            why.contains("vm.dirty_background_ratio = 19")
                && why.contains("what is written back early waits at the disk"),
            "{why}"
        );
        // One that is stopped cannot follow whether they still do.
        guest.ok(&format!(
            "{WRITERS} kill -STOP $(cat /run/agent.pid); within 30 usual && kill -CONT $(cat /run/agent.pid) && within 90 late"
        ));
        // What is dirty goes to the disk first: as long as that lasts, the disk is busy.
        guest.ok(&format!(
            "{WRITERS} rest; timeout 60 sync; within 8 back || {{ knobs | grep -v memory.low | diff /run/before -; exit 1; }}"
        ));

        // After a kill the watchdog restores it; a value that another writer sets meanwhile stays.
        guest.ok(&format!(
            "{WRITERS} {{ buffered light; buffered heavy; }} >/dev/null 2>&1; within 90 late || exit 1
            end KILL >/dev/null; within 30 usual || {{ background; exit 1; }}
            rest"
        ));
        guest.ok(&format!(
            "{WRITERS} start && {{ buffered light; buffered heavy; }} >/dev/null 2>&1; within 90 late || exit 1
            echo 7 >/proc/sys/vm/dirty_background_ratio; sleep 4; [ $(background) = 7 ]"
        ));
        let external = guest.status()["external"].to_string();
        assert!(
            external.contains(r#""knob":"vm.dirty_background_ratio","path":"-","value":"7""#),
            "{external}"
        );
        guest.ok(&format!(
            "{WRITERS} rest; [ $(end TERM) = 0 ] && [ $(background) = 7 ] && echo 10 >/proc/sys/vm/dirty_background_ratio
            echo none >/sys/block/vda/queue/scheduler"
        ));
    });
}

/// Lines of the disk in the file F. Requests in flight differ, so that no controller alone divides the disk as weights say.
const LINES: &str = "
    disk=$(cat /sys/block/vda/dev)
    line() { grep \"^$disk \" $C/$1/$F; }
    corrected() { line light && line heavy; }
    given_back() { ! line light && ! line heavy; }
    stands() {
        [ $(head -n 1 $C/light/$F | tr -dc 0-9) = 100 ] && [ $(head -n 1 $C/heavy/$F | tr -dc 0-9) = 800 ] &&
            [ \"$(line own)\" = \"$disk 77\" ]
    }
    contend() { writer light; writer light; writer light; writer heavy; }
";

#[test]
#[ignore = "minutes: make test-vm"]
fn weights_of_bfq_are_corrected_while_the_disk_is_contended_and_given_back() {
    weights_are_corrected(
        "io.bfq.weight",
        "echo bfq >/sys/block/vda/queue/scheduler",
        "echo none >/sys/block/vda/queue/scheduler",
    );
}

/// Its model is far above the disk: below, it divides direct I/O itself, and nothing is to be corrected.
#[test]
#[ignore = "minutes: make test-vm"]
fn weights_of_io_cost_are_corrected_while_the_disk_is_contended_and_given_back() {
    weights_are_corrected(
        "io.weight",
        "echo \"$disk ctrl=user model=linear rbps=10000000000 rseqiops=1000000 rrandiops=1000000 wbps=10000000000 wseqiops=1000000 wrandiops=1000000\" >$C/io.cost.model
         echo \"$disk enable=1 ctrl=user rpct=0 wpct=0 min=100 max=100\" >$C/io.cost.qos",
        "echo \"$disk enable=0\" >$C/io.cost.qos",
    );
}

fn weights_are_corrected(file: &str, enable: &str, disable: &str) {
    let lines = format!("{WRITERS} F={file} {LINES}");
    in_guest(small, |guest| {
        guest.ok(&format!(
            "{lines} {enable}
            mkdir -p /etc/justitia && printf '[io]\\nenabled = true\\n' >/etc/justitia/justitia.toml
            live light && live heavy && live own || exit 1
            echo 100 >$C/light/$F && echo 800 >$C/heavy/$F && echo \"$disk 77\" >$C/own/$F && stands"
        ));
        // A single tenant's weight counts as it is; the operator's line stays.
        guest.ok(&format!(
            "{lines} start && writer light >/dev/null 2>&1; sleep 5; given_back && stands"
        ));
        guest.ok(&format!(
            "{lines} contend >/dev/null 2>&1; writer own >/dev/null 2>&1; within 90 corrected && stands"
        ));
        let why = guest.ok("justitia explain light");
        assert!(why.contains("which is divided by weight"), "{why}");
        // A killed agent's are restored by the reset, a stopped one's by itself; those without contention go.
        guest.ok(&format!(
            "{lines} end KILL >/dev/null; justitia reset && given_back && stands || {{ cat $C/*/$F; exit 1; }}"
        ));
        guest.ok(&format!(
            "{lines} start && within 90 corrected || exit 1
            rest; within 60 given_back && stands || exit 1
            contend >/dev/null 2>&1; within 90 corrected || exit 1
            rest; [ $(end TERM) = 0 ] && given_back && stands && {disable}"
        ));
    });
}

/// io.cost of a disk that nothing divides.
const IO_COST: &str = "
    on() { grep -q \"^$disk enable=1 ctrl=user\" $C/io.cost.qos && grep -q \"^$disk ctrl=user\" $C/io.cost.model; }
    off() { ! grep -q \"^$disk enable=1\" $C/io.cost.qos && ! grep -q \"^$disk ctrl=user\" $C/io.cost.model; }
    shown() { cat $C/io.cost.qos $C/io.cost.model; }
";

#[test]
#[ignore = "minutes: make test-vm"]
fn io_cost_is_enabled_while_tenants_contend_for_a_disk_that_nothing_divides() {
    let lines = format!("{WRITERS} F=io.weight {LINES} {IO_COST}");
    in_guest(small, |guest| {
        guest.ok(&format!(
            "{lines} echo none >/sys/block/vda/queue/scheduler
            mkdir -p /etc/justitia && printf '[io]\\nenabled = true\\n' >/etc/justitia/justitia.toml
            live light && live heavy && live own || exit 1
            echo 100 >$C/light/$F && echo 800 >$C/heavy/$F"
        ));
        guest.ok(&format!(
            "{lines} start && writer light >/dev/null 2>&1; sleep 5; off || {{ shown; exit 1; }}"
        ));
        guest.ok(&format!(
            "{lines} contend >/dev/null 2>&1; within 90 on || {{ shown; exit 1; }}"
        ));
        let why = guest.ok("justitia explain -");
        assert!(why.contains("hardly less than it can do"), "{why}");
        // A stopped agent cannot follow the disk, a killed one neither: the watchdog gives both lines back.
        guest.ok(&format!(
            "{lines} kill -STOP $(cat /run/agent.pid); within 30 off || {{ shown; exit 1; }}
            kill -CONT $(cat /run/agent.pid); within 90 on || {{ shown; exit 1; }}
            end KILL >/dev/null; within 30 off || {{ shown; exit 1; }}"
        ));
        guest.ok(&format!(
            "{lines} start && within 90 on || exit 1
            rest; within 60 off && given_back || {{ shown; exit 1; }}
            contend >/dev/null 2>&1; within 90 on || exit 1
            echo \"$disk enable=0\" >$C/io.cost.qos; sleep 5; off || {{ shown; exit 1; }}"
        ));
        let external = guest.status()["external"].to_string();
        assert!(external.contains("io.cost.qos"), "{external}");
        // A model that its operator has set is a choice, though it is not enabled.
        guest.ok(&format!(
            "{lines} rest; [ $(end TERM) = 0 ] && given_back || exit 1
            model=\"ctrl=user model=linear rbps=1000000 rseqiops=1000 rrandiops=1000 wbps=1000000 wseqiops=1000 wrandiops=1000\"
            echo \"$disk $model\" >$C/io.cost.model && start && contend >/dev/null 2>&1; sleep 10
            ! grep -q enable=1 $C/io.cost.qos && grep -q \"^$disk $model\" $C/io.cost.model || {{ shown; exit 1; }}
            rest; [ $(end TERM) = 0 ] && echo \"$disk ctrl=auto\" >$C/io.cost.model && echo \"$disk enable=0 ctrl=auto\" >$C/io.cost.qos"
        ));
    });
}
