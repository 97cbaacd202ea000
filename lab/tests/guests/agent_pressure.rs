//! The agent in a guest under pressure: from which tenants it takes pages, that it takes no anonymous memory, and that
//! it follows cgroups that come and go.

use std::time::Instant;

use super::agent_guest::{Guest, in_guest, tenant};
use justitia_lab::vm::{DiskSpec, VmSpec};

/// The file of each of four tenants, MiB: together more than the memory.
const FILE: u64 = 260;

fn roomy() -> VmSpec {
    VmSpec {
        memory: 896 << 20,
        disks: vec![
            DiskSpec::ext4(2 << 30),
            // For swap.
            DiskSpec::of(None, 512 << 20),
        ],
        ..VmSpec::default()
    }
}

/// Two tenants with cold anonymous memory and more cache than they are entitled to, swap, and an outsider
/// that comes slowly, so that the agent takes before the kernel's own reclaim has to.
const ANONYMOUS: &str = "
    grep -q vdb /proc/swaps || { mkswap /dev/vdb >/dev/null && swapon /dev/vdb; } || exit 1
    for t in a b; do
        live $t && mkfifo /data/$t.fifo && hole /data/$t 280 || exit 1
        sleep 100000 <>/data/$t.fifo & echo $! >>/run/loads
        # Reads 40 MiB into its memory, cannot write them, and never looks at them again.
        sh -c 'echo $$ >\"$0/cgroup.procs\" && exec dd if=/dev/zero of=\"$1\" bs=40M count=1' $C/$t /data/$t.fifo >/dev/null 2>&1 &
    done
    holds() { [ $(awk '$1 == \"anon\" { print $2 }' $C/$1/memory.stat) -gt 40000000 ]; }
    within 30 holds a && within 30 holds b || exit 1
    echo 800 >$C/b/io.weight
";

fn swapped(guest: &Guest) -> u64 {
    guest.number("cat $C/a/memory.swap.current $C/b/memory.swap.current | awk '{ sum += $1 } END { print sum }'")
}

/// The agent takes file pages of `a` and `b` while an outsider comes. What was wrong, if anything: on a machine that is
/// held up the kernel's own reclaim may come before the agent, and that may swap.
fn only_file_pages_are_taken(guest: &Guest, multi_gen: &str) -> Result<(), String> {
    guest.choose_lru(multi_gen);
    guest.ok(ANONYMOUS);
    let before = guest.number("vmstat pswpout");
    // What was cached before the agent came would count as used for two minutes.
    let kernel =
        "awk '$1 ~ /^pgsteal_(kswapd|direct)$/ { sum += $2 } END { print sum }' /proc/vmstat";
    let kernel_before = guest.number(kernel);
    guest.ok("enough() { [ $(reclaimed) -gt 50000000 ]; }
        start && cache a /data/a 280 && cache b /data/b 280 && hole /data/outside 320 && seep /data/outside 320 0.1 enough");
    let status = guest.status();
    let reclaimed = tenant(&status, "a")["reclaimed"].as_u64().unwrap_or(0)
        + tenant(&status, "b")["reclaimed"].as_u64().unwrap_or(0);
    let written = guest.number("vmstat pswpout") - before;
    let out = swapped(guest);
    let seen = format!(
        "MGLRU {multi_gen}: {} MiB reclaimed by the agent, {} pages by the kernel itself, {written} pages \
         swapped out, {out} bytes of theirs",
        reclaimed >> 20,
        guest.number(kernel) - kernel_before
    );
    println!("{seen}");
    if reclaimed <= 32 << 20 || written > 0 || out > 0 {
        return Err(format!("{seen}\n{status:#}"));
    }
    Ok(())
}

#[test]
#[ignore = "minutes: make test-vm"]
fn no_anonymous_memory_is_reclaimed_by_the_agent() {
    in_guest(roomy, |guest| {
        for multi_gen in ["y", "n"] {
            // What the agent did, it would do each time.
            let tries = (0..3).map(|_| only_file_pages_are_taken(guest, multi_gen));
            let mut wrong = Vec::new();
            for tried in tries {
                let Err(seen) = tried else { break };
                wrong.push(seen);
            }
            assert!(wrong.len() < 3, "{}", wrong.join("\n"));
            guest.ok("holds() { [ $(awk '$1 == \"anon\" { print $2 }' $C/$1/memory.stat) -gt 40000000 ]; }; holds a && holds b && end TERM");
            // There was anonymous memory to be taken: without `swappiness=0` it goes, with it it stays.
            guest.ok("echo '400M swappiness=0' >$C/b/memory.reclaim 2>/dev/null; true");
            assert_eq!(swapped(guest), 0, "MGLRU {multi_gen}");
            guest.ok("echo 400M >$C/b/memory.reclaim 2>/dev/null; true");
            assert!(
                swapped(guest) > 0,
                "MGLRU {multi_gen}: nothing could be swapped out"
            );
        }
        guest.ok("clean; swapoff /dev/vdb");
    });
}

#[test]
#[ignore = "minutes: make test-vm"]
fn file_pages_after_pressure_are_ordered_by_weight() {
    in_guest(roomy, |guest| {
        for multi_gen in ["y", "n"] {
            guest.choose_lru(multi_gen);
            guest.ok(&format!(
                "w=100
            for t in w1 w2 w4 w8; do
                live $t && hole /data/$t {FILE} && echo $w >$C/$t/io.weight || exit 1
                w=$((w * 2))
            done
            hole /data/outside 400
            start
            for t in w1 w2 w4 w8; do reread $t /data/$t 0.2; done
            (while :; do seep /data/outside 400 0.05; done) >/dev/null 2>&1 &
            echo $! >>/run/loads"
            ));
            // What each keeps on average: a tenant that reads a file from its start goes up and down. However slow the machine,
            // it has five such windows to get there.
            let begin = Instant::now();
            let window = || -> Vec<u64> {
                guest
                    .ok("sleep 3; for i in $(seq 20); do usleep 500000; for t in w1 w2 w4 w8; do echo $t $(file_of $t); done; done |
                        awk '{ sum[$1] += $2 / 20 } END { for (t in sum) printf \"%s %d\\n\", t, sum[t] }' | sort | cut -d' ' -f2")
                    .lines()
                    .map(|line| line.parse().unwrap_or(0))
                    .collect()
            };
            let kept = std::iter::repeat_with(window)
                .take(5)
                .find(|kept| {
                    println!(
                        "MGLRU {multi_gen}: {kept:?} bytes kept after {:?}",
                        begin.elapsed()
                    );
                    assert_eq!(kept.len(), 4);
                    // The stock kernel leaves all the same. The multi-gen LRU also reclaims from tenants below their
                    // protection, from the heaviest most: that one may come down to the next.
                    let ordered = |apart: usize, of: u64, least: u64| {
                        kept.iter()
                            .zip(kept.iter().skip(apart))
                            .all(|(light, heavy)| heavy * of >= light * least)
                    };
                    if multi_gen == "y" {
                        ordered(1, 20, 19) && ordered(2, 5, 6) && ordered(3, 2, 3)
                    } else {
                        ordered(1, 20, 22) && ordered(3, 2, 4)
                    }
                })
                .unwrap_or_else(|| panic!("not in the order of the weights\n{}", guest.log()));
            // Not every tenant has all: there was something to divide.
            assert!(kept[0] < FILE << 19, "MGLRU {multi_gen}: {kept:?}");
            guest.ok("rest; end TERM");
        }
    });
}

/// A tenant of the least weight, `t`, and two that want all the memory. `stall` has `t` wait for memory of its
/// own nearly all the time (more anonymous memory than its `memory.high`), then lifts that: `t` reads a file that is
/// far more than its entitlement into its cache, while the pressure that the kernel reports needs seconds to fall. Says what
/// had been taken from it by then: before it waited much, it was treated like any tenant.
const STALL: &str = "
    full() { awk '$1 == \"full\" { sub(\"avg10=\", \"\", $2); print int($2) }' $C/t/memory.pressure; }
    stalled() { [ $(full) -ge 90 ]; }
    calm() { [ $(full) -lt 50 ]; }
    taken() { justitia status --json | tr -d ' \\n' | grep -o '\"path\":\"t\",.*' | grep -o '\"reclaimed\":[0-9]*' | head -1 | tr -dc 0-9; }
    some_taken() { [ $(taken) -gt 0 ]; }
    has_read() { [ $(cat $C/t/memory.current) -gt 48000000 ]; }
    stall() {
        echo 8M >$C/t/memory.high
        sh -c 'echo $$ >\"$0/cgroup.procs\" && while :; do dd if=/dev/zero of=/dev/null bs=48M count=1; done' $C/t >/dev/null 2>&1 &
        echo $! >/run/agent.hog
        within 90 stalled || return 1
        taken
        echo max >$C/t/memory.high
        kill $(cat /run/agent.hog)
    }
";

#[test]
#[ignore = "minutes: make test-vm"]
fn a_thrashing_tenant_is_not_reclaimed() {
    in_guest(roomy, |guest| {
        guest.choose_lru("y");
        guest.ok("
            live t && live big && hole /data/t 64 && hole /data/big 500 && hole /data/outside 400 || exit 1
            echo 1 >$C/t/io.weight && echo 10000 >$C/big/io.weight && start && reread big /data/big 0.3 && reread t /data/t 0
            (while :; do seep /data/outside 400 0.05; done) >/dev/null 2>&1 &
            echo $! >>/run/loads");
        // On a slow machine the pressure may have fallen before it has read enough that could be taken: then once more.
        let seen = (0..5).find_map(|_| {
            let before = guest.status()["agent_usage"]["reclaimed"].as_u64()?;
            let taken = guest.number(&format!(
                "{STALL} stall && {{ within 10 has_read >/dev/null || true; }} && sleep 1"
            ));
            let status = guest.status();
            let full = guest.number(&format!("{STALL} full"));
            let t = tenant(&status, "t");
            println!("memory pressure full avg10 {full}: {t}");
            let holds_more =
                t["usage"].as_u64() > t["entitlement"].as_u64().map(|e| e + (32 << 20));
            (full >= 60 && holds_more).then_some((before, taken, status))
        });
        let (before, taken, status) =
            seen.expect("a tenant that waits and holds what could be taken");
        let t = tenant(&status, "t");
        assert_eq!(t["reclaimed"], taken, "{t}");
        assert!(
            status["agent_usage"]["reclaimed"].as_u64() > Some(before),
            "nothing was taken from the others: {status:#}"
        );
        // When it has calmed down, it is treated like any tenant.
        guest.ok(&format!("{STALL} within 60 calm && within 30 some_taken"));
        guest.ok("rest; end TERM");
    });
}

/// A subtree that was delegated, of the least weight. Its owner has a cgroup `c` in `p` that holds 64 MiB of cache, keeps
/// that from the reclaim of a limit on `p`, and has a task in `c` run into that limit without end.
const TRICK: &str = "
    full() { awk '$1 == \"full\" { sub(\"avg10=\", \"\", $2); print int($2) }' $C/user/p/c/memory.pressure; }
    stalled() { [ $(full) -ge 75 ]; }
    taken() { justitia status --json | tr -d ' \\n' | grep -o '\"path\":\"user/p/c\",.*' | grep -o '\"reclaimed\":[0-9]*' | head -1 | tr -dc 0-9; }
    trick() {
        mkdir $C/user && echo '+memory +io' >$C/user/cgroup.subtree_control && echo 1 >$C/user/io.weight
        chown nobody $C/user $C/user/cgroup.procs $C/user/cgroup.threads $C/user/cgroup.subtree_control
        su -s /bin/sh nobody -c \"cd $C/user && mkdir p && echo +memory >p/cgroup.subtree_control && mkdir p/c && echo max >p/c/memory.min\"
        cache user/p/c /data/t 64
        # The kernel's own reclaim may take some: the limit follows.
        printf 'cd $C/user/p && while :; do echo $(($(cat memory.current) - 2000000)) >memory.high; usleep 300000; done' >/run/agent.trick
        su -s /bin/sh nobody -c \"C=$C; . /run/agent.trick\" >/dev/null 2>&1 &
        echo $! >>/run/loads
        sh -c 'echo $$ >\"$0/cgroup.procs\" && while :; do dd if=/dev/zero of=/dev/null bs=4M count=1; done' $C/user/p/c >/dev/null 2>&1 &
        echo $! >>/run/loads
    }
    # Its pressure, what was taken from it, and what it holds, from second to second.
    samples() { for i in $(seq 10); do echo $(full) $(taken) $(file_of user/p/c); sleep 1; done; }
";

/// Pressure from a limit that the tenant has set itself does not count: any tenant could make it.
#[test]
#[ignore = "minutes: make test-vm"]
fn a_tenant_that_causes_its_own_pressure_is_reclaimed() {
    in_guest(roomy, |guest| {
        guest.choose_lru("y");
        // What it has when the agent first sees it would count as used for two minutes.
        guest.ok(
            "live big && hole /data/big 500 && hole /data/outside 400 && hole /data/t 64 || exit 1
            echo 10000 >$C/big/io.weight && start",
        );
        guest.ok(&format!(
            "{TRICK} trick; within 90 stalled || {{ full; exit 1; }}"
        ));
        guest.ok("reread big /data/big 0.3
            (while :; do seep /data/outside 400 0.05; done) >/dev/null 2>&1 &
            echo $! >>/run/loads");
        let mut seen: Vec<Vec<u64>> = Vec::new();
        // For two minutes what it had at its first sample counts as used.
        for _ in 0..15 {
            let samples = guest.ok(&format!("{TRICK} samples"));
            println!("full avg10, taken, held:\n{samples}");
            let numbers = |line: &str| line.split(' ').map(|word| word.parse().unwrap()).collect();
            seen.extend(samples.lines().map(numbers));
            // Taken in seconds that began and ended with the pressure that would exempt another tenant.
            let pairs = seen.iter().zip(seen.iter().skip(1));
            let stalled = pairs.filter(|(before, after)| before[0] >= 60 && after[0] >= 60);
            let taken: u64 = stalled.map(|(before, after)| after[1] - before[1]).sum();
            if taken > 16 << 20 {
                return drop(guest.ok("rest; end TERM"));
            }
        }
        panic!("nothing was taken from it:\n{:#}", guest.status());
    });
}

#[test]
#[ignore = "minutes: make test-vm"]
fn a_thousand_created_and_removed_cgroups_leak_nothing() {
    in_guest(roomy, |guest| {
        guest.choose_lru("y");
        guest.ok("
        live stays && hole /data/stays 500 && hole /data/small 4
        start && reread stays /data/stays 0.1
        (while :; do dd if=/dev/zero of=/data/written bs=1M count=64 conv=fsync 2>/dev/null; done) >/dev/null 2>&1 &
        echo $! >>/run/loads
        sleep 3
    ");
        let count = "ls /proc/$(cat /run/agent.pid)/fd | wc -l";
        let fds = || guest.number(count);
        let resident = || {
            guest.number("awk '$1 == \"VmRSS:\" { print $2 }' /proc/$(cat /run/agent.pid)/status")
        };
        let (fds_before, resident_before) = (fds(), resident());
        let most = fds_before + 3;
        // Ten times a hundred: some hold pages, some have children, one in ten is there when the next hundred come.
        guest.ok("
        for round in 0 1 2 3 4 5 6 7 8 9; do
            names=
            for n in 0 1 2 3 4 5 6 7 8 9; do
                for m in 0 1 2 3 4 5 6 7 8 9; do names=\"$names $C/r$round-$n$m\"; done
            done
            mkdir $names || exit 1
            for n in 0 1 2 3 4; do cache r$round-0$n /data/small 4 || exit 1; done
            inner r$round-11 && mkdir $C/r$round-11/child && rmdir $C/r$round-11/child || exit 1
            [ $((round % 3)) != 0 ] || sleep 1.2
            echo $names | xargs -n 10 timeout 5 rmdir || { echo \"rmdir: $?\"; exit 1; }
        done
    ");
        guest.ok("settled() { [ $(justitia status --json | grep -c '\"path\": \"r[0-9]') = 0 ]; }; within 20 settled; sleep 1");
        // Some are open for a moment only: while memory is reclaimed, while the status is asked for.
        guest.ok(&format!(
            "few() {{ [ $({count}) -le {most} ]; }}; within 20 few >/dev/null || true"
        ));
        let (fds_after, resident_after) = (fds(), resident());
        println!(
            "descriptors {fds_before} -> {fds_after}, resident {resident_before} -> {resident_after} KiB"
        );
        assert!(
            fds_after <= most,
            "{fds_before} descriptors became {fds_after}"
        );
        assert!(
            resident_after <= resident_before + (8 << 10),
            "{resident_before} KiB became {resident_after}"
        );
        let status = guest.status();
        assert_eq!(status["agent_usage"]["errors"], 0);
        let bad = guest.ok("grep -E ' (WARN|ERROR) ' $LOG || true");
        assert_eq!(bad, "");
        assert_eq!(guest.ok("rest; end TERM").trim(), "0");
    });
}
