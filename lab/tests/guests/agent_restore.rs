//! The agent in a guest: whatever ends it, every knob returns to what stood before.

use super::agent_guest::{Guest, in_guest, paths, small};

/// So often is the agent killed.
const KILLS: usize = 52;

/// Two levels of tenants, some with a protection of their operator's, and pressure from outside them. The guest's
/// kernel does not tell its types, so that the agent works without probes: attaching and detaching them takes
/// seconds each time.
const LOADED: &str = "
    grep -q btf/vmlinux /proc/mounts || mount -o bind /dev/null /sys/kernel/btf/vmlinux || exit 1
    inner slice && inner slice/deep
    for t in big1 big2 slice/big3 slice/deep/big4; do
        live $t && hole /data/$(basename $t) 160
    done
    echo 100 >$C/big1/io.weight && echo 800 >$C/slice/io.weight
    for n in 1 2 3 4 5 6; do live slice/t$n && hole /data/t$n 6 && reread slice/t$n /data/t$n 3; done
    live own1 && live slice/own2 && hole /data/own 8
    cache own1 /data/own 8
    echo 20M >$C/own1/memory.low && echo 4M >$C/slice/own2/memory.low
    lows >/run/before
    reread big1 /data/big1 0.5
    reread slice/big3 /data/big3 0.7
    reread slice/deep/big4 /data/big4 0.9
    hole /data/outside 300
    (while :; do seep /data/outside 300 0.05; echo 1 >/proc/sys/vm/drop_caches; done) >/dev/null 2>&1 &
    echo $! >>/run/loads
";

#[test]
#[ignore = "minutes: make test-vm"]
fn after_fifty_kills_every_knob_is_restored() {
    in_guest(small, |guest| {
        guest.ok(LOADED);
        guest.ok("start");
        assert!(
            guest.status()["app_io_unavailable"]
                .as_str()
                .is_some_and(|why| !why.is_empty()),
            "without probes the agent goes on and says why"
        );
        guest.ok("end TERM");
        // A moment up to well into the reclaim, anew each time.
        let moments: Vec<String> = std::iter::repeat_with(|| fastrand::u32(20_000..1_600_000))
            .take(KILLS)
            .map(|us| us.to_string())
            .collect();
        println!("killed after (µs): {}", moments.join(" "));
        let (first, second) = moments.split_at(KILLS / 2);
        let mut written = 0;
        for part in [first, second] {
            // Every second time `reset` restores, the other times the next start does. What a start failed to
            // restore would count as external from then on, and still be set after the reset.
            written += guest.number(&format!(
                "export JUSTITIA_LOG=debug
            writing() {{ [ \"$(wc -l </run/justitia/ledger)\" -gt 1 ]; }}
            n=0 written=0
            for moment in {}; do
                n=$((n + 1))
                launch
                # Half of them from the start of the process, half from its first write.
                if [ $((n / 2 % 2)) = 0 ]; then
                    within 60 writing || exit 1
                    moment=$((moment / 2))
                fi
                usleep $moment
                end 9 >/dev/null
                lows >/run/after
                cmp -s /run/before /run/after || written=$((written + 1))
                [ $((n % 2)) = 0 ] || continue
                justitia reset >/run/reset.out || {{ cat /run/reset.out; exit 1; }}
                lows >/run/after
                if ! cmp -s /run/before /run/after; then
                    echo \"after kill $n:\"; diff /run/before /run/after; cat /run/reset.out; exit 1
                fi
                [ ! -e /run/justitia/ledger ] || {{ echo 'the journal was left'; exit 1; }}
            done
            echo $written",
                part.join(" ")
            ));
        }
        let reclaimed = guest.number("grep -c 'reclaim tenant=' $LOG");
        println!("{written} of {KILLS} kills left knobs of ours; {reclaimed} reclaim orders");
        assert!(
            written >= 15,
            "only {written} of {KILLS} kills came after the first write: the test says little"
        );
        assert!(
            reclaimed > 0,
            "nothing was reclaimed meanwhile: the test says little"
        );
    });
}

/// What stands after a kill is called a killed agent's, and nothing is changed by that.
const TOLD: &str = "
    lows >/run/left
    justitia reset --dry-run >/run/dry || { cat /run/dry; exit 1; }
    grep -q '^big1 memory.low would be 0 again' /run/dry || { cat /run/dry; exit 1; }
    justitia explain big1 >/run/explained 2>&1 || { cat /run/explained; exit 1; }
    grep -q 'left by an agent that was killed; before: 0' /run/explained || { cat /run/explained; exit 1; }
    lows >/run/after && diff /run/left /run/after || exit 1
";

#[test]
fn reset_restores_after_a_crash_and_the_agent_after_a_stop_signal() {
    in_guest(small, |guest| {
        guest.ok(LOADED);
        // (Of the first SIGSEGV that comes from elsewhere, Rust's runtime expects that it comes again.)
        for (signal, status) in [("SEGV", 139), ("ABRT", 134)] {
            let ended = guest.ok(&format!(
            "start && within 20 protected big1 && kill -{signal} $(cat /run/agent.pid) && usleep 300000
            [ -s /run/agent.code ] && cat /run/agent.code || end {signal}
            {TOLD}
            justitia reset >/dev/null && lows >/run/after && diff /run/before /run/after"
        ));
            assert_eq!(ended.trim(), status.to_string(), "{signal}");
        }
        for signal in ["TERM", "INT"] {
            let ended = guest.ok(&format!(
            "start && within 20 protected big1 && within 20 protected slice && end {signal} && lows >/run/after && diff /run/before /run/after && test ! -e /run/justitia/ledger"
        ));
            assert_eq!(ended.trim(), "0", "{signal}");
        }
    });
}

/// A killed agent's journal, and the knobs that it names.
const KILLED: &str = "
    for n in 1 2 3 4 5 6; do live t$n && hole /data/t$n 4 && cache t$n /data/t$n 4; done
    lows >/run/before
    start && for n in 1 2 3 4 5 6; do within 10 protected t$n; done
    end KILL >/dev/null
    lows >/run/killed
    ! cmp -s /run/before /run/killed
    cp /run/justitia/ledger /run/ledger.kept
";

#[test]
#[ignore = "minutes: make test-vm"]
fn a_corrupt_journal_is_reported_by_line_and_nothing_is_written() {
    in_guest(small, |guest| {
        guest.ok(KILLED);
        let lines = guest.number("wc -l </run/ledger.kept");
        assert!(lines >= 7, "{lines} lines");
        let damages = [
            ("cut within a line", "head -c -9 /run/ledger.kept", lines),
            (
                "a byte changed",
                "sed '3s/memory-low/memory-1ow/' /run/ledger.kept",
                3,
            ),
            (
                "a line of something else",
                "sed '2s/.*/hello/' /run/ledger.kept",
                2,
            ),
            ("its first line lost", "tail -n +2 /run/ledger.kept", 1),
            (
                "bytes that are no text",
                "sed '4s/^/\\xff\\xfe/' /run/ledger.kept",
                4,
            ),
            ("emptied", "true", 1),
            ("zeroes", "head -c 500 /dev/zero", 1),
        ];
        for (what, damage, line) in damages {
            guest.ok(&format!(
                "{damage} >/run/justitia/ledger && cp /run/justitia/ledger /run/ledger.bad"
            ));
            for command in ["run", "reset"] {
                let result = guest.sh(&format!("timeout 20 justitia {command}"));
                let expected =
                    format!("the knob journal /run/justitia/ledger is corrupt at line {line}:");
                assert_eq!(result.status, 1, "{command}, {what}: {result:?}");
                assert!(
                    result.stderr.contains(&expected) && result.stderr.contains("reset --salvage"),
                    "{command}, {what}: expected {expected:?}, found {}",
                    result.stderr
                );
                guest.ok("lows >/run/after && diff /run/killed /run/after && cmp /run/ledger.bad /run/justitia/ledger");
            }
        }

        salvage(guest);
    });
}

/// Knobs with intact entries are restored, the other by the mark of its cgroup, and the file is moved aside.
fn salvage(guest: &Guest) {
    guest.ok("sed '3s/memory-low/memory-1ow/' /run/ledger.kept >/run/justitia/ledger");
    let lost = guest.ok("sed -n '3s/.*\"path\":\"\\([^\"]*\\)\".*/\\1/p' /run/ledger.kept");
    let lost = lost.trim();
    assert!(lost.starts_with('t'), "{lost:?}");
    let result = guest.sh("justitia reset --salvage");
    let report = &result.stdout;
    assert_eq!(result.status, 1, "{result:?}");
    for word in [
        "1 line of it could not be read",
        "ledger.corrupt",
        "memory.low",
    ] {
        assert!(result.stderr.contains(word), "{word}: {result:?}");
    }
    for n in 1..=6 {
        let name = format!("t{n}");
        let low = guest.number(&format!("cat $C/{name}/memory.low"));
        assert_eq!(low, 0, "{name}; the report:\n{report}");
        assert!(report.contains(&name), "{report}");
    }
    guest.ok("test -e /run/justitia/ledger.corrupt -a ! -e /run/justitia/ledger && justitia reset");
}

/// The unit runs it at every end, whatever has been written into the configuration since.
#[test]
fn reset_works_with_an_invalid_configuration() {
    in_guest(small, |guest| {
        guest.ok(
            "live a && hole /data/a 30 && cache a /data/a 30 && lows >/run/before
        start && within 20 protected a && end KILL
        mkdir -p /etc/justitia && printf 'cpu_budget = \ncache = 3\n[[tenant]\n' >/etc/justitia/justitia.toml",
        );
        let refused = guest.sh("justitia run --check-config");
        assert_ne!(refused.status, 0, "{refused:?}");
        let reset = guest.sh("justitia reset && lows >/run/after && diff /run/before /run/after");
        assert_eq!(reset.status, 0, "{reset:?}");
        assert!(reset.stdout.contains("memory.low"), "{reset:?}");
        assert!(reset.stderr.contains("justitia.toml:1: "), "{reset:?}");
    });
}

#[test]
fn a_second_agent_is_refused_and_changes_nothing() {
    in_guest(small, |guest| {
        guest.ok("live a && hole /data/a 8 && cache a /data/a 8 && lows >/run/before && start && within 10 protected a && lows >/run/held");
        guest.ok(
            r#"printf 'state_dir = "/run/other"\nsocket = "/run/other.sock"\n' >/tmp/other.toml"#,
        );
        // Nor can another user hold the lock.
        guest.ok("! /bin/setpriv --reuid 65534 --regid 65534 --clear-groups sh -c ': >>/sys/fs/cgroup/memory.reclaim'");
        for (command, expected) in [
            ("run", "another agent is running"),
            ("reset", "another agent is running"),
            ("run --observe", "the status socket"),
            (
                "run --config /tmp/other.toml",
                "another agent is running on the cgroups at /sys/fs/cgroup",
            ),
        ] {
            let result = guest.sh(&format!("timeout 20 justitia {command}"));
            assert_eq!(result.status, 1, "{command}: {result:?}");
            assert!(result.stderr.contains(expected), "{command}: {result:?}");
        }
        guest.ok("lows >/run/after && diff /run/held /run/after");
        assert_eq!(&guest.status()["observe"], false);
        // The first one's journal still works.
        guest.ok("end KILL && justitia reset && lows >/run/after && diff /run/before /run/after");
    });
}

/// As when `/run` is cleaned. The cgroups are marked; a process in a user namespace of its own cannot do that.
#[test]
fn without_the_state_directory_nothing_that_was_left_stays() {
    in_guest(small, |guest| {
        guest.ok("live a && live own && hole /data/a 8 && cache a /data/a 8 && echo 20M >$C/own/memory.low && lows >/run/before");
        let leave = "start && within 10 protected a && end KILL; rm -r /run/justitia
            lows >/run/left && ! diff /run/before /run/left >/dev/null || exit 1";
        guest.ok(leave);
        guest.ok("justitia reset && lows >/run/after && diff /run/before /run/after && [ ! -e /run/justitia ]");
        guest.ok(leave);
        guest.ok("start && within 10 protected a && end TERM && lows >/run/after && diff /run/before /run/after");
    });
}

#[test]
#[ignore = "minutes: make test-vm"]
fn no_throttling_knob_is_written_without_device_bandwidth() {
    in_guest(small, |guest| {
        guest.ok("
        live a && live b && hole /data/a 60 && cache a /data/a 60 && hole /data/b 60 && cache b /data/b 60
        knobs | grep -v 'memory.low:' >/run/before
        start && within 10 protected a && within 10 protected b && end KILL || exit 1
        knobs | grep -v 'memory.low:' >/run/after && diff /run/before /run/after || exit 1
        grep -q '^max$' $C/a/memory.high && grep -q '^max$' $C/a/memory.max && [ ! -s $C/a/io.max -o -z \"$(cat $C/a/io.max)\" ] || exit 1
        justitia reset
    ");
        // All writable files: the comparison has something to compare.
        let compared: usize = guest.ok("wc -l </run/before").trim().parse().unwrap();
        assert!(compared > 20, "{compared} values");
    });
}

/// Subtrees that were given away: in one, cgroups with names of 250 bytes that are escaped, three deep; in the other, of
/// 250 bytes that are not, of which some hold pages.
#[test]
#[ignore = "minutes: make test-vm"]
fn cgroup_names_of_the_greatest_length_cost_other_tenants_nothing() {
    in_guest(small, |guest| {
        guest.ok(
            r#"
        grep -q btf/vmlinux /proc/mounts || mount -o bind /dev/null /sys/kernel/btf/vmlinux || exit 1
        inner escaped && inner plain && chown nobody $C/escaped $C/plain || exit 1
        (cd $C/escaped && x=$(head -c 246 /dev/zero | tr '\0' '\001')
        for n in $(seq 100 139); do
            for m in a b; do mkdir $m$n$x && cd $m$n$x && echo +memory >cgroup.subtree_control || exit 1; done
            mkdir c$n$x && cd ../.. || exit 1
        done) || exit 1
        x=$(head -c 247 /dev/zero | tr '\0' x)
        (cd $C/plain && for n in $(seq 100 299); do mkdir $n$x || exit 1; done) || exit 1
        live other && echo 8M >$C/other/memory.low && hole /data/other 20 && cache other /data/other 20
        for n in 100 101 102 103; do
            live plain/$n$x && hole /data/$n 40 && cache plain/$n$x /data/$n 40 || exit 1
        done
        knobs >/run/before && wc -l </run/before
        start && within 30 protected plain/100$x"#,
        );
        let status = guest.status();
        let paths = paths(&status);
        let below = |top: &str| paths.iter().filter(|path| path.starts_with(top)).count();
        assert_eq!((below("escaped"), below("plain/")), (1, 200), "{paths:?}");
        let limits = status["limitations"].to_string();
        assert!(
            limits.contains("a cgroup in escaped has a path longer"),
            "{limits}"
        );

        for _ in 0..3 {
            let page = guest.number("wget -qO- http://127.0.0.1:9742/metrics | wc -c");
            assert!((1 << 16..16 << 20).contains(&page), "{page} bytes");
            guest.ok("sleep 1");
        }
        let answer = guest.number("justitia status --json | wc -c");
        let journal = guest.number("wc -c </run/justitia/ledger");
        let peak = guest.number("awk '/VmHWM/ { print $2 }' /proc/$(cat /run/agent.pid)/status");
        println!("status {answer} bytes, journal {journal} bytes, resident at most {peak} KiB");
        assert!(answer < 1 << 20 && journal < 5 << 20, "{answer} {journal}");
        assert!(peak < 64 << 10, "{peak} KiB");

        guest.ok(
            "end 9 && justitia reset >/dev/null && [ ! -e /run/justitia/ledger ] || exit 1
            knobs >/run/after && diff /run/before /run/after",
        );
    });
}
