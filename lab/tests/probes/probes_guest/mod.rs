//! What runs in the guest: opens the probes, starts cases in cgroups, compares.

mod churn;
mod cost;
mod demand;
mod hits;
mod io_calls;
mod many_cgroups;
mod map_full;
mod paths;
mod reuse;
mod waits;

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use justitia_kernel::capabilities::State;
use justitia_kernel::cgroup::CgroupId;
use justitia_kernel::probes::{Counters, IoProbes, Limits};

const CGROUPS: &str = "/sys/fs/cgroup";

#[test]
#[ignore = "run by the other tests, in a guest"]
fn in_guest() {
    let Ok(part) = std::env::var("PROBES_PART") else {
        return;
    };
    let directory = directory();
    match part.as_str() {
        "paths" => paths::compare(&directory),
        "hits" => hits::compare(&directory),
        "demand" => demand::compare(&directory),
        "waits" => waits::compare(&directory),
        "reuse" => reuse::compare(&directory),
        "snapshots" => reuse::snapshots(&directory),
        "map_full" => map_full::compare(&directory),
        "churn" => churn::run(&directory),
        "many_cgroups" => many_cgroups::compare(&directory),
        "time" | "instructions" => cost::measure(&directory, &format!("cost/{part}")),
        other => panic!("no part {other}"),
    }
}

/// Prints what it did, as `NAME=NUMBER` words on a line that begins with `truth`.
#[test]
#[ignore = "run by in_guest"]
fn one_case() {
    let Ok(case) = std::env::var("PROBES_CASE") else {
        return;
    };
    match case.split_once('/') {
        Some(("path", name)) => paths::run(name, &directory()),
        Some(("hit", name)) => hits::run(name, &directory()),
        Some(("waits", name)) => waits::run(name, &directory()),
        Some(("churn", name)) => churn::work(name, &directory()),
        Some(("demand", name)) => demand::run(name, &directory()),
        Some(("reuse", name)) => reuse::run(name, &directory()),
        Some(("many_cgroups", _)) => many_cgroups::work(&directory()),
        Some(("cost", what)) => cost::work(what, &directory()),
        _ => panic!("no case {case}"),
    }
}

fn directory() -> PathBuf {
    std::env::var_os("PROBES_DIRECTORY").unwrap().into()
}

/// A cgroup of its own, removed at the end.
struct Tenant {
    path: PathBuf,
    id: CgroupId,
}

impl Tenant {
    fn new(name: &str) -> Self {
        Self::at(Path::new(CGROUPS).join(name.replace([' ', '/'], "-")))
    }

    fn new_below(parent: &Self, name: &str) -> Self {
        Self::at(parent.path.join(name))
    }

    fn at(path: PathBuf) -> Self {
        std::fs::create_dir(&path).unwrap();
        let id = CgroupId(std::fs::metadata(&path).unwrap().ino());
        Self { path, id }
    }

    /// Runs a command in it, to its end. Everything that it does is counted: the guest's own
    /// programs lie in memory and do not count.
    fn run(&self, command: &mut Command) -> Output {
        let mut shell = Command::new("sh");
        shell
            .arg("-c")
            .arg("echo 0 >$0/cgroup.procs && exec \"$@\"")
            .arg(&self.path)
            .arg(command.get_program())
            .args(command.get_args());
        for (name, value) in command.get_envs() {
            shell.env(name, value.unwrap_or_default());
        }
        let output = shell.output().unwrap();
        assert!(output.status.success(), "{command:?}: {output:?}");
        output
    }

    /// A case of this program in it: what it says it did.
    fn case(&self, case: &str) -> HashMap<String, u64> {
        let output = self.run(
            Command::new(std::env::current_exe().unwrap())
                .args([
                    "--ignored",
                    "--exact",
                    "probes_guest::one_case",
                    "--nocapture",
                ])
                .env("PROBES_CASE", case)
                .env("PROBES_DIRECTORY", directory()),
        );
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().find_map(|line| line.split_once("truth "));
        let (_, line) = line.unwrap_or_else(|| panic!("{case} said nothing: {text}"));
        line.split_whitespace()
            .map(|word| {
                let (name, value) = word.split_once('=').unwrap();
                (name.to_owned(), value.parse().unwrap())
            })
            .collect()
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        for _ in 0..200 {
            if std::fs::remove_dir(&self.path).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

fn open() -> IoProbes {
    let probes = IoProbes::attach(&Limits::default()).unwrap();
    for status in probes.status() {
        assert_eq!(status.state, State::Yes, "{status:?}");
    }
    probes
}

fn counted(probes: &mut IoProbes, tenant: &Tenant) -> Counters {
    let sample = probes.sample().unwrap();
    assert_eq!(sample.dropped_events, 0);
    assert_eq!(sample.overflow, Counters::default());
    sample.cgroups.get(&tenant.id).copied().unwrap_or_default()
}

fn drop_caches() {
    rustix::fs::sync();
    std::fs::write("/proc/sys/vm/drop_caches", "1").unwrap();
}
