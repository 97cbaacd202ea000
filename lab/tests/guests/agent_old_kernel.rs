//! The agent on a kernel whose `memory.reclaim` has no `swappiness=` (6.1).

use super::agent_guest::{in_guest, tenant};
use justitia_lab::vm::{DiskSpec, VmSpec};

fn old() -> VmSpec {
    VmSpec {
        kernel: "6.1".parse().unwrap_or_default(),
        memory: 768 << 20,
        disks: vec![DiskSpec::ext4(2 << 30), DiskSpec::of(None, 256 << 20)],
        ..VmSpec::default()
    }
}

#[test]
#[ignore = "minutes: make test-vm"]
fn tenants_with_anonymous_memory_are_exempt_where_reclaim_could_swap() {
    in_guest(old, |guest| {
        guest.ok("
        mkswap /dev/vdb >/dev/null && swapon /dev/vdb || exit 1
        live a && live b && hole /data/a 300 && hole /data/b 200 && echo 800 >$C/b/io.weight
        cache a /data/a 300 && cache b /data/b 200
        start && hole /data/outside 150 && seep /data/outside 150 0.1
    ");
        let status = guest.status();
        for path in ["a", "b"] {
            let one = tenant(&status, path);
            assert_eq!(one["reclaimed"], 0, "{one}");
            assert_eq!(one["exempt"]["exemption"], "anonymous", "{one}");
        }
        let limits = status["limitations"].to_string();
        assert!(
            limits.contains("anonymous") && limits.contains("proactive reclaim"),
            "{limits}"
        );
        let doctor = guest.ok("justitia doctor");
        assert!(doctor.contains("works, with limits"), "{doctor}");
        // Protection works all the same, and comes back.
        guest.ok(
        "protected b && end TERM && [ $(cat $C/a/memory.low $C/b/memory.low | tr -d '\\n') = 00 ]",
    );

        // Without swap nothing anonymous can be taken, and reclaim works.
        guest.ok("
        taken() { [ $(reclaimed) -gt 0 ]; }
        swapoff /dev/vdb && start && cache a /data/a 300 && cache b /data/b 200
        hole /data/outside2 250 && seep /data/outside2 250 0.1 taken
    ");
        let status = guest.status();
        assert!(
            tenant(&status, "a")["reclaimed"].as_u64() > Some(0),
            "{status:#}"
        );
        guest.ok("end TERM");
    });
}

/// fanotify names the writer of a knob on this kernel, too.
#[test]
#[ignore = "minutes: make test-vm"]
fn a_shell_that_writes_what_was_there_before_is_told_from_systemd() {
    in_guest(old, |guest| {
        guest.ok("
        live c && hole /data/c 30 && cache c /data/c 30
        start && within 20 protected c && echo 0 >$C/c/memory.low && sleep 3 && ! protected c
    ");
        let status = guest.status();
        let by = status["external"][0]["by"].as_str().unwrap_or_default();
        assert!(by.starts_with("process "), "{status:#}");
        guest.ok("end TERM");
    });
}
