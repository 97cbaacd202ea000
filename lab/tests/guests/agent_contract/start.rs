//! What the agent needs at its start, and says where it cannot work.

use super::*;

#[test]
#[ignore = "minutes: make test-vm"]
fn missing_requirements_are_reported_and_nothing_is_changed() {
    in_guest(small, |guest| {
        // Whether `run` and `doctor` refuse, with these words; and whether all is as it was.
        let refuses = |before: &str, words: &[&str]| {
            guest.ok("find /run /etc /tmp -type f ! -name 'agent.*' ! -name '.*' ! -path '/run/lab/*' | sort >/tmp/.files; lows >/tmp/.lows; true");
            for (command, status) in [("run", 1), ("doctor", 2)] {
                let result = guest.sh(&format!("{before} timeout 90 justitia {command}"));
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
        let pages = guest.ok("justitia top -n 2");
        assert_eq!(pages.matches("TENANT").count(), 2, "{pages}");
        assert_eq!(guest.ok("end TERM").trim(), "0");
        let result = guest.sh("justitia status");
        assert!(
            result.status == 1 && result.stderr.contains("no agent answers"),
            "{result:?}"
        );
    });
}

#[test]
#[ignore = "minutes: make test-vm"]
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
#[ignore = "minutes: make test-vm"]
fn device_bandwidth_refuses_a_state_directory_on_a_disk() {
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
