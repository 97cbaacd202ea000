//! Containers of Docker, podman and containerd, and a unit, on Debian 12 and 13 under their own systemd: under their names,
//! with the weights that were declared, before and after systemd is reloaded; written back where that is wanted.
//!
//! The system is made once by mmdebstrap, beside the lab's kernels. Nothing is pulled: the image has busybox alone. Minutes
//! under emulation: `make test-runtimes`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::commands::{BOOKWORM, TRIXIE};
use super::package::debian::Debian;
use super::runtimes_fleet;

/// For dockerd, containerd and five containers.
const MEMORY: u64 = 2 << 30;
/// A container starts within this time, under emulation.
pub(crate) const START: Duration = Duration::from_secs(300);

/// The containers of Docker, by name, with what they were started with.
pub(crate) const DOCKER: [(&str, u64); 4] =
    [("web", 100), ("shop", 200), ("batch", 400), ("search", 800)];
/// That of podman.
const PODMAN: (&str, u64) = ("db", 300);
/// That of containerd alone. `ctr` has no option for a weight: its specification says it.
const CONTAINERD: (&str, u64) = ("mill", 250);
/// The unit.
const UNIT: (&str, u64) = ("mail.service", 700);

/// Docker's cgroup drivers.
pub(crate) const SYSTEMD: &str = "systemd";
const CGROUPFS: &str = "cgroupfs";

/// Starts Docker, with the image `small` for it and for podman. The guest has no network, and no module for overlays.
pub(crate) fn start_docker(debian: &Debian, driver: &str) {
    debian.ok(&format!(r#"mkdir -p /debian/etc/docker /debian/small/bin && cp /debian/bin/busybox /debian/small/bin/
        echo '{{"iptables": false, "bridge": "none", "storage-driver": "vfs", "exec-opts": ["native.cgroupdriver={driver}"]}}' \
            >/debian/etc/docker/daemon.json"#));
    debian.ok(r#"printf '[storage]\ndriver = "vfs"\nrunroot = "/run/containers/storage"\ngraphroot = "/var/lib/containers/storage"\n' \
            >/debian/etc/containers/storage.conf"#);
    // It has failed at the boot, as it had no configuration.
    let restart = "systemctl stop docker.socket docker; systemctl reset-failed docker; systemctl start docker";
    debian.ok_within(START, &format!("/root/deb sh -c '{restart}'"));
    let import = "/root/deb sh -c 'tar -C /small -c . >/small.tar && docker import /small.tar small && podman import /small.tar small'";
    println!("{}", debian.ok_within(START, import));
    debian.step("Docker runs");
}

/// Starts all of them.
fn start(debian: &Debian, driver: &str) {
    start_docker(debian, driver);
    for (name, weight) in DOCKER {
        // One in the host's cgroup namespace, the others in their own.
        let namespace = if name == "batch" { "host" } else { "private" };
        debian.ok_within(START, &format!(
            "/root/deb docker run -d --network none --cgroupns {namespace} --label tier=front --name {name} --blkio-weight {weight} small /bin/busybox sleep 100000"
        ));
    }
    let (name, weight) = PODMAN;
    debian.ok_within(START, &format!(
        "/root/deb podman run -d --network none --name {name} --blkio-weight {weight} small /bin/busybox sleep 100000"
    ));
    let (name, weight) = CONTAINERD;
    debian.ok(&format!(
        r#"cat >/debian/root/spec.json <<'END'
{{"ociVersion":"1.0.2","process":{{"user":{{"uid":0,"gid":0}},"args":["/bin/busybox","sleep","100000"],"cwd":"/","env":[]}},
"root":{{"path":"/small"}},"mounts":[{{"destination":"/proc","type":"proc","source":"proc"}}],
"linux":{{"cgroupsPath":"/default/{name}","resources":{{"blockIO":{{"weight":{weight}}}}},
"namespaces":[{{"type":"pid"}},{{"type":"mount"}},{{"type":"ipc"}},{{"type":"uts"}}]}}}}
END"#
    ));
    debian.ok_within(
        START,
        &format!("/root/deb ctr run -d --config /root/spec.json {name}"),
    );
    let (name, weight) = UNIT;
    debian.ok(&format!(
        "/root/deb systemd-run --unit={name} -p IOWeight={weight} sleep 100000"
    ));
    // As docs/guide/backup.md starts a backup: it waits for its end, and no unit is left.
    debian.ok_within(
        START,
        "/root/deb systemd-run --collect --wait --unit=backup true",
    );
    debian.step("the containers run");
    println!("{}", debian.ok("/root/deb sh -c 'docker --version; docker info 2>/dev/null | grep -i cgroup; podman --version; containerd --version; crun --version | head -n 1; runc --version | head -n 1; systemctl --version | head -n 1; uname -r'"));
    println!("{}", standing(debian));
}

/// What stands in the kernel.
fn standing(debian: &Debian) -> String {
    debian.ok(
        "cd /sys/fs/cgroup && for f in */docker-[4-f]*/io*.weight docker/*/io*.weight */libpod-[4-f]*/container/io*.weight */mail.service/io*.weight default/*/io*.weight; do
            [ ! -e $f ] || echo $(echo $f | cut -c 1-40) ${f##*/}: $(head -n 1 $f); done",
    )
}

/// Weights and their sources by name.
pub(crate) type Weights = BTreeMap<String, (u64, String)>;

/// What the agent tells of the tenants that are meant.
fn weights(status: &Value, is_meant: fn(&Value) -> bool) -> Weights {
    let tenants = status["tenants"].as_array().into_iter().flatten();
    let of = |tenant: &Value| {
        let text = |key: &str| tenant[key].as_str().unwrap_or_default().to_owned();
        let weight = tenant["weight"].as_u64().unwrap_or_default();
        (text("name"), (weight, text("weight_source")))
    };
    tenants.filter(|tenant| is_meant(tenant)).map(of).collect()
}

/// Asks until these are told of the tenants that are meant; the status that does.
#[track_caller]
pub(crate) fn are_told(debian: &Debian, expected: &Weights, is_meant: fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let status = debian.ok("/root/deb justitia status --json || echo '{}'");
        let status: Value = serde_json::from_str(&status).unwrap();
        let told = weights(&status, is_meant);
        if told == *expected {
            return status;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "expected {expected:#?}\nfound {told:#?}\n{}\n{}\n{}",
            status["agent_usage"],
            standing(debian),
            debian.log()
        );
    }
}

/// Whether a tenant is a whole container, or the unit.
fn is_own(tenant: &Value) -> bool {
    let kind = tenant["kind"].as_str().unwrap_or_default();
    let name = tenant["name"].as_str().unwrap_or_default();
    let others = runtimes_fleet::is_one(name);
    tenant["part"].is_null() && !others && (kind.ends_with("_container") || name == UNIT.0)
}

/// What should be told of these.
fn expected() -> Weights {
    let containers = DOCKER.into_iter().chain([PODMAN, CONTAINERD]);
    let containers =
        containers.map(|(name, weight)| (name.to_owned(), (weight, "runtime".to_owned())));
    let unit = (UNIT.0.to_owned(), (UNIT.1, "unit".to_owned()));
    containers.chain([unit]).collect()
}

/// Whether the weight of the tenant of this name drifts.
fn drifts(status: &Value, name: &str) -> bool {
    let mut tenants = status["tenants"].as_array().unwrap().iter();
    let tenant = tenants.find(|t| t["name"] == name && t["part"].is_null());
    tenant.unwrap()["declared"]["drift"] == true
}

/// Another weight, a rule by name, and what another process writes.
fn what_changes_is_followed(debian: &Debian) {
    // A new weight counts, and a rule by name before it.
    debian.ok_within(START, "/root/deb docker update --blkio-weight 500 search");
    debian.within(60, "/root/deb justitia status --json | grep -A 12 '\"name\": \"search\"' | grep '\"weight\": 500'");
    assert!(
        !drifts(&debian.status(), "search"),
        "runc has just written it"
    );
    debian.ok("mkdir -p /debian/etc/justitia/justitia.toml.d && cat >/debian/etc/justitia/justitia.toml.d/test.toml <<'END'
[[tenant]]
container = \"sea*\"
image = \"small\"
weight = 9
END
        /root/deb systemctl restart justitia");
    debian.within(60, "/root/deb justitia status --json | grep -A 12 '\"name\": \"search\"' | grep '\"weight\": 9,'");

    // Another process's write drifts and changes nothing.
    debian
        .ok("for f in /sys/fs/cgroup/system.slice/docker-*.scope/io*.weight; do echo 77 >$f; done");
    debian.within(
        60,
        "/root/deb justitia status --json | grep '\"drift\": true'",
    );
    let status = debian.status();
    assert!(
        drifts(&status, "web") && drifts(&status, "batch"),
        "{status:#}"
    );
    let told = weights(&status, is_own);
    assert_eq!(told["web"], (100, "runtime".to_owned()));
    println!(
        "{}",
        debian.ok("/root/deb justitia explain web | head -n 12")
    );
}

/// A machine for them, with the runtimes.
pub(crate) fn boot(release: &str) -> Debian {
    // Since Debian 13 Docker's client is a package of its own.
    let (name, more) = match release {
        BOOKWORM => ("debian-runtimes", ""),
        _ => ("debian13-runtimes", ",docker-cli"),
    };
    let packages = format!("docker.io,podman,crun,busybox-static{more}");
    Debian::boot_with(name, release, &packages, MEMORY)
}

/// The same on a host without BFQ: runc and crun write `io.weight` there, which belongs to io.cost.
pub(crate) fn boot_without_bfq(release: &str) -> Debian {
    let debian = boot(release);
    debian.ok("rmmod bfq && [ ! -e /sys/fs/cgroup/system.slice/io.bfq.weight ] && [ -e /sys/fs/cgroup/system.slice/io.weight ]");
    debian
}

/// The same with an agent installed and all of them started; the package reloads systemd.
fn installed(debian: Debian, driver: &str) -> Debian {
    start(&debian, driver);
    debian.ok("/root/deb dpkg -i /packages/first.deb");
    debian
}

/// Names and weights are told after the start, and after reloads.
fn names_and_weights_stay(debian: &Debian) {
    let status = are_told(debian, &expected(), is_own);
    println!(
        "told {:.1} s after the agent's start\n{}",
        status["uptime"].as_f64().unwrap(),
        standing(debian)
    );
    let mut tenants = status["tenants"].as_array().unwrap().iter();
    let web = tenants.find(|t| t["name"] == "web").unwrap();
    assert_eq!(
        (&web["image"], &web["labels"][0]),
        (&"small".into(), &"tier=front".into())
    );
    println!(
        "{}",
        debian.ok("/root/deb justitia doctor; /root/deb justitia status; /root/deb justitia explain search")
    );
    for round in 0..2 {
        debian.ok("/root/deb systemctl daemon-reload");
        std::thread::sleep(Duration::from_secs(3));
        let status = are_told(debian, &expected(), is_own);
        println!("told after reload {round}\n{}", standing(debian));
        // What systemd believes of a unit is what was declared.
        assert!(!drifts(&status, UNIT.0));
    }
}

/// With `[weights] restore` the kernel has what runc wrote, over reloads, and what stood there at the end.
fn weights_are_written_back(debian: &Debian) {
    // To `io.bfq.weight`, or without BFQ to `io.weight`.
    const RUNCS: &str = "400|3940";
    let restore = |on: bool| {
        debian.ok(&format!(
            "mkdir -p /debian/etc/justitia/justitia.toml.d
            printf '[weights]\\nrestore = {on}\\n' >/debian/etc/justitia/justitia.toml.d/weights.toml
            /root/deb systemctl reload justitia"
        ));
    };
    let stand = |weight: &str| {
        debian.within(
            60,
            &format!("cat /sys/fs/cgroup/system.slice/docker-$(/root/deb docker inspect -f '{{{{.Id}}}}' batch).scope/io*.weight | grep -wE '{weight}'"),
        );
    };
    restore(true);
    for _ in 0..2 {
        stand(RUNCS);
        debian.ok("/root/deb systemctl daemon-reload");
        std::thread::sleep(Duration::from_secs(2));
    }
    stand(RUNCS);
    let status = debian.status();
    let drifting: Vec<&str> = DOCKER
        .iter()
        .map(|(name, _)| *name)
        .filter(|name| drifts(&status, name))
        .collect();
    assert_eq!(drifting, Vec::<&str>::new(), "{}", standing(debian));
    println!("written back:\n{}", standing(debian));
    restore(false);
    stand("100");
    assert!(drifts(&debian.status(), "batch"));
    debian.ok("rm /debian/etc/justitia/justitia.toml.d/weights.toml");
    debian.step("weights are written back");
}

/// `docker update` of shares of the processor and of the weight under systemd's driver: runc tells systemd `CPUWeight=` and the
/// cgroup alone the other. The new weight counts, and over a reload, and systemd has reset nothing of the agent's.
fn updates_count(debian: &Debian) {
    debian.ok_within(
        START,
        "/root/deb docker update --cpu-shares 512 --blkio-weight 150 shop",
    );
    debian.within(60, "/root/deb justitia status --json | grep -A 12 '\"name\": \"shop\"' | grep '\"weight\": 150,'");
    let path =
        "/sys/fs/cgroup/system.slice/docker-$(/root/deb docker inspect -f '{{.Id}}' shop).scope";
    println!("{}", debian.ok(&format!("cd {path} && head -n 1 cpu.weight io*.weight; /root/deb systemctl show -p CPUWeight -p IOWeight $(basename {path})")));
    let is_told = "/root/deb justitia status --json | grep -A 12 '\"name\": \"shop\"' | grep '\"weight\": 150,'";
    debian.ok(&format!(
        "/root/deb systemctl daemon-reload; sleep 3; {is_told}"
    ));
    println!(
        "after a reload: {}",
        debian.ok(&format!("cd {path} && head -n 1 cpu.weight io*.weight"))
    );
    debian.ok_within(START, "/root/deb docker update --blkio-weight 200 shop");
    debian.step("updates count");
}

/// What every runtime's tests end with.
fn no_file_was_missed(debian: &Debian) {
    let errors = &debian.status()["agent_usage"]["identity_errors"];
    assert_eq!(errors, &Value::from(0), "files that should have been read");
    debian.step("done");
}

#[test]
#[ignore = "minutes under emulation: make test-runtimes"]
fn containers_keep_their_names_and_weights_over_a_reload() {
    let debian = installed(boot(BOOKWORM), SYSTEMD);
    let fleet = runtimes_fleet::start(&debian);
    debian.ok("/root/deb systemctl start justitia");
    runtimes_fleet::is_told(&debian, &fleet);
    names_and_weights_stay(&debian);
    updates_count(&debian);
    weights_are_written_back(&debian);
    what_changes_is_followed(&debian);
    no_file_was_missed(&debian);
}

/// Names and weights are told, and written back, over reloads.
fn they_do_so(debian: &Debian) {
    debian.ok("/root/deb systemctl start justitia");
    names_and_weights_stay(debian);
    weights_are_written_back(debian);
    no_file_was_missed(debian);
}

#[test]
#[ignore = "minutes under emulation: make test-runtimes"]
fn they_do_so_on_debian_13() {
    they_do_so(&installed(boot(TRIXIE), SYSTEMD));
}

#[test]
#[ignore = "minutes under emulation: make test-runtimes"]
fn they_do_so_without_bfq() {
    they_do_so(&installed(boot_without_bfq(BOOKWORM), SYSTEMD));
}

#[test]
#[ignore = "minutes under emulation: make test-runtimes"]
fn they_do_so_with_dockers_cgroupfs_driver() {
    let debian = installed(boot(BOOKWORM), CGROUPFS);
    debian.ok("/root/deb systemctl start justitia");
    names_and_weights_stay(&debian);
    let status = debian.status();
    let mut tenants = status["tenants"].as_array().unwrap().iter();
    let web = tenants.find(|t| t["name"] == "web").unwrap();
    assert!(
        web["path"].as_str().unwrap().starts_with("docker/"),
        "{web:#}"
    );
    // systemd knows nothing of these cgroups, and so resets nothing.
    assert!(!drifts(&status, "web"));
    no_file_was_missed(&debian);
}
