//! What tenants use of their caches, known from their accesses, and divided before what they read once.

use super::agent_guest::{Guest, in_guest, small, tenant};

/// MGLRU, and the classic LRU.
const KERNELS: [(&str, &str); 2] = [("MGLRU", "y"), ("classic LRU", "n")];

/// The used set, MiB: more than half of the memory.
const HOT: u64 = 260;

/// The test's two tenants read a file of 300 MiB each at random, more than there is room for both.
const RANDOM: &str = "
    random() {
        live $1 && dd if=/dev/zero of=/data/$1 bs=1M count=300 2>/dev/null
        sh -c 'echo $$ >\"$0/cgroup.procs\" && exec fio --name=$1 --filename=/data/$1 --size=300m --rw=randread --bs=64k \
            --invalidate=0 --norandommap --fallocate=none --thread --rate_iops=700 --time_based --runtime=1000' $C/$1 $1 >/dev/null 2>&1 &
        echo $! >>/run/loads
    }
";

/// `hot` reads a file again and again, `stream` one that fits nowhere. After a while: file pages of `hot`, and those of
/// them that came back from the disk within ten seconds, in bytes.
const WORK: &str = "
    refaulted() { echo $(($(sed -n 's/^workingset_refault_file //p' $C/hot/memory.stat) * 4096)); }
    watch() {
        sum=0 before=$(refaulted)
        for i in $(seq 10); do sum=$((sum + $(file_of hot))); sleep 1; done
        held=$((sum / 10)) back=$(($(refaulted) - before))
    }
";

#[test]
#[ignore = "minutes: make test-vm"]
fn a_working_set_keeps_its_pages_beside_a_stream() {
    in_guest(small, |guest| {
        guest.choose_lru("y");
        keeps_its_pages(guest, "MGLRU", 800);
    });
}

#[test]
#[ignore = "minutes: make test-vm"]
fn a_working_set_keeps_its_pages_with_any_lru_and_weight() {
    in_guest(small, |guest| {
        for (kernel, multi_gen) in KERNELS {
            for weight in [100, 800] {
                guest.choose_lru(multi_gen);
                keeps_its_pages(guest, kernel, weight);
            }
        }
        guest.choose_lru("y");
    });
}

/// `hot` beside a stream of this weight; its own is 100.
fn keeps_its_pages(guest: &Guest, kernel: &str, weight: u32) {
    guest.ok(&format!(
        "live hot && live stream && hole /data/hot 260 && hole /data/stream 3000
        echo {weight} >$C/stream/io.weight
        start && reread hot /data/hot 0.1"
    ));
    wait_until(guest, 300, || is_known(guest));
    let found = guest.ok(&format!(
        "{WORK} reread stream /data/stream 0.1; sleep 15; watch; echo $held $back"
    ));
    let numbers: Vec<u64> = found.split_whitespace().flat_map(str::parse).collect();
    let status = guest.status();
    let working_set = |path| tenant(&status, path)["working_set"].as_u64().unwrap_or(0) >> 20;
    println!(
        "{kernel}, weights 100:{weight}: {} of {HOT} MiB held, {} MiB came back, working sets {} and {}",
        numbers[0] >> 20,
        numbers[1] >> 20,
        working_set("hot"),
        working_set("stream")
    );
    assert!(
        (HOT..HOT * 3 / 2).contains(&working_set("hot")),
        "{status:#}"
    );
    assert!(working_set("stream") < 30, "{status:#}");
    assert_eq!(tenant(&status, "hot")["evidence"], "accesses");
    assert!(numbers[0] >> 20 >= HOT * 97 / 100, "{status:#}");
    guest.ok("rest; end TERM");
}

/// Bytes read through the page cache and bytes that the disk had to deliver for them, so far.
fn read_and_filled(guest: &Guest, path: &str) -> [u64; 2] {
    let status = guest.status();
    let app = &tenant(&status, path)["app"];
    ["cache_read_bytes", "cache_miss_bytes"].map(|name| app[name].as_u64().unwrap_or(0))
}

/// Waits until `is_so`, asking each second, for `seconds` at most.
fn wait_until(guest: &Guest, seconds: u32, is_so: impl Fn() -> bool) {
    assert!(
        guest.comes(seconds, is_so),
        "it did not come to pass: {:#}",
        guest.status()
    );
}

/// Whether the working set of `hot` is known. How long that takes depends on the guest's speed: the agent reads the samples
/// as often as its CPU budget allows.
fn is_known(guest: &Guest) -> bool {
    let status = guest.status();
    let working_set = tenant(&status, "hot")["working_set"].as_u64();
    working_set.unwrap_or(0) >> 20 >= HOT
}

/// Whether both tenants have read their files `times` times since the probes were attached.
fn have_read(guest: &Guest, times: u64) -> bool {
    let read = ["a", "b"].map(|path| read_and_filled(guest, path)[0] >> 20);
    read.iter().all(|read| *read >= times * 300)
}

/// Whether both tenants hold what they are entitled to and use, give or take a thirtieth: forecasts are of that.
fn have_their_part(guest: &Guest) -> bool {
    let status = guest.status();
    ["a", "b"].iter().all(|path| {
        let of = |name: &str| tenant(&status, path)[name].as_u64().unwrap_or(0) >> 20;
        let part = of("entitlement").min(300);
        of("usage").abs_diff(part) <= part / 30
    })
}

/// Gives tenants `seconds` at most to get there. On a slow guest they come near it and go on moving.
fn settle(guest: &Guest, seconds: u32) {
    let _ = guest.comes(seconds, || have_their_part(guest));
}

/// The part of what `path` reads in `seconds` that comes from the disk.
fn missed(guest: &Guest, path: &str, seconds: u32) -> f64 {
    let before = read_and_filled(guest, path);
    guest.ok(&format!("sleep {seconds}"));
    let after = read_and_filled(guest, path);
    let float = justitia_share::num::to_f64;
    float(after[1] - before[1]) / float((after[0] - before[0]).max(1))
}

#[test]
#[ignore = "minutes: make test-vm"]
fn whatif_predicts_the_misses_at_another_weight() {
    in_guest(small, |guest| {
        guest.choose_lru("y");
        guest.ok(&format!("{RANDOM} random a && random b && start"));
        wait_until(guest, 300, || have_read(guest, 12));
        settle(guest, 60);
        let predictions = [0; 3].map(|_| {
            guest.ok("sleep 5");
            let prediction = guest.ok("justitia whatif a --weight 300 --json");
            serde_json::from_str::<serde_json::Value>(&prediction).unwrap_or_default()
        });
        println!(
            "{}",
            guest.ok("justitia curve a; justitia whatif a --weight 300")
        );
        println!("{}", guest.ok("justitia explain b | head -20"));
        let foretold = |path: &str, then: usize| {
            let all = predictions.iter().filter_map(|one| one.as_array());
            let of = all.flatten().filter(|one| one["path"] == path);
            let found: Vec<f64> = of.filter_map(|one| one["misses"][then].as_f64()).collect();
            assert_eq!(found.len(), 3, "{path}: {predictions:?}");
            found.iter().sum::<f64>() / 3.0
        };
        let now = ["a", "b"].map(|path| missed(guest, path, 20));
        guest.ok("echo 300 >$C/a/io.weight && sleep 25");
        settle(guest, 60);
        let then = ["a", "b"].map(|path| missed(guest, path, 20));
        for (at, path) in ["a", "b"].into_iter().enumerate() {
            for (name, found, then) in [("now", now[at], 0), ("then", then[at], 1)] {
                let foretold = foretold(path, then);
                println!("{path} {name}: {found:.3} missed, {foretold:.3} foretold");
                // 0.05 is promised. What is measured varies by 0.02 itself: tenants give back in steps.
                assert!((found - foretold).abs() <= 0.07, "{:#}", guest.status());
            }
        }
    });
}
