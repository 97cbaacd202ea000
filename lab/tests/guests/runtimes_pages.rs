//! Four containers of Docker that read more than the page cache holds: what each keeps follows its weight, also while systemd is
//! reloaded again and again. Minutes under emulation: `make test-runtimes`.

use std::time::{Duration, Instant};

use justitia_share::{Weight, pv};

use super::commands::BOOKWORM;
use super::package::debian::Debian;
use super::runtimes::{DOCKER, START, SYSTEMD, boot, boot_without_bfq, start_docker};

/// Until the pages are divided, and for how long they are looked at.
const SETTLE: Duration = Duration::from_secs(60);
const WINDOW: Duration = Duration::from_secs(90);
/// A reload of systemd each.
const APART: Duration = Duration::from_secs(5);
/// How much further from the weights the pages may be with reloads than without. The goal is 0.05.
const FURTHER: f64 = 0.1;

/// Starts the containers, each of which reads a file of holes that is larger than the memory. Returns where their cgroups are.
fn start(debian: &Debian) -> Vec<String> {
    start_docker(debian, SYSTEMD);
    debian.ok("for n in web shop batch search; do truncate -s 3G /debian/data/$n; done");
    for (name, weight) in DOCKER {
        debian.ok_within(START, &format!(
            "/root/deb docker run -d --network none -v /data:/data:ro --name {name} --blkio-weight {weight} small \
                /bin/busybox sh -c 'while :; do cat /data/{name} >/dev/null; done'"
        ));
    }
    debian.ok("/root/deb dpkg -i /packages/first.deb && /root/deb systemctl start justitia");
    let scope = |(name, _): (&str, u64)| {
        let id = debian.ok(&format!("/root/deb docker inspect -f '{{{{.Id}}}}' {name}"));
        format!("/sys/fs/cgroup/system.slice/docker-{}.scope", id.trim())
    };
    DOCKER.map(scope).to_vec()
}

/// The file pages of each, MiB.
fn pages(debian: &Debian, scopes: &[String]) -> Vec<f64> {
    let files: Vec<String> = scopes
        .iter()
        .map(|scope| format!("{scope}/memory.stat"))
        .collect();
    let text = debian.ok(&format!("sed -n 's/^file //p' {}", files.join(" ")));
    let bytes = text.lines().map(|line| line.parse::<f64>().unwrap());
    bytes.map(|bytes| bytes / 1_048_576.0).collect()
}

/// What each holds on the mean over [`WINDOW`], and its PV; each [`APART`] what `meanwhile` does.
fn divided(debian: &Debian, scopes: &[String], meanwhile: &str) -> f64 {
    let (begun, mut sums, mut looks) = (Instant::now(), vec![0.0; scopes.len()], 0.0);
    let mut turns = 0;
    while begun.elapsed() < WINDOW {
        let turn = Instant::now();
        debian.ok(meanwhile);
        turns += 1;
        while turn.elapsed() < APART {
            let now = pages(debian, scopes);
            sums.iter_mut().zip(now).for_each(|(sum, mib)| *sum += mib);
            looks += 1.0;
            std::thread::sleep(Duration::from_millis(500));
        }
    }
    let mean: Vec<f64> = sums.iter().map(|sum| sum / looks).collect();
    let weights = DOCKER.map(|(_, weight)| Weight::try_from(weight).unwrap());
    let pv = pv(&weights, &mean).unwrap();
    println!("{turns} times `{meanwhile}`: {mean:.0?} MiB of file pages, PV {pv:.3}");
    pv
}

fn follow_dockers_weights(debian: &Debian) {
    let scopes = start(debian);
    std::thread::sleep(SETTLE);
    let without = divided(debian, &scopes, ":");
    let with = divided(debian, &scopes, "/root/deb systemctl daemon-reload");
    println!("{}", debian.ok("/root/deb justitia status"));
    debian.step("done");
    assert!(
        with <= without + FURTHER,
        "PV {with} with reloads, {without} without"
    );
}

#[test]
#[ignore = "minutes under emulation: make test-runtimes"]
fn pages_follow_dockers_weights_over_reloads() {
    follow_dockers_weights(&boot(BOOKWORM));
}

#[test]
#[ignore = "minutes under emulation: make test-runtimes"]
fn pages_follow_dockers_weights_without_bfq() {
    follow_dockers_weights(&boot_without_bfq(BOOKWORM));
}
