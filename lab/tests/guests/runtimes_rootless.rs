//! A container of podman that a user without rights runs under the user's own systemd: its name and weight count among what is the
//! user's. Minutes under emulation: `make test-runtimes`.

use std::time::Duration;

use serde_json::Value;

use super::commands::BOOKWORM;
use super::package::debian::Debian;

/// What podman needs for users without rights.
const PACKAGES: &str =
    "podman,crun,busybox-static,uidmap,dbus-user-session,slirp4netns,libpam-systemd";
const START: Duration = Duration::from_secs(300);

/// The user, whose systemd may divide I/O, as podman's guide for users says; `as_user COMMAND`.
const USER: &str = r#"
mkdir -p /debian/etc/systemd/system/user@.service.d /debian/small/bin
printf '[Service]\nDelegate=cpu io memory pids\n' >/debian/etc/systemd/system/user@.service.d/delegate.conf
cp /debian/bin/busybox /debian/small/bin/ && tar -C /debian/small -c . >/debian/small.tar
cat >/root/as_user <<'END'
#!/bin/sh
exec /root/deb runuser -u alice -- env HOME=/home/alice XDG_RUNTIME_DIR=/run/user/1000 \
    DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/1000/bus sh -c "cd; $1"
END
chmod +x /root/as_user
/root/deb systemctl daemon-reload
/root/deb useradd -m -s /bin/sh alice
mkdir -p /debian/home/alice/.config/containers
printf '[storage]\ndriver = "vfs"\n' >/debian/home/alice/.config/containers/storage.conf
/root/deb chown -R alice:alice /home/alice
/root/deb loginctl enable-linger alice
tries=0
until /root/deb test -S /run/user/1000/bus; do
    tries=$((tries + 1)); [ $tries -lt 120 ] || { /root/deb systemctl status user@1000 --no-pager; exit 1; }; sleep 1
done"#;

fn as_user(debian: &Debian, command: &str) -> String {
    debian.ok_within(START, &format!("/root/as_user '{command}'"))
}

/// What is told of the user's container.
#[track_caller]
fn told(debian: &Debian) -> Value {
    debian.comes(|t| t["name"] == "user-1000/blog")
}

#[test]
#[ignore = "minutes under emulation: make test-runtimes"]
fn a_users_container_has_its_name_and_its_weight_among_the_users() {
    let debian = Debian::boot_with("debian-rootless", BOOKWORM, PACKAGES, 1 << 30);
    debian.ok_within(START, USER);
    debian.step("the user's systemd runs");
    as_user(&debian, "podman import /small.tar small");
    as_user(
        &debian,
        "podman run -d --network none --name blog --blkio-weight 1000 small /bin/busybox sleep 100000",
    );
    debian.step("the container runs");
    println!("{}", debian.ok("/root/deb sh -c 'podman --version; crun --version | head -n 1'; cd /sys/fs/cgroup && cat user.slice/user-1000.slice/cgroup.subtree_control; find user.slice -name 'io*.weight' -exec grep -H . {} +"));
    debian.ok("/root/deb dpkg -i /packages/first.deb && /root/deb systemctl start justitia");
    debian.within(60, "/root/deb justitia status >/dev/null");
    let found = told(&debian);
    println!("{found:#}\n{}", debian.ok("/root/deb justitia status"));
    assert_eq!(
        (&found["weight"], &found["weight_source"]),
        (&1000.into(), &"runtime".into())
    );
    let path = found["path"].as_str().unwrap();
    assert!(path.starts_with("user.slice/user-1000.slice/"), "{path}");
    // What the user writes counts within what the user has.
    let user = debian.tenant(|t| t["path"] == "user.slice/user-1000.slice");
    assert!(
        user.as_ref().is_none_or(|user| user["weight"] == 100),
        "{user:#?}"
    );
    // It stays so over reloads, of the system's systemd and of the user's.
    for _ in 0..2 {
        debian.ok("/root/deb systemctl daemon-reload");
        as_user(&debian, "systemctl --user daemon-reload");
        std::thread::sleep(Duration::from_secs(3));
        assert_eq!(told(&debian)["weight"], 1000);
    }
    let errors = &debian.status()["agent_usage"]["identity_errors"];
    assert_eq!(errors, &Value::from(0), "files that should have been read");
    as_user(&debian, "podman rm -f -t 0 blog");
    debian.within(
        60,
        "/root/deb justitia status --json | grep -q user-1000/blog && exit 1 || exit 0",
    );
    debian.step("done");
}
