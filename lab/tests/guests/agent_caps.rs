//! The cap of unmapped page cache in a guest: that it holds.

use super::agent_guest::{Guest, in_guest, small};

/// Of unmapped page cache, percent, and what that is of the guest's memory.
const CAP: &str = "5";
/// How far a sample may be above the cap, MiB.
const NEAR: u64 = 16;

/// Unmapped page cache, and the memory, MiB.
const FUNCTIONS: &str = "
    unmapped() { awk '{ v[$1] = $2 } END { n = v[\"nr_inactive_file\"] + v[\"nr_active_file\"] - v[\"nr_mapped\"]; print int((n > 0 ? n : 0) / 256) }' /proc/vmstat; }
    total() { awk '$1 == \"MemTotal:\" { print int($2 / 1024) }' /proc/meminfo; }
    configure() { mkdir -p /etc/justitia && echo \"$1\" >/etc/justitia/justitia.toml; }
    above() { [ \"$($1)\" -gt $2 ]; }
";

fn ok(guest: &Guest, script: &str) -> String {
    guest.ok(&format!("{FUNCTIONS}\n{script}"))
}

fn number(guest: &Guest, what: &str) -> u64 {
    guest.number(&format!("{FUNCTIONS}\n{what}"))
}

/// Of a hundred samples those that are no more than `most` above the cap, while a tenant reads what memory holds
/// without the cap.
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
            guest.choose_lru(multi_gen);
            ok(
                guest,
                "live t && hole /data/read 400 && reread t /data/read 0 && within 60 above unmapped 300",
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
