//! Caps of unmapped page cache and of slab in a guest: that they hold, and that the machine's knob comes back.

use super::agent_guest::{Guest, in_guest, small};

/// Of unmapped page cache, percent, and what that is of the guest's memory.
const CAP: &str = "5";
/// How far a sample may be above the cap, MiB.
const NEAR: u64 = 16;

/// Unmapped page cache, and the memory, MiB.
const FUNCTIONS: &str = "
    unmapped() { awk '{ v[$1] = $2 } END { n = v[\"nr_inactive_file\"] + v[\"nr_active_file\"] - v[\"nr_mapped\"]; print int((n > 0 ? n : 0) / 256) }' /proc/vmstat; }
    total() { awk '$1 == \"MemTotal:\" { print int($2 / 1024) }' /proc/meminfo; }
    slab() { awk '$1 == \"slab_reclaimable\" { print int($2 / 1048576) }' $C/s/memory.stat; }
    pressure() { cat /proc/sys/vm/vfs_cache_pressure; }
    configure() { mkdir -p /etc/justitia && echo \"$1\" >/etc/justitia/justitia.toml; }
    is() { [ \"$($1)\" = $2 ]; }
    above() { [ \"$($1)\" -gt $2 ]; }
    below() { [ \"$($1)\" -lt $2 ]; }
";

fn ok(guest: &Guest, script: &str) -> String {
    guest.ok(&format!("{FUNCTIONS}\n{script}"))
}

fn number(guest: &Guest, what: &str) -> u64 {
    guest.number(&format!("{FUNCTIONS}\n{what}"))
}

/// Of a hundred samples those that are no more than so much above the cap, while a tenant reads what memory holds without
/// the cap.
fn held(guest: &Guest, most: u64) -> usize {
    let samples = ok(
        guest,
        "for i in $(seq 100); do usleep 100000; unmapped; done",
    );
    let samples: Vec<u64> = samples.lines().map(|line| line.parse().unwrap()).collect();
    println!("{most} MiB and less are near the cap: {samples:?}");
    samples.iter().filter(|mib| **mib <= most).count()
}

#[test]
#[ignore = "minutes: make test-vm"]
fn unmapped_page_cache_stays_near_its_cap_while_a_tenant_reads() {
    in_guest(small, |guest| {
        for multi_gen in ["y", "n"] {
            ok(
                guest,
                &format!(
                    "clean; sleep 1; echo {multi_gen} >/sys/kernel/mm/lru_gen/enabled
                    live t && hole /data/read 400 && reread t /data/read 0 && within 60 above unmapped 300"
                ),
            );
            ok(
                guest,
                &format!("configure '[unmapped]\nmax_ratio = {CAP}' && start"),
            );
            let cap = number(guest, "total") * CAP.parse::<u64>().unwrap() / 100;
            // However slow the machine, it has five such windows to get there.
            let found = (0..5).map(|_| held(guest, cap + NEAR)).find(|n| *n >= 95);
            assert!(
                found.is_some(),
                "MGLRU {multi_gen}, cap {cap} MiB\n{}",
                guest.log()
            );
            let free = number(
                guest,
                "awk '$1 == \"MemFree:\" { print int($2 / 1024) }' /proc/meminfo",
            );
            assert!(free > 200, "{free} MiB are free");
            ok(guest, "rest; end TERM");
        }
    });
}

#[test]
#[ignore = "minutes: make test-vm"]
fn slab_above_its_cap_shrinks_and_the_machines_setting_comes_back() {
    in_guest(small, |guest| {
        let cap = number(guest, "total") * 2 / 100;
        ok(
            guest,
            &format!(
                "live s && hole /data/read 64 && mkdir /data/names && cache s /data/read 64
                sh -c 'echo $$ >\"$0/cgroup.procs\" && exec justitia-load names --dir /data/names --rate 5000 --duration 30 --interval 0' $C/s >/dev/null 2>&1
                above slab {} && is pressure 100 && configure '[slab]\nmax_ratio = 2' && start",
                2 * cap
            ),
        );
        ok(
            guest,
            &format!(
                "within 60 is pressure 10000 && within 100 below slab {cap} && within 60 is pressure 100"
            ),
        );
        // Killed while it is raised.
        ok(
            guest,
            "sh -c 'echo $$ >\"$0/cgroup.procs\" && exec justitia-load names --dir /data/names --rate 5000 --duration 60 --interval 0' $C/s >/dev/null 2>&1 &
            echo $! >>/run/loads
            within 60 is pressure 10000 && end KILL && is pressure 10000 && justitia reset && is pressure 100; rest",
        );
    });
}
