//! Forty tenants on a Debian, beside the containers of [`runtimes`](super::runtimes): ten units are real ones of systemd; of the
//! others the scopes are real, and the files of their runtimes are made by hand, as a container takes half a minute under
//! emulation.

use std::time::Duration;

use super::package::debian::Debian;
use super::runtimes::{Weights, are_told};

/// Makes the files and the scopes. `fleet NUMBER`: the container's id.
const FLEET: &str = r#"
id() { printf '%064x' $((0xabc00000 + $1)); }
scope() { systemd-run --quiet --scope --slice="$1" --unit="$2" sleep 100000 >/dev/null 2>&1 & }
for n in 1 2 3 4 5 6 7 8 9 10; do
    i=$(id $n) w=$((100 + n))
    mkdir -p /run/docker/runtime-runc/moby/$i /var/lib/docker/containers/$i
    echo "{\"cgroup_paths\":{\"\":\"/sys/fs/cgroup/system.slice/docker-$i.scope\"},\"config\":{\"cgroups\":{\"blkio_weight\":$w}}}" \
        >/run/docker/runtime-runc/moby/$i/state.json
    echo "{\"Name\":\"/fleet-docker-$n\",\"Config\":{\"Image\":\"small\",\"Labels\":{}}}" >/var/lib/docker/containers/$i/config.v2.json
    scope system.slice docker-$i.scope
    systemd-run --quiet --unit=fleet-unit-$n -p IOWeight=$((600 + n)) sleep 100000
done
store=/var/lib/containers/storage/overlay-containers list=
for n in 11 12 13 14 15; do
    i=$(id $n) w=$((200 + n))
    mkdir -p $store/$i/userdata
    echo "{\"linux\":{\"cgroupsPath\":\"machine.slice:libpod:$i\",\"resources\":{\"blockIO\":{\"weight\":$w}}}}" >$store/$i/userdata/config.json
    list="$list${list:+,}{\"id\":\"$i\",\"names\":[\"fleet-podman-$n\"]}"
    scope machine.slice libpod-$i.scope
done
echo "[$list]" >$store/containers.json
tasks=/run/containerd/io.containerd.runtime.v2.task
for n in 16 17 18 19 20; do
    i=$(id $n) pod=kubepods-burstable-pod0000000$n
    mkdir -p $tasks/k8s.io/$i $tasks/default/$i
    echo "{\"annotations\":{\"io.kubernetes.cri.container-type\":\"container\",\"io.kubernetes.cri.container-name\":\"app\",\"io.kubernetes.cri.sandbox-name\":\"pod-$n\",
        \"io.kubernetes.cri.sandbox-namespace\":\"fleet\",\"io.kubernetes.cri.sandbox-uid\":\"0000000$n\"},
        \"linux\":{\"cgroupsPath\":\"$pod.slice:cri-containerd:$i\"}}" >$tasks/k8s.io/$i/config.json
    scope $pod.slice cri-containerd-$i.scope
    i=$(id $((n + 10))) w=$((300 + n))
    mkdir -p $tasks/default/$i
    echo "{\"annotations\":{\"nerdctl/name\":\"fleet-nerdctl-$n\"},\"linux\":{\"cgroupsPath\":\"system.slice:nerdctl:$i\",
        \"resources\":{\"blockIO\":{\"weight\":$w}}}}" >$tasks/default/$i/config.json
    scope system.slice nerdctl-$i.scope
    mkdir -p /run/libvirt/qemu
    echo "<domstatus state='running' pid='1'><domain type='qemu' id='$n'><name>fleet-vm-$n</name>
        <blkiotune><weight>$((400 + n))</weight></blkiotune></domain></domstatus>" >/run/libvirt/qemu/fleet-vm-$n.xml
    scope machine.slice "machine-qemu\\x2d$n\\x2dfleet\\x2dvm\\x2d$n.scope"
done
sleep 2
"#;

/// Whether a tenant is one of these.
pub(crate) fn is_one(name: &str) -> bool {
    name.contains("fleet")
}

/// Starts them; what should be told of them: weight and its source by name.
pub(crate) fn start(debian: &Debian) -> Weights {
    debian.ok(&format!("cat >/debian/root/fleet.sh <<'END'\n{FLEET}END"));
    debian.ok_within(
        Duration::from_secs(300),
        "/root/deb setsid sh /root/fleet.sh </dev/null >/dev/null 2>&1",
    );
    debian.step("the fleet is there");
    let mut fleet = Weights::new();
    let mut add = |name: String, weight: u64, source: &str| {
        fleet.insert(name, (weight, source.to_owned()));
    };
    for n in 1..=10 {
        add(format!("fleet-docker-{n}"), 100 + n, "runtime");
        add(format!("fleet-unit-{n}.service"), 600 + n, "unit");
    }
    for n in 11..=15 {
        add(format!("fleet-podman-{n}"), 200 + n, "runtime");
    }
    for n in 16..=20 {
        add(format!("fleet/pod-{n}/app"), 100, "default");
        add(format!("fleet-nerdctl-{n}"), 300 + n, "runtime");
        add(format!("fleet-vm-{n}"), 400 + n, "runtime");
    }
    fleet
}

/// Waits until all are told rightly, and prints for how long the agent had run then.
#[track_caller]
pub(crate) fn is_told(debian: &Debian, fleet: &Weights) {
    let status = are_told(debian, fleet, |tenant| {
        is_one(tenant["name"].as_str().unwrap_or_default()) && tenant["kind"] != "pod"
    });
    println!(
        "{} tenants were named and weighted {:.1} s after the agent's start",
        fleet.len(),
        status["uptime"].as_f64().unwrap()
    );
}
