//! What is delegated gets no more than its share.

use super::*;

/// A delegatee divides its subtree, and no more: what it writes into cgroups of its own takes nothing from other tenants,
/// neither in the agent's division nor in the kernel's.
#[test]
#[ignore = "minutes: make test-vm"]
fn a_delegated_subtree_gets_no_more_than_its_share() {
    in_guest(small, |guest| {
        guest.ok(
            r#"
        # Memory for half as much cache: what fills it is used sooner.
        dd if=/dev/zero of=/run/agent.fill bs=1M count=150 2>/dev/null
        live other && hole /data/other 210 && echo 300 >$C/other/io.weight
        mkdir $C/user && echo '+memory +io' >$C/user/cgroup.subtree_control
        chown nobody $C/user $C/user/cgroup.procs $C/user/cgroup.threads $C/user/cgroup.subtree_control
        start
        # The delegatee cannot raise what the top gets, only what is inside.
        cat >/run/hoard.sh <<'END'
        cd /sys/fs/cgroup/user || exit 1
        echo max >memory.low 2>/dev/null && exit 2
        echo 10000 >io.weight 2>/dev/null && exit 3
        mkdir hoard && echo max >hoard/memory.low && echo 10000 >hoard/io.weight || exit 4
END
        su -s /bin/sh nobody -c 'sh /run/hoard.sh' || exit 1
        hole /data/hoard 210 && cache user/hoard /data/hoard 200
        # At some 60 MB/s each: without pauses a file without blocks is read faster than an emulated guest reclaims.
        paced() {
            sh -c 'echo $$ >"$0/cgroup.procs" && while :; do for at in $(seq 0 20 200); do
                dd if="$1" of=/dev/null bs=1M skip=$at count=20 2>/dev/null; usleep 300000; done; done' $C/$1 $2 >/dev/null 2>&1 &
            echo $! >>/run/loads
        }
        paced other /data/other; paced user/hoard /data/hoard
        sleep 6
    "#,
        );
        // Both read the same again and again, 300 to 100 by weight; 100 more are outside, which wants little. What one of
        // them is known to use before the other is, comes first: the division is awaited in which both are known.
        let held = |path: &str| guest.number(&format!("file_of {path}"));
        let mut seen = String::new();
        let divided = guest.comes(150, || {
            let status = guest.status();
            let of = |path: &str, field: &str| tenant(&status, path)[field].as_u64().unwrap_or(0) >> 20;
            let used = (of("other", "working_set"), of("user/hoard", "working_set"));
            let entitled = (of("other", "entitlement"), of("user", "entitlement"));
            let held = (held("other") >> 20, held("user/hoard") >> 20);
            let low = guest.number("cat $C/user/memory.low") >> 20;
            seen = format!("other and hoard in MiB: used {used:?} entitled {entitled:?} held {held:?}; low {low}");
            used.1 >= 150
                // Three times as much, or all that it uses: then the rest is free for the other.
                && (entitled.0 > entitled.1 * 5 / 2 || entitled.0 >= used.0.max(200))
                && held.0 > held.1
                // What the agent protects of the top is no more than its part, and so the kernel protects no more of
                // the hoard: its effective memory.low is bounded by the top's.
                && low < entitled.1 + 32
        });
        println!("{seen}");
        assert!(divided, "{seen}\n{:#}", guest.status());
        assert_eq!(tenant(&guest.status(), "user")["weight"], 100);
        assert_eq!(guest.ok("cat $C/user/hoard/memory.low").trim(), "max");
        assert_eq!(guest.ok("rest; end TERM").trim(), "0");
    });
}

/// A delegatee can neither crash the agent nor exhaust its resources, with any number of cgroups at any depth, created and
/// removed as fast as it can. The other tenants are served meanwhile.
#[test]
#[ignore = "minutes: make test-vm"]
fn a_delegatee_that_creates_cgroups_without_end_harms_no_other_tenant() {
    in_guest(small, |guest| {
        guest.ok(r#"
        live other && hole /data/other 60 && cache other /data/other 60
        for t in deep wide storm; do
            mkdir $C/$t && echo '+memory +io' >$C/$t/cgroup.subtree_control || exit 1
            chown nobody $C/$t $C/$t/cgroup.procs $C/$t/cgroup.threads $C/$t/cgroup.subtree_control
        done
        start && within 20 protected other
        cat >/run/deep.sh <<'END'
        cd $C/deep
        for n in $(seq 100); do mkdir d && cd d && echo +memory >cgroup.subtree_control || exit 1; done
END
        cat >/run/wide.sh <<'END'
        cd $C/wide && mkdir w && cd w && echo +memory >cgroup.subtree_control && seq 700 | xargs mkdir
END
        cat >/run/storm.sh <<'END'
        cd $C/storm && end=$(($(date +%s) + 5))
        while [ $(date +%s) -lt $end ]; do
            mkdir a b c d && for x in a b c d; do echo max >$x/memory.low; done
            rmdir a b c d || exit 1
        done
END
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
        let paths = paths(&status);
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
#[ignore = "minutes: make test-vm"]
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
