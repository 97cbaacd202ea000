use std::path::Path;

use justitia_agent::device::credits::DiskSupport;
use justitia_kernel::capabilities::{Capabilities, Capability, Paths};
use justitia_kernel::probes::{Probe, ProbeStatus};

use super::super::text::WIDTH;
use super::*;

fn runtime_of(
    name: &'static str,
    driver: Option<&str>,
    reads: Reads,
) -> (Installed, Option<String>) {
    let one = Installed {
        name,
        program: "/usr/bin/x".into(),
        cgroup_driver: driver.map(str::to_owned),
        reads,
    };
    (one, Some("20.10.24".to_owned()))
}

fn from(place: &str) -> Reads {
    Reads::From(vec![place.into()])
}

/// The features, all of this level.
fn features(level: SupportLevel) -> Vec<FeatureSupport> {
    let causes = |n: usize| match level {
        SupportLevel::Full => Vec::new(),
        _ => vec![Cause {
            capability: Capability {
                id: CapabilityId::Mglru,
                state: State::Yes,
                reason: "it is in use".to_owned(),
            },
            // As long as the longest of those that there are.
            consequence: format!(
                "{n} the unmanaged tenant cannot be reclaimed from alone: it is entitled to its share, and beyond that what the kernel leaves it"
            ),
        }],
    };
    let features = Feature::ALL.into_iter().enumerate();
    let features = features.map(|(n, feature)| FeatureSupport {
        feature,
        level,
        causes: causes(n / 2),
        switch: feature.switch().map(str::to_owned),
    });
    features.collect()
}

/// A host on which all works, with every runtime, in the directory `dir`: nothing of this machine is looked at.
fn host(dir: &Path, level: SupportLevel) -> Host {
    std::fs::create_dir_all(dir.join("sys/kernel")).unwrap();
    std::fs::write(dir.join("sys/kernel/osrelease"), "6.12.117\n").unwrap();
    let capabilities = Capabilities::detect(&Paths {
        proc: dir.to_owned(),
        sys: dir.to_owned(),
        ..Paths::default()
    });
    let disk = |name: &str| DiskSupport {
        name: name.to_owned(),
        number: None,
        left: None,
    };
    Host {
        name: "web1".to_owned(),
        features: features(level),
        capabilities,
        probes: Ok(vec![ProbeStatus {
            probe: Probe::Reuse,
            state: State::Yes,
            reason: String::new(),
            details: Vec::new(),
        }]),
        disks: ["vda", "nvme0n1", "nvme1n1", "nvme2n1", "nvme3n1"]
            .map(disk)
            .into(),
        systemd: true,
        runtimes: vec![
            runtime_of("systemd", None, from("unit files")),
            runtime_of(
                "Docker",
                Some("systemd"),
                from("/var/lib/docker/containers"),
            ),
            runtime_of(
                "podman",
                None,
                from("/var/lib/containers/storage/overlay-containers"),
            ),
            runtime_of(
                "containerd",
                None,
                from("/run/containerd/io.containerd.runtime.v2.task"),
            ),
            runtime_of("CRI-O", None, Reads::Later("/run/containers".into())),
            runtime_of(
                "kubelet",
                Some("systemd"),
                from("/run/containerd/io.containerd.runtime.v2.task/k8s.io"),
            ),
            runtime_of("libvirt", None, from("/run/libvirt/qemu")),
        ],
        is_vm: true,
    }
}

#[test]
fn a_host_with_every_runtime_fits_a_screen_and_begins_with_the_verdict() {
    let dir = tempfile::tempdir().unwrap();
    for level in [SupportLevel::Full, SupportLevel::Limited] {
        let host = host(dir.path(), level);
        let told = text(&host);
        let lines: Vec<&str> = told.lines().collect();
        assert!(lines.len() <= 24, "{} lines\n{told}", lines.len());
        assert!(
            lines.iter().all(|line| line.chars().count() <= WIDTH),
            "{told}"
        );
        assert!(
            lines[0].starts_with("justitia ") && lines[0].contains(" on web1, Linux "),
            "{told}"
        );
        assert!(
            lines[1].starts_with(" yes  page cache: can be divided by weight"),
            "{told}"
        );
        let is_limited = level == SupportLevel::Limited;
        assert_eq!(lines[1].contains(", with limits (below)"), is_limited);
        assert_eq!(told.contains("\n   -  limit: "), is_limited);
        let words = told.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in [
            "yes device bandwidth: of vda, nvme0n1, nvme1n1, nvme2n1 and 1 more can be divided; off: `[io] enabled = true`",
            "yes hypervisor cache: `justitia cache serve` runs here; a VM: `justitia guest`, if its host has a cache",
            "yes Docker 20.10.24 (cgroups: systemd): names, images, labels, weights from /var/lib/docker/containers",
            "(no) CRI-O 20.10.24: nothing of it has run yet",
        ] {
            assert!(words.contains(part), "{part}\n{told}");
        }
        assert!(host.works());
    }
}

#[test]
fn the_lru_is_named_as_the_guide_shows_it_and_where_the_page_cache_cannot_be_divided() {
    let guide = include_str!("../../../../docs/guide/backup.md");
    let dir = tempfile::tempdir().unwrap();
    let told = |bits: Option<&str>, level| {
        if let Some(bits) = bits {
            let lru = dir.path().join("kernel/mm/lru_gen");
            std::fs::create_dir_all(&lru).unwrap();
            std::fs::write(lru.join("enabled"), bits).unwrap();
        }
        text(&host(dir.path(), level))
    };
    let verdict = |bits| {
        let told = told(bits, SupportLevel::Full);
        told.lines().nth(1).unwrap().to_owned()
    };
    let classic = verdict(None);
    assert_eq!(verdict(Some("0x0000\n")), classic);
    let mglru = verdict(Some("0x0007\n"));
    for (line, lru) in [(classic, "the classic LRU"), (mglru, "MGLRU")] {
        let said = format!(" yes  page cache: can be divided by weight; the host has {lru}");
        assert_eq!(line, said);
        assert!(guide.contains(&format!("\n    {line}\n")), "{line}");
    }
    // What is not known is not said.
    assert!(!verdict(Some("on\n")).contains("LRU"));
    for (bits, lru) in [("0x0000\n", "the classic LRU"), ("0x0007\n", "MGLRU")] {
        let told = told(Some(bits), SupportLevel::Unavailable);
        let words = told.split_whitespace().collect::<Vec<_>>().join(" ");
        let first = words.split(" (no) ").next().unwrap();
        assert!(first.contains("no page cache: cannot be divided by weight: 0 the unmanaged"));
        assert!(first.ends_with(&format!("; the host has {lru}")), "{told}");
    }
}

#[test]
fn what_cannot_work_is_said_with_its_cause_and_ends_with_another_status() {
    let dir = tempfile::tempdir().unwrap();
    let mut host = host(dir.path(), SupportLevel::Unavailable);
    let told = text(&host);
    assert!(
        told.contains("\n  no  page cache: cannot be divided by weight: 0 the unmanaged"),
        "{told}"
    );
    assert!(
        told.contains("\n(no)  device bandwidth (off by default): "),
        "{told}"
    );
    assert!(!host.works());
    // A runtime whose files cannot be believed.
    host.features.clear();
    assert!(host.works());
    let why = "others than root may write it".to_owned();
    host.runtimes = vec![runtime_of(
        "Docker",
        None,
        Reads::Not("/var/lib/docker/containers".into(), why),
    )];
    let told = text(&host);
    assert!(
        told.contains(
            "  no  Docker 20.10.24: /var/lib/docker/containers is not used: others than root"
        ),
        "{told}"
    );
    assert!(!host.works());
    host.runtimes.clear();
    assert!(text(&host).contains("(no)  none was found"));
}
