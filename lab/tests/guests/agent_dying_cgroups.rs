//! Page cache that no living cgroup is charged with: what was read in a cgroup before it had children, and what cgroups
//! have left behind that were removed. It counts where it is charged, asks for nothing, and goes first.

use super::agent_guest::{Guest, in_guest, small, tenant};

/// Each way to reclaim from what is outside any tenant, or none: MGLRU with its debugfs interface and without, and the
/// classic LRU.
const KERNELS: [(&str, &str, bool); 3] = [
    ("MGLRU", "y", true),
    ("MGLRU without debugfs", "y", false),
    ("classic LRU", "n", true),
];

fn choose(guest: &Guest, multi_gen: &str, debugfs: bool) {
    guest.choose_lru(multi_gen);
    guest.ok(&format!(
        "mountpoint -q /sys/kernel/debug || mount -t debugfs debugfs /sys/kernel/debug
        {debugfs} || umount -l /sys/kernel/debug"
    ));
}

/// The busy one's file, MiB: more than half of the memory.
const BUSY: u64 = 350;

/// `services N` has N services read 17 MiB each and end, half of them below a slice, where one lives on, and half right
/// below the root. Prints the busy one's file pages, on average over the second half, in bytes.
const SERVICES: &str = "
    services() {
        total=$1 n=0 sum=0 count=0
        while [ $n -lt $total ]; do
            at=slice/s$n; [ $((n % 2)) = 0 ] || at=s$n
            hole /data/s$n 17 && mkdir $C/$at && cache $at /data/s$n 17 || return 1
            within 5 rmdir $C/$at >/dev/null || return 1
            n=$((n + 1))
            [ $((n * 2)) -lt $total ] || { sum=$((sum + $(file_of slice/busy))); count=$((count + 1)); }
        done
        echo $((sum / count))
    }
";

fn busy_keeps(guest: &Guest, agent: bool) -> u64 {
    let agent = if agent { "start" } else { "true" };
    let kept = guest.number(&format!(
        "{SERVICES}
        inner slice && live slice/busy && hole /data/busy {BUSY} && cache slice/busy /data/busy {BUSY} || exit 1
        {agent} || exit 1
        reread slice/busy /data/busy 0.2
        sleep 2
        services 40"
    ));
    guest.ok("rest; [ ! -s /run/agent.pid ] || end TERM");
    kept
}

/// What services that have ended leave behind costs the busy one no more than it does without the agent, within a tenth.
#[test]
#[ignore = "minutes: make test-vm"]
fn cache_of_ended_services_takes_nothing_from_running_ones() {
    in_guest(small, |guest| {
        for (name, multi_gen, debugfs) in KERNELS {
            choose(guest, multi_gen, debugfs);
            let alone = busy_keeps(guest, false);
            guest.ok("clean");
            let with_agent = busy_keeps(guest, true);
            println!(
                "{name}: {} MiB of {BUSY} kept by the kernel alone, {} MiB with the agent",
                alone >> 20,
                with_agent >> 20
            );
            // A tenth less at most.
            assert!(with_agent * 10 >= alone * 9, "{name}\n{}", guest.log());
        }
        choose(guest, "y", true);
    });
}

/// `user` is delegated, and `other` reads more than half of the memory.
const DELEGATE: &str = "
    live other && hole /data/other 350
    mkdir $C/user && chown nobody $C/user $C/user/cgroup.procs $C/user/cgroup.threads $C/user/cgroup.subtree_control
    hole /data/user 350
    # Gives the controllers to the children of `user`, and makes the cgroup $1 there.
    child() { echo '+memory +io' >$C/user/cgroup.subtree_control && mkdir -p $C/user/$1; }
";

/// However the delegate arranges its cgroups, the neighbour of the same weight is entitled to half, and has it.
fn neighbour_has_half(guest: &Guest, name: &str, trick: &str) {
    let held = guest.number(&format!(
        "{DELEGATE} start && reread other /data/other 0.1 && {trick}
        sleep 5; sum=0; for i in $(seq 5); do sum=$((sum + $(file_of other))); sleep 1; done; echo $((sum / 5))"
    ));
    let status = guest.status();
    let entitled = tenant(&status, "other")["entitlement"]
        .as_u64()
        .unwrap_or(0);
    let capacity = status["memory"]["cache_divisible"]
        .as_u64()
        .unwrap_or(u64::MAX);
    println!(
        "{name}: {} MiB held, entitled to {} of {}",
        held >> 20,
        entitled >> 20,
        capacity >> 20
    );
    // What is outside has a third at most, if it grows.
    assert!(entitled * 3 >= capacity, "{name}: {status:#}");
    // Entitled to more while the delegate has just left a cgroup, it has not read all of that again.
    let half = entitled.min(capacity / 2);
    assert!(held * 10 >= half * 8, "{name}: {status:#}");
    guest.ok("rest; end TERM");
}

#[test]
#[ignore = "minutes: make test-vm"]
fn cache_charged_to_inner_or_removed_cgroups_counts() {
    let tricks = [
        (
            "read in the parent before it has a child",
            "cache user /data/user 350 && child c && live user/c",
        ),
        (
            "read and remove",
            "child keep && live user/keep && { (n=0; while :; do n=$((n + 1))
                mkdir $C/user/$n && cache user/$n /data/user 350; until rmdir $C/user/$n 2>/dev/null; do usleep 10000; done
            done) >/dev/null 2>&1 & echo $! >>/run/loads; }",
        ),
    ];
    in_guest(small, |guest| {
        for (kernel, multi_gen, debugfs) in KERNELS {
            for (name, trick) in tricks {
                choose(guest, multi_gen, debugfs);
                neighbour_has_half(guest, &format!("{kernel}, {name}"), trick);
            }
        }
        choose(guest, "y", true);
    });
}
