//! An application's memory, split between its container in the guest and the host's cache: DoubleDecker's Fig. 5 and Table 1
//! (2.3.1), an eighth of its size.
//!
//! One store at a time, alone with its client in a stock Debian guest. What its container may use in the guest and what the
//! cache holds add up to the same at each split.

use super::databases::host::Host;
use super::databases::measure::{MIB, number, pool, prepare, run};
use super::databases::scale::{RECLAIM, SPLIT_MIB};
use super::databases::slow_disk::REQUEST;
use super::retry::retry_after_a_crash;

/// Seconds until a split has settled, and of a window.
const SETTLE: u32 = 30;
const WINDOW: u32 = 30;

/// MiB in the guest: the paper's 2, 1.5, 1, 0.5 and 0.25 GB of 2.
const IN_GUEST: [u64; 5] = [256, 192, 128, 64, 32];

/// The stores, whether the paper's swap at an equal split, and its MB of swap and of cache there.
const STORES: [(&str, bool, u32, u32); 4] = [
    ("web", false, 0, 1023),
    ("redis", true, 996, 18),
    ("mariadb", true, 879, 34),
    ("postgres", false, 0, 1023),
];

/// One store at one split.
#[derive(Clone, Copy, Debug)]
struct Found {
    in_guest: u64,
    /// Operations a second, as its client counts them.
    throughput: f64,
    /// MiB of anonymous memory, of swap, and of the host's cache, at the end.
    anonymous: f64,
    swapped: f64,
    cache: f64,
    /// Parts of the window in which the disk was busy.
    disk: f64,
}

fn at(host: &Host, name: &str, in_guest: u64) -> Found {
    host.resize(SPLIT_MIB - in_guest);
    run(
        host,
        &format!("echo {in_guest}M >$C/{name}/memory.max; client_{name} {SETTLE} >/dev/null"),
    );
    let requests = host.disk.requests();
    let text = run(
        host,
        &format!(
            "client_{name} {WINDOW}; sed -n 's/^anon //p' $C/{name}/memory.stat; cat $C/{name}/memory.swap.current"
        ),
    );
    let busy = number(host.disk.requests() - requests) * REQUEST.as_secs_f64();
    let [client, anonymous, swapped] = text.lines().collect::<Vec<_>>()[..] else {
        panic!("expected three lines, found {text}");
    };
    let throughput = client.strip_prefix(name).map(str::trim);
    let parse = |text: &str| -> f64 { text.parse().unwrap_or_else(|_| panic!("{text}")) };
    Found {
        in_guest,
        throughput: throughput.map_or_else(|| panic!("{text}"), parse),
        anonymous: parse(anonymous) / MIB,
        swapped: parse(swapped) / MIB,
        cache: pool(&host.stats(), name) / MIB,
        disk: busy / f64::from(WINDOW),
    }
}

/// All splits of one store, in a guest of its own.
fn splits(name: &str) -> Vec<Found> {
    let host = Host::boot();
    prepare(&host);
    run(&host, &format!("{}\nguest && fill_{name}", RECLAIM));
    let one = |in_guest| {
        let found = at(&host, name, in_guest);
        println!("{name}: {found:?}");
        found
    };
    IN_GUEST.map(one).to_vec()
}

fn print(stores: &[(&str, Vec<Found>)]) {
    println!(
        "| store | MiB in the guest : in the cache | operations/s | of all in the guest | anonymous | swap | cache | disk busy |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (name, splits) in stores {
        for found in splits {
            let Found {
                in_guest,
                throughput,
                anonymous,
                swapped,
                cache,
                disk,
            } = found;
            println!(
                "| {name} | {in_guest} : {} | {throughput:.0} | {:.0} % | {anonymous:.0} | {swapped:.0} | {cache:.0} | {:.0} % |",
                SPLIT_MIB - in_guest,
                100.0 * throughput / splits[0].throughput,
                100.0 * disk,
            );
        }
    }
}

#[test]
#[ignore = "twenty minutes in VMs: make test-databases"]
fn a_cache_of_the_host_has_the_place_of_files_and_not_of_anonymous_memory() {
    retry_after_a_crash(|| {
        let stores = STORES.map(|(name, ..)| (name, splits(name)));
        print(&stores);
        for (paper, (_, splits)) in STORES.iter().zip(&stores) {
            check(*paper, splits);
        }
    });
}

/// Table 1: what swaps at an equal split, and what uses the cache there.
#[track_caller]
fn check((name, swaps, swap, cache): (&str, bool, u32, u32), splits: &[Found]) {
    let equal = splits.iter().find(|found| 2 * found.in_guest == SPLIT_MIB);
    let equal = equal.unwrap();
    println!(
        "{name} at an equal split: {:.0} MiB of swap, {:.0} of cache; an eighth of the paper's: {}, {}",
        equal.swapped,
        equal.cache,
        swap / 8,
        cache / 8
    );
    let half = f64::from(u32::try_from(SPLIT_MIB / 2).unwrap());
    if swaps {
        assert!(equal.swapped >= 0.5 * half, "{name}: {equal:?}");
        assert!(equal.throughput < splits[0].throughput, "{name}");
    } else {
        assert!(equal.swapped <= 0.1 * half, "{name}: {equal:?}");
        // A store that reads little evicts little: the cache was not full yet.
        assert!(equal.cache >= 0.2 * half, "{name}: {equal:?}");
    }
}
