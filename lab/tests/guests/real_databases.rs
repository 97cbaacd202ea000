//! Real stores under memory pressure: DoubleDecker's Table 4 (5.2.2), an eighth of its size.
//!
//! A stock Debian guest runs Redis, MariaDB and PostgreSQL of Debian and a web server's load in containers, each with its
//! client. What its page cache evicts goes to the host's cache. Everything else comes from one slow disk, which also has
//! the swap.

use super::databases::host::Host;
use super::databases::measure::{Window, prepare, run, window};
use super::databases::scale::{LIMITS_MIB, RECLAIM};
use super::databases::table::print;
use super::retry::retry_after_a_crash;

/// Seconds until a policy has settled, until a new partition has, and of a window.
const WARM_UP: u32 = 90;
const SETTLE: u32 = 15;
const WINDOW: u32 = 30;

/// How memory is provisioned.
struct Policy {
    name: &'static str,
    /// The containers have the paper's limits in the VM.
    limits: bool,
    /// The partitions of the cache that are tried: weights of PostgreSQL and of the web server. None: without a cache.
    partitions: &'static [[u32; 2]],
}

const PARTITIONS: &[[u32; 2]] = &[[60, 40], [30, 70]];

const STOCK: Policy = Policy {
    name: "no cache",
    limits: false,
    partitions: &[],
};
const CENTRAL: Policy = Policy {
    name: "Morai++",
    limits: false,
    partitions: PARTITIONS,
};
const DOUBLE_DECKER: Policy = Policy {
    name: "DoubleDecker",
    limits: true,
    partitions: PARTITIONS,
};

/// A guest of this policy whose stores are filled and whose files have been read.
fn filled(policy: &Policy) -> Host {
    let host = Host::boot();
    prepare(&host);
    run(&host, RECLAIM);
    if policy.limits {
        for (name, mib) in LIMITS_MIB {
            run(&host, &format!("echo {mib}M >$C/{name}/memory.max"));
        }
    }
    if !policy.partitions.is_empty() {
        run(&host, "guest");
    }
    run(
        &host,
        "fill_redis && fill_mariadb && fill_postgres && fill_web",
    );
    println!("{}: warm: {:?}", policy.name, window(&host, WARM_UP));
    host
}

/// One policy in a fresh guest; of its partitions, the one with the most operations.
fn measured(policy: &Policy) -> Window {
    let name = policy.name;
    let host = filled(policy);
    if policy.partitions.is_empty() {
        return window(&host, WINDOW);
    }
    let mut all: Vec<Window> = Vec::new();
    for [postgres, web] in policy.partitions {
        run(
            &host,
            &format!("echo {postgres} >$C/postgres/io.weight; echo {web} >$C/web/io.weight"),
        );
        window(&host, SETTLE);
        let found = window(&host, WINDOW);
        println!("{name}, {postgres}:{web}: {found:?}");
        all.push(found);
    }
    let ports = &host.stats()["ports"];
    println!(
        "{name}: {ports:#}\n{}",
        run(&host, "tail -n 1 /run/guest.json")
    );
    assert_eq!(ports[0]["verdicts"]["mismatch"], 0);
    assert!(all.iter().all(|window| window.hits > 0.0), "{all:?}");
    all.sort_by(|a, b| a.aggregate().total_cmp(&b.aggregate()));
    all.pop().unwrap()
}

/// Otherwise a policy that saves the disk requests shows nothing.
#[track_caller]
fn waits_for_the_disk(policy: &str, window: &Window) {
    let percent = |part: f64| 100.0 * part;
    assert!(
        window.disk >= 0.4 && window.processors <= 0.9,
        "{policy}: expected a disk that is busy for 40 % of the time at least and processors for 90 % at most, found {:.0} and {:.0} %: this host is too slow, or too busy, for the policies to be compared",
        percent(window.disk),
        percent(window.processors)
    );
}

#[test]
#[ignore = "a quarter of an hour in VMs: make test-databases"]
fn limits_in_the_guest_keep_what_only_memory_can_serve() {
    retry_after_a_crash(|| {
        let stock = measured(&STOCK);
        let central = measured(&CENTRAL);
        let double_decker = measured(&DOUBLE_DECKER);
        print(&[
            (STOCK.name, &stock),
            (CENTRAL.name, &central),
            (DOUBLE_DECKER.name, &double_decker),
        ]);
        waits_for_the_disk(STOCK.name, &stock);
        waits_for_the_disk(CENTRAL.name, &central);
        // The paper: 2.7 and 860 times as much.
        for (name, times) in [("mariadb", 1.3), ("redis", 2.0)] {
            let [with, without] =
                [&double_decker, &central].map(|window| window.of(name).throughput);
            assert!(
                with >= times * without,
                "{name}: {with} with limits, {without} without"
            );
        }
    });
}
