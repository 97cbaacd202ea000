//! What tenants use of their caches, known from their accesses, and divided before what they read once.

mod agent_guest;

use agent_guest::{Guest, in_guest, small, tenant};

/// MGLRU, and the classic LRU.
const KERNELS: [(&str, &str); 2] = [("MGLRU", "y"), ("classic LRU", "n")];

/// With nothing running: the switch rewrites the kernel's code, which an emulated guest does not always survive.
fn choose(guest: &Guest, multi_gen: &str) {
    guest.ok(&format!(
        "clean; sleep 1; [ $(($(cat /sys/kernel/mm/lru_gen/enabled) & 1)) = {} ] || echo {multi_gen} >/sys/kernel/mm/lru_gen/enabled",
        u8::from(multi_gen == "y")
    ));
}

/// The used set, MiB: more than half of the memory.
const HOT: u64 = 260;

/// `hot` reads a file again and again, `stream` one that fits nowhere. After a while: file pages of `hot`, and those of
/// them that came back from the disk within ten seconds, in bytes.
const WORK: &str = "
    live hot && live stream && hole /data/hot 260 && hole /data/stream 3000
    refaulted() { echo $(($(sed -n 's/^workingset_refault_file //p' $C/hot/memory.stat) * 4096)); }
    watch() {
        sum=0 before=$(refaulted)
        for i in $(seq 10); do sum=$((sum + $(file_of hot))); sleep 1; done
        held=$((sum / 10)) back=$(($(refaulted) - before))
    }
";

#[test]
fn a_used_set_loses_nothing_to_a_stream() {
    in_guest(small, |guest| {
        for (kernel, multi_gen) in KERNELS {
            for weight in [100, 800] {
                choose(guest, multi_gen);
                let found = guest.ok(&format!(
                    "{WORK} echo {weight} >$C/stream/io.weight
                    start && reread hot /data/hot 0.1 && sleep 4 && reread stream /data/stream 0.1
                    sleep 15; watch; echo $held $back"
                ));
                let numbers: Vec<u64> = found.split_whitespace().flat_map(str::parse).collect();
                let status = guest.status();
                let useful = |path| tenant(&status, path)["useful"].as_u64().unwrap_or(0) >> 20;
                println!(
                    "{kernel}, weights 100:{weight}: {} of {HOT} MiB held, {} MiB came back, useful {} and {}",
                    numbers[0] >> 20,
                    numbers[1] >> 20,
                    useful("hot"),
                    useful("stream")
                );
                assert!((HOT..HOT * 3 / 2).contains(&useful("hot")), "{status:#}");
                assert!(useful("stream") < 30, "{status:#}");
                assert_eq!(tenant(&status, "hot")["useful_by"], "accesses");
                assert!(numbers[0] >> 20 >= HOT * 97 / 100, "{status:#}");
                guest.ok("rest; end TERM");
            }
        }
        choose(guest, "y");
    });
}
