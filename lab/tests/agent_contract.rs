//! The agent in a guest: what it must never do to others' knobs, and what it says where it cannot work.

mod agent_guest;

use agent_guest::{Guest, in_guest, small, tenant};

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

/// systemd writes a unit's properties into its cgroup again at every `daemon-reload`: no decision. One that
/// insists has decided.
#[test]
fn a_reapplied_value_is_overwritten_and_a_persistent_one_external() {
    in_guest(small, |guest| {
        guest.ok("
        for t in a b; do live $t && hole /data/$t 30 && cache $t /data/$t 30; done
        lows >/run/before
        start && within 20 protected a && within 20 protected b || exit 1
        for n in 1 2 3 4 5 6; do echo 0 >$C/a/memory.low; within 20 protected a || exit 1; done
        ! grep -q 'external: another writer' $LOG
    ");
        assert_eq!(external(guest, "a"), None);
        guest.ok("echo 0 >$C/a/memory.low; left() { grep -q 'external: another writer' $LOG; }; within 20 left");
        assert_eq!(external(guest, "a").as_deref(), Some("0"));
        guest.ok("protected b && ! protected a && end TERM && lows >/run/after && diff /run/before /run/after");
    });
}

#[test]
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
        cache a /data/a 250 && cache b /data/b 250
        knobs >/run/before
        start --observe
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

#[test]
fn missing_requirements_are_reported_and_nothing_is_changed() {
    in_guest(small, |guest| {
        // Whether `run` and `doctor` refuse, with these words; and whether all is as it was.
        let refuses = |before: &str, words: &[&str]| {
            guest.ok("find /run /etc /tmp -type f ! -name 'agent.*' ! -name '.*' ! -path '/run/lab/*' | sort >/tmp/.files; lows >/tmp/.lows; true");
            for (command, status) in [("run", 1), ("doctor", 2)] {
                let result = guest.sh(&format!("{before} timeout 20 justitia {command}"));
                let said = format!("{}{}", result.stdout, result.stderr);
                assert_eq!(result.status, status, "{command} after {before:?}: {said}");
                for word in words {
                    assert!(
                        said.contains(word),
                        "{command} after {before:?}: expected {word:?} in {said}"
                    );
                }
            }
            guest.ok("find /run /etc /tmp -type f ! -name 'agent.*' ! -name '.*' ! -path '/run/lab/*' | sort | diff /tmp/.files - && lows | diff /tmp/.lows - && test ! -e /run/justitia");
        };
        guest.ok("live a");
        refuses(
            "unshare -m sh -c 'umount -l /sys/fs/cgroup; exec \"$@\"' -",
            &["cgroup"],
        );
        refuses(
            "/bin/setpriv --reuid 65534 --regid 65534 --clear-groups",
            &["root"],
        );
        refuses(
            "unshare -m sh -c 'mount -o remount,bind,ro /sys/fs/cgroup; exec \"$@\"' -",
            &["read-only"],
        );
        guest.ok("clean; echo -memory >$C/cgroup.subtree_control; mkdir $C/a");
        refuses("", &["memory", "cgroup.subtree_control"]);
        guest.ok("rmdir $C/a; echo +memory >$C/cgroup.subtree_control");
        // And on the same machine it works once nothing is missing.
        guest.ok("justitia doctor >/dev/null && start && end TERM");
    });
}

#[test]
fn the_agent_runs_without_systemd_and_without_a_configuration() {
    in_guest(small, |guest| {
        guest.ok("test ! -e /etc/justitia && test ! -e /run/systemd && test ! -e /run/dbus");
        guest.ok("
        live a && live b && hole /data/a 20 && hole /data/b 20 && cache a /data/a 20 && cache b /data/b 20
        echo 300 >$C/a/io.weight
        start && within 20 protected a && within 20 protected b
        [ $(stat -c %a /run/justitia/justitia.sock) = 600 ] && [ $(stat -c %a /run/justitia) = 700 ] || exit 1
        ! /bin/setpriv --reuid 65534 --regid 65534 --clear-groups justitia status 2>/run/agent.refused && grep -q denied /run/agent.refused
    ");
        let status = guest.status();
        assert_eq!(tenant(&status, "a")["weight"], 300);
        assert_eq!(tenant(&status, "b")["weight"], 100);
        assert_eq!(tenant(&status, "-")["weight"], 100);
        assert_eq!(guest.ok("end TERM").trim(), "0");
        let result = guest.sh("justitia status");
        assert!(
            result.status == 1 && result.stderr.contains("no agent answers"),
            "{result:?}"
        );
    });
}

#[test]
fn every_error_of_a_configuration_is_reported_with_its_line() {
    in_guest(small, |guest| {
        guest.ok("mkdir -p /etc/justitia && cat >/etc/justitia/justitia.toml <<'END'
cpu_budget = \"much\"
colour = 1

[[tenant]]
match = \"a*\"
weight = 20000
END
    mkdir -p /etc/justitia/justitia.toml.d && printf '\\n[unmanaged]\\nweight = 0\\n' >/etc/justitia/justitia.toml.d/50-x.toml");
        for command in ["run --check-config", "run", "status"] {
            let result = guest.sh(&format!("timeout 20 justitia {command}"));
            let said = format!("{}{}", result.stdout, result.stderr);
            assert_eq!(result.status, 1, "{command}: {said}");
            for place in [
                "justitia.toml:1: ",
                "justitia.toml:2: ",
                "justitia.toml:6: ",
                "50-x.toml:3: ",
            ] {
                assert!(
                    said.contains(place),
                    "{command}: expected {place:?} in {said}"
                );
            }
        }
        guest.ok("test ! -e /run/justitia");
        // Without errors, and in force.
        guest.ok("
        rm -r /etc/justitia/justitia.toml.d
        printf '[[tenant]]\\nmatch = \"a*\"\\nweight = 700\\n\\n[[tenant]]\\nmatch = \"x\"\\nexclude = true\\n' >/etc/justitia/justitia.toml
        justitia run --check-config
        live ab && live x && start
    ");
        let status = guest.status();
        assert_eq!(tenant(&status, "ab")["weight"], 700);
        assert!(!status["tenants"].to_string().contains("\"x\""));
        guest.ok("end TERM");
    });
}

/// The journal is synced before a knob is written: on a disk that the agent limits, it would wait for itself.
#[test]
fn device_credits_refuse_a_state_directory_on_a_disk() {
    in_guest(small, |guest| {
        guest.ok("mkdir -p /etc/justitia && printf 'state_dir = \"/data/state\"\n[io]\nenabled = true\n' >/etc/justitia/justitia.toml");
        for command in ["run --check-config", "run"] {
            let result = guest.sh(&format!("timeout 20 justitia {command}"));
            assert_eq!(result.status, 1, "{command}: {}", result.stdout);
            for part in [
                "/data/state on a memory file system",
                "found ext4",
                "or set [io] enabled = false",
            ] {
                assert!(result.stderr.contains(part), "{command}: {}", result.stderr);
            }
        }
        guest.ok("test ! -e /data/state && test ! -e /run/justitia");
        // Without credits it is only slower.
        guest.ok("sed -i s/true/false/ /etc/justitia/justitia.toml && justitia run --check-config | grep -q '^warning: .*found ext4'");
        guest.ok("live a && start && grep -q 'WARN.*found ext4' $LOG");
        let limits = guest.status()["limitations"].to_string();
        assert!(limits.contains("found ext4"), "{limits}");
        guest.ok("[ $(end TERM) = 0 ] && ! test -e /data/state/ledger");
    });
}

/// Whoever has been given a subtree may divide it as he likes, and no more: what he writes into cgroups that he has
/// made himself takes nothing from the others, neither in our division nor in the kernel's.
#[test]
fn a_delegated_subtree_gets_no_more_than_its_share() {
    in_guest(small, |guest| {
        guest.ok(
            r#"
        live other && hole /data/other 700 && echo 300 >$C/other/io.weight
        mkdir $C/user && echo '+memory +io' >$C/user/cgroup.subtree_control
        chown nobody $C/user $C/user/cgroup.procs $C/user/cgroup.threads $C/user/cgroup.subtree_control
        start
        # The delegatee cannot raise what the top gets, only what is inside.
        cat >/run/hoard.sh <<'HIS'
        cd /sys/fs/cgroup/user || exit 1
        echo max >memory.low 2>/dev/null && exit 2
        echo 10000 >io.weight 2>/dev/null && exit 3
        mkdir hoard && echo max >hoard/memory.low && echo 10000 >hoard/io.weight || exit 4
HIS
        su -s /bin/sh nobody -c 'sh /run/hoard.sh' || exit 1
        hole /data/hoard 700 && cache user/hoard /data/hoard 400
        reread other /data/other 0; reread user/hoard /data/hoard 0
        sleep 12
    "#,
        );
        // Both read without end, 300 to 100 by weight; 100 more are outside, which wants little.
        let status = guest.status();
        let entitled = |path: &str| tenant(&status, path)["entitlement"].as_u64().unwrap();
        let (his, others) = (entitled("user"), entitled("other"));
        println!(
            "entitled: user {} MiB, other {} MiB",
            his >> 20,
            others >> 20
        );
        assert_eq!(tenant(&status, "user")["weight"], 100);
        assert!(others > his * 5 / 2, "{status:#}");
        // What the agent protects of the top is no more than its part, and so the kernel protects no more of the
        // hoard: its effective memory.low is bounded by the top's.
        let low = guest.number("cat $C/user/memory.low");
        assert!(low < his + (32 << 20), "{low} for {his}");
        assert_eq!(guest.ok("cat $C/user/hoard/memory.low").trim(), "max");
        let held = |path: &str| guest.number(&format!("file_of {path}"));
        let (his, others) = (held("user/hoard"), held("other"));
        println!("held: user {} MiB, other {} MiB", his >> 20, others >> 20);
        assert!(others > his, "{his} and {others}");
        assert_eq!(guest.ok("rest; end TERM").trim(), "0");
    });
}

/// Whoever has been given a subtree can neither crash the agent nor exhaust what it has, with any number of cgroups, at
/// any depth, made and removed as fast as he can; and the others are served meanwhile.
#[test]
fn a_delegatee_that_creates_cgroups_without_end_harms_no_other_tenant() {
    in_guest(small, |guest| {
        guest.ok(r#"
        live other && hole /data/other 60 && cache other /data/other 60
        for t in deep wide storm; do
            mkdir $C/$t && echo '+memory +io' >$C/$t/cgroup.subtree_control || exit 1
            chown nobody $C/$t $C/$t/cgroup.procs $C/$t/cgroup.threads $C/$t/cgroup.subtree_control
        done
        start && within 20 protected other
        cat >/run/deep.sh <<'HIS'
        cd $C/deep
        for n in $(seq 100); do mkdir d && cd d && echo +memory >cgroup.subtree_control || exit 1; done
HIS
        cat >/run/wide.sh <<'HIS'
        cd $C/wide && mkdir w && cd w && echo +memory >cgroup.subtree_control && seq 700 | xargs mkdir
HIS
        cat >/run/storm.sh <<'HIS'
        cd $C/storm && end=$(($(date +%s) + 5))
        while [ $(date +%s) -lt $end ]; do
            mkdir a b c d && for x in a b c d; do echo max >$x/memory.low; done
            rmdir a b c d || exit 1
        done
HIS
        echo "fds=$(ls /proc/$(cat /run/agent.pid)/fd | wc -l) log=$(wc -c <$LOG)" >/run/before
        export C
        for what in deep wide storm; do su -s /bin/sh nobody -c "sh -e /run/$what.sh" || exit 1; done
        shut() { justitia status --json | grep -q 'wide was delegated'; }
        within 10 shut
        # A later cgroup is protected at once.
        live late && hole /data/late 30 && cache late /data/late 30 && within 20 protected late
        sleep 2
    "#);
        let status = guest.status();
        let paths: Vec<&str> = status["tenants"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|t| t["path"].as_str())
            .collect();
        let below = |top: &str| paths.iter().filter(|path| path.starts_with(top)).count();
        // 32 levels below the root; one tenant; and nothing left of what is gone.
        assert_eq!(
            (below("deep"), below("wide"), below("storm")),
            (32, 1, 1),
            "{paths:?}"
        );
        assert_eq!(tenant(&status, "other")["weight"], 100);
        guest.ok(
            ". /run/before; now=$(ls /proc/$(cat /run/agent.pid)/fd | wc -l); echo $fds $now
            [ $now -lt $((fds + 3 * 32 + 16)) ] && [ $(($(wc -c <$LOG) - log)) -lt 2000 ]",
        );
        assert_eq!(guest.ok("end TERM").trim(), "0");
    });
}

/// Root in a container without a user namespace owns its files as the administrator does. What it writes counts inside.
#[test]
fn root_in_a_container_gets_no_more_than_its_share() {
    in_guest(small, |guest| {
        guest.ok(
            r#"
        live other && hole /data/other 60 && cache other /data/other 60
        mkdir $C/ct
        cat >/run/agent.ct.sh <<'CT'
        mkdir /run/agent.mount && mount -t cgroup2 none /run/agent.mount && cd /run/agent.mount && mkdir c && echo $$ >c/cgroup.procs || exit 1
        echo '+memory +io' >cgroup.subtree_control || exit 2
        echo 10000 >c/io.weight && echo max >c/memory.low || exit 3
        echo done >/run/agent.ct
        exec sleep 100000
CT
        start && within 20 protected other
        sh -c 'echo $$ >$0/cgroup.procs && exec /bin/unshare -C -m sh /run/agent.ct.sh' $C/ct >/run/agent.ct.log 2>&1 &
        within 20 [ -e /run/agent.ct ] || { cat /run/agent.ct.log; exit 1; }
        [ $(cat $C/ct/c/memory.low) = max ] && hole /data/ct 60 && cache ct/c /data/ct 60
        known() { justitia status --json | grep -q '"path": "ct/c"'; }
        within 20 known && sleep 3
    "#,
        );
        let status = guest.status();
        let ct = tenant(&status, "ct");
        assert_eq!(
            (&ct["weight"], &ct["minimum"]),
            (&100.into(), &0.into()),
            "{status:#}"
        );
        let inside = tenant(&status, "ct/c");
        assert_eq!(
            (&inside["weight"], &inside["minimum"]),
            (&10_000.into(), &0.into()),
            "{status:#}"
        );
        assert_eq!(guest.ok("rest; end TERM").trim(), "0");
    });
}
