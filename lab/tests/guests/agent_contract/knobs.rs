//! What the agent does to knobs: those of others it leaves.

use super::*;

/// The value that the status says it found in an external knob.
fn external(guest: &Guest, path: &str) -> Option<String> {
    let status = guest.status();
    let all = status["external"].as_array()?;
    let one = all.iter().find(|y| y["path"] == path)?;
    assert_eq!(one["knob"], "memory.low");
    one["value"].as_str().map(str::to_owned)
}

#[test]
fn a_knob_that_another_writes_is_external_and_left_alone() {
    in_guest(small, |guest| {
        guest.ok("
        for t in a b c own; do live $t && hole /data/$t 30 && cache $t /data/$t 30; done
        echo 12M >$C/own/memory.low
        lows >/run/before
        start && within 20 protected a && within 20 protected b && within 20 protected c
    ");
        // Its operator's, from before: never written, and a minimum. 12 MiB minus what is not file pages.
        assert_eq!(external(guest, "own").as_deref(), Some("12582912"));
        let minimum = tenant(&guest.status(), "own")["minimum"].as_u64();
        assert!(
            minimum.is_some_and(|f| (6 << 20..=12 << 20).contains(&f)),
            "{minimum:?}"
        );

        // Written under the agent's hand: another value, next to nothing, everything.
        guest.ok("echo 5M >$C/a/memory.low; echo 4096 >$C/b/memory.low; echo max >$C/c/memory.low");
        guest
            .ok("left() { [ $(grep -c 'external: another writer' $LOG) -ge 3 ]; }; within 20 left");
        assert_eq!(external(guest, "a").as_deref(), Some("5242880"));
        assert_eq!(external(guest, "b").as_deref(), Some("4096"));
        assert_eq!(external(guest, "c").as_deref(), Some("max"));
        let log = guest.log();
        for path in ["a", "b", "c"] {
            let warned = log.lines().any(|line| {
                line.contains("WARN")
                    && line.contains("another writer")
                    && line.contains(&format!("tenant=\"{path}\""))
            });
            assert!(warned, "no warning about {path}:\n{log}");
        }

        // It leaves them alone while their tenants go on growing, and when it ends.
        guest.ok("
        lows >/run/theirs
        for t in a b c own; do hole /data/more-$t 40 && cache $t /data/more-$t 40; done
        sleep 4
        lows >/run/after && diff /run/theirs /run/after || exit 1
        [ $(cat $C/a/memory.low) = 5242880 ] && [ $(cat $C/b/memory.low) = 4096 ] && [ $(cat $C/c/memory.low) = max ] || exit 1
        end TERM
        lows >/run/after && diff /run/theirs /run/after
    ");

        // A write while no agent runs: the value found after a kill is external as well.
        guest.ok("
        echo 0 >$C/a/memory.low; echo 0 >$C/b/memory.low; echo 0 >$C/c/memory.low
        start && within 20 protected a && within 20 protected b && end KILL || exit 1
        echo 7M >$C/a/memory.low
        justitia reset >/run/reset.out
        cat /run/reset.out
        [ $(cat $C/a/memory.low) = 7340032 ] && [ $(cat $C/b/memory.low) = 0 ] && [ $(cat $C/own/memory.low) = 12582912 ]
    ");
    });
}

/// Whatever the value: that of before, the kernel's default, another. (What systemd writes: `runtimes_writers`.)
#[test]
fn whatever_a_shell_writes_is_left_to_it_until_its_operator_takes_it_back() {
    in_guest(small, |guest| {
        guest.ok("
        for t in a b; do live $t && hole /data/$t 30 && cache $t /data/$t 30; done
        lows >/run/before
        start && within 20 protected a && within 20 protected b || exit 1
    ");
        let limitations = guest.status()["limitations"].to_string();
        assert!(!limitations.contains("their writers"), "{limitations}");
        // By one that stays, and by one that has ended.
        for command in [
            "echo 0 >$C/a/memory.low",
            "sh -c 'echo 0 >/sys/fs/cgroup/a/memory.low'",
        ] {
            guest.ok(&format!("{command}; sleep 3; ! protected a"));
            assert_eq!(external(guest, "a").as_deref(), Some("0"));
            let status = guest.status();
            let told = status["external"][0]["by"].as_str().unwrap_or_default();
            assert!(told.starts_with("process "), "{status:#}");
            let explained = guest.ok("justitia explain a");
            assert!(explained.contains(told), "{explained}");
            guest.ok("justitia take a/memory.low && within 20 protected a");
            assert_eq!(external(guest, "a"), None);
        }
        // Released by its operator, it stays as it was.
        guest.ok("justitia release a/memory.low && sleep 3 && ! protected a && protected b");
        guest.ok("end TERM && lows >/run/after && diff /run/before /run/after");
    });
}

/// SIGHUP and `justitia reload`; the agent is the same one all the time.
#[test]
fn a_reload_keeps_what_is_protected_and_a_bad_one_changes_nothing() {
    in_guest(small, |guest| {
        guest.ok("
        for t in a b; do live $t && hole /data/$t 30 && cache $t /data/$t 30; done
        lows >/run/before
        start && within 20 protected a && within 20 protected b || exit 1
        mkdir -p /etc/justitia
        printf '[[tenant]]\\nmatch = \"b\"\\nexclude = true\\n' >/etc/justitia/justitia.toml
        justitia reload && ! protected b && protected a || exit 2
        printf 'cpu_budget = 2\\nswap = 1\\n' >/etc/justitia/justitia.toml
        ! justitia reload 2>/run/refused && grep 'justitia.toml:2: ' /run/refused && grep 'justitia.toml:2: ' $LOG || exit 3
        sleep 2 && ! protected b && protected a || exit 4
        : >/etc/justitia/justitia.toml && kill -HUP $(cat /run/agent.pid) && within 20 protected b || exit 5
        rm -r /etc/justitia
        end TERM && lows >/run/after && diff /run/before /run/after
    ");
    });
}

#[test]
#[ignore = "minutes: make test-vm"]
fn any_cgroup_name_is_protected_shown_escaped_and_restored() {
    in_guest(small, |guest| {
        // A newline is the one thing that the kernel refuses in a cgroup's name, beside `/`.
        let refused = guest.sh("mkdir \"$C/$(printf 'new\\nline')\"");
        assert_ne!(refused.status, 0, "{refused:?}");
        let names = [
            ("with space", "with space"),
            ("back\\134slash", "back\\x5cslash"),
            ("utf8-\\303\\244", "utf8-\\xc3\\xa4"),
            ("not-utf8-\\377\\376", "not-utf8-\\xff\\xfe"),
            ("\\033[31mred\\033]0;x\\007", "\\x1b[31mred\\x1b]0;x\\x07"),
            ("-rf \\047quoted\\042 $(x) *", "-rf 'quoted\" $(x) *"),
            ("\\011tab\\015", "\\x09tab\\x0d"),
        ];
        let mut nested = String::new();
        for depth in 0..12 {
            nested.push_str(&format!("d{depth}/"));
            guest.ok(&format!("inner {nested}"));
        }
        guest.ok("hole /data/f 6");
        for (n, (octal, _)) in names.iter().enumerate() {
            guest.ok(&format!(
            "name=\"$(printf '%b.' '{octal}')\"; name=\"${{name%.}}\"
            live \"$name\" && hole /data/{n} 6 && within 5 [ -e \"$C/$name/cgroup.procs\" ] && cache \"$name\" /data/{n} 6"
                ,
            octal = octal.replace("\\0", "\\00").replace("\\1", "\\01").replace("\\3", "\\03")
        ));
        }
        guest.ok(&format!(
            "live {nested}leaf && cache {nested}leaf /data/f 6
        lows >/run/before && start
        all() {{ ! grep -l '^0$' $(:) $C/*/memory.low 2>/dev/null | grep -q .; }}
        within 20 all && within 20 protected {nested}leaf && within 20 protected d0"
        ));
        let status = guest.status();
        for (_, shown) in &names {
            let protected = tenant(&status, shown)["protected"].as_u64();
            assert!(
                protected.is_some_and(|p| p > 1 << 20),
                "{shown}: {protected:?}"
            );
        }
        tenant(&status, &format!("{nested}leaf"));
        // No byte of a name reaches a terminal as it is.
        let raw = guest.number("justitia status | tr -d '\\n -~' | wc -c");
        let printed = guest.ok("justitia status");
        assert!(
            printed.contains("\\x1b[31mred") && printed.contains("with space"),
            "{printed}"
        );
        let allowed = printed
            .bytes()
            .filter(|b| !matches!(b, b'\n' | b' '..=b'~'))
            .count();
        assert_eq!(raw, u64::try_from(allowed).unwrap_or(u64::MAX));
        assert!(
            !printed.contains('\x1b') && !printed.contains('\x07') && !printed.contains('\r'),
            "{printed}"
        );
        assert!(!guest.ok("cat $LOG").contains("\x1b[31mred"));
        guest.ok("end KILL && justitia reset && lows >/run/after && diff /run/before /run/after");
        guest.ok("start && within 20 protected d0 && end TERM && lows >/run/after && diff /run/before /run/after");
    });
}

#[test]
fn observe_mode_changes_nothing_and_reports_planned_actions() {
    in_guest(small, |guest| {
        guest.ok("
        live a && hole /data/a 250 && live b && hole /data/b 250
        echo 100 >$C/a/io.weight && echo 900 >$C/b/io.weight
        knobs >/run/before
        start --observe
        cache a /data/a 250 && cache b /data/b 250
        reread b /data/b 0.1
        would() { justitia status --json | grep -q 'would reclaim'; }
        hole /data/outside 300 && seep /data/outside 300 0.05 would
        knobs >/run/after && diff /run/before /run/after
    ");
        let status = guest.status();
        assert_eq!(status["observe"], true);
        assert_eq!(status["agent_usage"]["reclaimed"], 0);
        let decisions = status["decisions"]
            .as_array()
            .map_or(&[][..], Vec::as_slice);
        assert!(
            decisions.iter().any(|d| d["path"] == "a"
                && d["what"]
                    .as_str()
                    .is_some_and(|w| w.starts_with("would reclaim"))
                && d["reason"]["text"]
                    .as_str()
                    .is_some_and(|w| w.contains("entitled to"))),
            "{decisions:?}"
        );
        assert!(guest.ok("justitia status").contains("nothing is changed"));
        assert_eq!(guest.ok("rest; end TERM").trim(), "0");
        guest.ok(
            "knobs >/run/after && diff /run/before /run/after && test ! -e /run/justitia/ledger",
        );
        // Where nothing can be written it does the same, and no write is refused because none is tried.
        guest.ok("
        printf '#!/bin/sh\nmount -o remount,bind,ro /sys/fs/cgroup && exec justitia \"$@\"\n' >/run/agent.readonly
        chmod +x /run/agent.readonly && : >$LOG
        AGENT='unshare -m /run/agent.readonly' start --observe
        ! nsenter -t $(cat /run/agent.pid) -m sh -c 'echo 0 >/sys/fs/cgroup/a/memory.low' 2>/dev/null || exit 1
        echo 1 >/proc/sys/vm/drop_caches
        cache a /data/a 250; cache b /data/b 250
        would() { justitia status --json | grep -q 'would reclaim'; }
        hole /data/outside2 400 && seep /data/outside2 400 0.05 would
    ");
        let decisions = guest.status()["decisions"].to_string();
        assert!(decisions.contains("would reclaim"), "{decisions}");
        assert_eq!(guest.ok("grep -E ' (WARN|ERROR) ' $LOG || true"), "");
        assert_eq!(guest.ok("end TERM").trim(), "0");
    });
}
