//! A virtual machine of libvirt on Debian 12, which QEMU emulates inside the emulated guest: it is created paused, as its cgroup
//! and libvirt's files are what counts. Minutes under emulation: `make test-runtimes`.

use std::time::Duration;

use serde_json::Value;

use super::commands::BOOKWORM;
use super::package::debian::Debian;

const PACKAGES: &str = "systemd-container,libvirt-daemon,libvirt-daemon-driver-qemu,libvirt-daemon-system,libvirt-clients,qemu-system-x86";
const START: Duration = Duration::from_secs(300);

/// What `justitia status` says of the machine, once it has this weight.
#[track_caller]
fn has(debian: &Debian, weight: u64) -> Value {
    debian.comes(|t| t["kind"] == "domain" && t["weight"] == weight)
}

/// What `justitia host` says of the machine, whose monitor is libvirt's: its weight, and its balloon by `virsh`.
#[track_caller]
fn managed(debian: &Debian, weight: u64) -> Value {
    debian.ok("/root/deb systemctl start justitia-host");
    let mut last = Value::Null;
    for _ in 0..60 {
        let status = debian.ok("/root/deb justitia host status --json || echo '{}'");
        let status: Value = serde_json::from_str(&status).unwrap();
        last = status["vms"][0].clone();
        let is_told = last["weight"] == weight && last["balloon"][0] == 64 << 20;
        if last["name"] == "shop-1" && is_told {
            assert_eq!(last["deflates_on_oom"], true, "{last:#}");
            return last;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    panic!(
        "{last:#}\n{}",
        debian.ok("/root/deb journalctl -u justitia-host --no-pager -n 30")
    );
}

#[test]
#[ignore = "minutes under emulation: make test-runtimes"]
fn a_machine_of_libvirt_has_its_name_and_its_weight() {
    let debian = Debian::boot_with("debian-libvirt", BOOKWORM, PACKAGES, 1 << 30);
    debian.ok("cat >/debian/root/vm.xml <<'END'
<domain type='qemu'><name>shop-1</name><memory unit='MiB'>64</memory><vcpu>1</vcpu>
<os><type arch='x86_64'>hvm</type></os>
<blkiotune><weight>400</weight></blkiotune>
<devices><memballoon model='virtio' autodeflate='on' freePageReporting='on'/></devices></domain>
END
        printf 'security_driver = \"none\"\\nuser = \"root\"\\ngroup = \"root\"\\n' >>/debian/etc/libvirt/qemu.conf");
    debian.ok_within(START, "/root/deb systemctl start systemd-machined libvirtd");
    debian.step("libvirtd runs");
    debian.ok_within(
        START,
        "/root/deb virsh -c qemu:///system create --paused /root/vm.xml || { /root/deb journalctl -u libvirtd --no-pager -n 30; exit 1; }",
    );
    debian.step("the machine is there");
    println!("{}", debian.ok("/root/deb sh -c 'virsh --version; qemu-system-x86_64 --version | head -n 1'; cd /sys/fs/cgroup/machine.slice && find . -name 'io*.weight' -exec grep -H . {} +"));
    debian.ok("/root/deb dpkg -i /packages/first.deb && /root/deb systemctl start justitia");
    let found = has(&debian, 400);
    assert_eq!(
        (&found["name"], &found["weight_source"]),
        (&"shop-1".into(), &"runtime".into()),
        "{found:#}"
    );
    println!("{found:#}\n{}", debian.ok("/root/deb justitia status; /root/deb justitia explain shop-1; /root/deb justitia doctor"));
    println!("{:#}", managed(&debian, 400));
    debian.ok("/root/deb systemctl daemon-reload; sleep 3");
    println!("after a reload: {:#}", has(&debian, 400)["declared"]);
    debian.ok_within(
        START,
        "/root/deb virsh -c qemu:///system blkiotune shop-1 --weight 700",
    );
    println!("after another weight: {:#}", has(&debian, 700)["declared"]);
    managed(&debian, 700);
    debian.ok("/root/deb systemctl stop justitia-host");
    debian.ok("mkdir -p /debian/etc/justitia/justitia.toml.d; cat >/debian/etc/justitia/justitia.toml.d/vm.toml <<'END'
[[tenant]]
domain = \"shop-*\"
weight = 55
END
        /root/deb systemctl reload justitia");
    has(&debian, 55);
    debian.ok_within(
        START,
        "/root/deb virsh -c qemu:///system destroy shop-1; sleep 3",
    );
    assert_eq!(debian.tenant(|t| t["kind"] == "domain"), None);
    debian.step("done");
}
