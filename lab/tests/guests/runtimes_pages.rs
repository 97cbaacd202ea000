//! Four containers of Docker that read more than the page cache holds: what each keeps follows its weight, also while systemd is
//! reloaded again and again. Minutes under emulation: `make test-runtimes`.

use std::time::{Duration, Instant};

use justitia_share::{Weight, pv};

use super::commands::BOOKWORM;
use super::package::debian::Debian;
use super::runtimes::{DOCKER, START, SYSTEMD, boot, boot_without_bfq, start_docker};

/// Until the pages are divided, the two minutes included for which accesses are observed first, and for how long they are looked
/// at each time.
const SETTLE: Duration = Duration::from_secs(240);
const WINDOW: Duration = Duration::from_secs(60);
/// A reload of systemd each.
const APART: Duration = Duration::from_secs(5);
/// How much further from the weights the pages may be with reloads than without. The goal is 0.05.
const FURTHER: f64 = 0.1;
/// Memory that nothing can take, MiB, so that little has to be read until the rest is full.
const BALLAST: u64 = 1000;
/// What each reads again and again, MiB: more than its part of the page cache, all together more than all of it.
const FILES: [u64; 4] = [100, 160, 300, 560];
/// What the disk delivers, bytes a second: slow enough that the emulated processor rests.
const SPEED: u64 = 12_000_000;
/// Where it rests less the pages say how late the agent was, and nothing is judged by them.
const RESTS: f64 = 0.3;

/// Starts the containers. Returns where their cgroups are.
fn start(debian: &Debian) -> Vec<String> {
    start_docker(debian, SYSTEMD);
    for ((name, weight), mib) in DOCKER.into_iter().zip(FILES) {
        debian.ok_within(
            START,
            &format!("dd if=/dev/zero of=/debian/data/{name} bs=1M count={mib} && sync"),
        );
        debian.ok_within(START, &format!(
            "/root/deb docker run -d --network none -v /data:/data:ro --name {name} --blkio-weight {weight} small \
                /bin/busybox sh -c 'while :; do cat /data/{name} >/dev/null; done'"
        ));
    }
    debian.ok_within(START, &format!("mkdir /ballast && mount -t tmpfs -o size=90% tmpfs /ballast && dd if=/dev/zero of=/ballast/file bs=1M count={BALLAST}"));
    debian.limit_disk(SPEED);
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

/// The times of the guest's processor, proc(5).
fn processor(debian: &Debian) -> Vec<f64> {
    let text = debian.ok("head -n 1 /proc/stat");
    let times = text.split_whitespace().skip(1);
    times.map(|time| time.parse::<f64>().unwrap()).collect()
}

/// The part of the time between two of these in which it was idle or waited for the disk.
fn rested(before: &[f64], after: &[f64]) -> f64 {
    let spent: Vec<f64> = after.iter().zip(before).map(|(a, b)| a - b).collect();
    (spent[3] + spent[4]) / spent.iter().sum::<f64>()
}

/// The PV of what each holds on the mean over [`WINDOW`], with what `meanwhile` does each [`APART`], and the part of the time in
/// which the processor rested.
fn divided(debian: &Debian, scopes: &[String], meanwhile: &str) -> (f64, f64) {
    let (begun, mut sums, mut looks) = (Instant::now(), vec![0.0; scopes.len()], 0.0);
    let (mut turns, before) = (0, processor(debian));
    while begun.elapsed() < WINDOW {
        let turn = Instant::now();
        debian.ok(meanwhile);
        turns += 1;
        // Once at least: a reload may take longer.
        loop {
            let now = pages(debian, scopes);
            sums.iter_mut().zip(now).for_each(|(sum, mib)| *sum += mib);
            looks += 1.0;
            std::thread::sleep(Duration::from_millis(500));
            if turn.elapsed() >= APART {
                break;
            }
        }
    }
    let mean: Vec<f64> = sums.iter().map(|sum| sum / looks).collect();
    let weights = DOCKER.map(|(_, weight)| Weight::try_from(weight).unwrap());
    let (pv, rested) = (
        pv(&weights, &mean).unwrap(),
        rested(&before, &processor(debian)),
    );
    println!(
        "{turns} times `{meanwhile}`: {mean:.0?} MiB of file pages, PV {pv:.3}; the processor rested {:.0} % of the time",
        100.0 * rested
    );
    (pv, rested)
}

fn follow_dockers_weights(debian: &Debian) {
    let scopes = start(debian);
    std::thread::sleep(SETTLE);
    // In turn, so that what changes meanwhile counts for both.
    let turns = [":", "/root/deb systemctl daemon-reload"].repeat(2);
    let turns: Vec<(f64, f64)> = turns
        .iter()
        .map(|meanwhile| divided(debian, &scopes, meanwhile))
        .collect();
    let mean = |of: usize| (turns[of].0 + turns[of + 2].0) / 2.0;
    let (without, with) = (mean(0), mean(1));
    println!(
        "{}\nPV {without:.3} without reloads, {with:.3} with",
        debian.ok("/root/deb justitia status")
    );
    debian.step("done");
    if turns.iter().any(|(_, rested)| *rested < RESTS) {
        println!("not judged: the emulated processor was the bottleneck");
        return;
    }
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
