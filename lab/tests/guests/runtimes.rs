//! Containers of Docker and podman, and a unit, on a Debian under its own systemd: under their names, with the weights that
//! were declared, before and after systemd is reloaded.
//!
//! The system is made once by mmdebstrap, beside the lab's kernels. Nothing is pulled: the image has busybox alone. Minutes
//! under emulation: `make test-runtimes`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use justitia_lab::LabDir;
use justitia_lab::vm::VmSpec;
use serde_json::Value;

use super::package::debian::{Debian, INCLUDE, debian_of};

/// For dockerd, containerd and five containers.
const MEMORY: u64 = 2 << 30;
/// A container starts within this time, under emulation.
const START: Duration = Duration::from_secs(300);

/// The containers of Docker, by name, with what they were started with.
const DOCKER: [(&str, u64); 4] = [("web", 100), ("shop", 200), ("batch", 400), ("search", 800)];
/// That of podman.
const PODMAN: (&str, u64) = ("db", 300);
/// The unit.
const UNIT: (&str, u64) = ("mail.service", 700);

/// Debian 12 with its runtimes.
fn image(lab: &LabDir) -> PathBuf {
    let include = format!("{INCLUDE},docker.io,podman,crun,busybox-static");
    debian_of(lab, "debian-runtimes", &include, "2G")
}

/// Starts all of them. The guest has no network, and no module for overlays.
fn start(debian: &Debian) {
    debian.ok(r#"mkdir -p /debian/etc/docker /debian/small/bin && cp /debian/bin/busybox /debian/small/bin/
        echo '{"iptables": false, "bridge": "none", "storage-driver": "vfs"}' >/debian/etc/docker/daemon.json
        printf '[storage]\ndriver = "vfs"\nrunroot = "/run/containers/storage"\ngraphroot = "/var/lib/containers/storage"\n' \
            >/debian/etc/containers/storage.conf"#);
    debian.ok_within(START, "/root/deb systemctl start docker");
    let import = "/root/deb sh -c 'tar -C /small -c . >/small.tar && docker import /small.tar small && podman import /small.tar small'";
    println!("{}", debian.ok_within(START, import));
    debian.step("Docker runs");
    for (name, weight) in DOCKER {
        debian.ok_within(START, &format!(
            "/root/deb docker run -d --network none --label tier=front --name {name} --blkio-weight {weight} small /bin/busybox sleep 100000"
        ));
    }
    let (name, weight) = PODMAN;
    debian.ok_within(START, &format!(
        "/root/deb podman run -d --network none --name {name} --blkio-weight {weight} small /bin/busybox sleep 100000"
    ));
    let (name, weight) = UNIT;
    debian.ok(&format!(
        "/root/deb systemd-run --unit={name} -p IOWeight={weight} sleep 100000"
    ));
    debian.step("the containers run");
    println!("{}", debian.ok("/root/deb sh -c 'docker --version; podman --version; crun --version | head -n 1; runc --version | head -n 1; systemctl --version | head -n 1; uname -r'"));
    println!("{}", standing(debian));
}

/// What stands in the kernel.
fn standing(debian: &Debian) -> String {
    debian.ok(
        "cd /sys/fs/cgroup && for f in */docker-*/io*.weight */libpod-*/container/io*.weight */mail.service/io*.weight; do
            echo $(echo $f | cut -c 1-40) ${f##*/}: $(head -n 1 $f); done",
    )
}

/// What the agent tells: names with weight and its source, of whole containers and of the unit.
fn told(status: &Value) -> BTreeMap<String, (u64, String)> {
    let tenants = status["tenants"].as_array().unwrap().iter();
    let of_interest = |tenant: &&Value| {
        let kind = tenant["kind"].as_str().unwrap_or_default();
        tenant["part"].is_null() && (kind.ends_with("_container") || tenant["name"] == UNIT.0)
    };
    tenants
        .filter(of_interest)
        .map(|tenant| {
            let text = |key: &str| tenant[key].as_str().unwrap_or_default().to_owned();
            let weight = tenant["weight"].as_u64().unwrap();
            (text("name"), (weight, text("weight_source")))
        })
        .collect()
}

/// What it should tell.
fn expected() -> BTreeMap<String, (u64, String)> {
    let containers = DOCKER.into_iter().chain([PODMAN]);
    let containers =
        containers.map(|(name, weight)| (name.to_owned(), (weight, "runtime".to_owned())));
    let unit = (UNIT.0.to_owned(), (UNIT.1, "unit".to_owned()));
    containers.chain([unit]).collect()
}

/// Asks until all are told; for how long the agent had run then.
#[track_caller]
fn names_and_weights(debian: &Debian) -> Value {
    let begun = Instant::now();
    loop {
        let status = debian.status();
        if told(&status) == expected() {
            return status;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "{:#?}\n{}\n{}\n{}",
            told(&status),
            status["agent_usage"],
            standing(debian),
            debian.log()
        );
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Whether the weight of the tenant of this name drifts.
fn drifts(status: &Value, name: &str) -> bool {
    let mut tenants = status["tenants"].as_array().unwrap().iter();
    let tenant = tenants.find(|t| t["name"] == name && t["part"].is_null());
    tenant.unwrap()["declared"]["drift"] == true
}

/// Another weight, a rule by name, and what somebody else writes.
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

    // Somebody else's write drifts and changes nothing.
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
    assert_eq!(told(&status)["web"], (100, "runtime".to_owned()));
    println!(
        "{}",
        debian.ok("/root/deb justitia explain web | head -n 12")
    );
}

#[test]
#[ignore = "minutes under emulation: make test-runtimes"]
fn containers_keep_their_names_and_weights_over_a_reload() {
    let lab = LabDir::find().unwrap();
    let machine = VmSpec {
        memory: MEMORY,
        // Its profiles need a package of their own.
        cmdline: "apparmor=0".to_owned(),
        ..VmSpec::default()
    };
    let debian = Debian::boot_of(&lab, &image(&lab), machine);
    start(&debian);
    // This reloads systemd, too.
    debian.ok("/root/deb dpkg -i /packages/first.deb && /root/deb systemctl start justitia");
    let status = names_and_weights(&debian);
    println!(
        "told {:.1} s after the agent's start\n{}",
        status["uptime"].as_f64().unwrap(),
        standing(&debian)
    );
    let web = status["tenants"]
        .as_array()
        .unwrap()
        .iter()
        .find(|t| t["name"] == "web");
    let web = web.unwrap();
    assert_eq!(
        (&web["image"], &web["labels"][0]),
        (&"small".into(), &"tier=front".into())
    );
    println!(
        "{}",
        debian.ok("/root/deb justitia status; /root/deb justitia explain search")
    );

    for round in 0..2 {
        debian.ok("/root/deb systemctl daemon-reload");
        std::thread::sleep(Duration::from_secs(3));
        let status = names_and_weights(&debian);
        println!(
            "after reload {round}: {:?}\n{}",
            told(&status),
            standing(&debian)
        );
        // What systemd believes of a unit is what was declared.
        assert!(!drifts(&status, UNIT.0));
    }

    what_changes_is_followed(&debian);
    let errors = &debian.status()["agent_usage"]["identity_errors"];
    assert_eq!(errors, &Value::from(0), "files that should have been read");
    debian.step("done");
}
