//! What one window of a policy measured.

use std::time::Duration;

use justitia_lab::vm::ShResult;
use serde_json::Value;

use super::cache_daemon::lookups as lookups_of;
use super::host::Host;
use super::retry::fail;
use super::scale::{DOCUMENTS, FILES, KEYS, ROWS};
use super::slow_disk::REQUEST;

/// The containers, as in the paper's table; PostgreSQL is in MongoDB's place.
pub(crate) const CONTAINERS: [&str; 4] = ["postgres", "mariadb", "redis", "web"];

/// Functions of the guest's scripts.
const LIB: &str = include_str!("guest.sh");

/// One container in a window.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Container {
    /// Operations a second, as its client counts them.
    pub throughput: f64,
    /// MiB of the guest's memory, of swap, and of the host's cache, at the end.
    pub memory: f64,
    pub swapped: f64,
    pub cache: f64,
}

/// A window.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    /// In the order of [`CONTAINERS`].
    pub containers: [Container; 4],
    /// Parts of the window in which the disk, and the guest's processors, were busy.
    pub disk: f64,
    pub processors: f64,
    /// Blocks looked up in the host's cache, and found there.
    pub lookups: f64,
    pub hits: f64,
}

impl Window {
    /// One container of [`CONTAINERS`].
    pub(crate) fn of(&self, name: &str) -> Container {
        let at = CONTAINERS.iter().position(|known| *known == name);
        self.containers[at.unwrap()]
    }

    /// All operations a second.
    pub(crate) fn aggregate(&self) -> f64 {
        self.containers.iter().map(|one| one.throughput).sum()
    }
}

/// Runs a script in the guest that must succeed.
#[track_caller]
pub(crate) fn run(host: &Host, script: &str) -> String {
    let sizes = format!("KEYS={KEYS} ROWS={ROWS} DOCUMENTS={DOCUMENTS} FILES={FILES}");
    let script = format!("{sizes}\n. /run/lib\n{script}");
    let guest = host.vm.guest();
    let ShResult {
        status,
        stdout,
        stderr,
        ..
    } = guest
        .sh_within(&script, Duration::from_secs(400))
        .unwrap_or_else(|error| fail(&error));
    if status == 0 {
        return stdout;
    }
    let logs = guest.sh("tail -n 20 /run/*.log; dmesg | tail -n 20");
    let logs = logs.map(|done| done.stdout).unwrap_or_default();
    panic!("expected this to succeed: {script}\nfound {stdout}\n{stderr}\nthe logs:\n{logs}");
}

/// Makes the functions known, and mounts the disks.
pub(crate) fn prepare(host: &Host) {
    let pushed = host.vm.guest().push("/run/lib", 0o644, LIB.as_bytes());
    pushed.unwrap_or_else(|error| fail(&error));
    run(host, "mounts");
}

/// The clients' figures of `seconds`.
pub(crate) fn window(host: &Host, seconds: u32) -> Window {
    let (lookups, hits) = lookups_of(&host.stats());
    let requests = host.disk.requests();
    let text = run(
        host,
        &format!("processors; clients {seconds} && processors && memory"),
    );
    let busy = number(host.disk.requests() - requests) * REQUEST.as_secs_f64();
    let stats = host.stats();
    let after = lookups_of(&stats);
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(' ').collect()).collect();
    let one = |words: &[&str], n: usize| -> f64 {
        let line = lines.iter().find(|line| line.starts_with(words));
        let found = line.and_then(|line| line.get(n)?.parse().ok());
        found.unwrap_or_else(|| panic!("expected a figure of {words:?}: {text}"))
    };
    let spent: Vec<f64> = lines
        .iter()
        .filter(|line| line.first() == Some(&"processors"))
        .flat_map(|line| line[1..].iter().map(|ticks| ticks.parse::<f64>().unwrap()))
        .collect();
    let (used, idle) = (spent[2] - spent[0], spent[3] - spent[1]);
    Window {
        containers: CONTAINERS.map(|name| Container {
            throughput: one(&[name], 1),
            memory: one(&["memory", name], 2) / MIB,
            swapped: one(&["memory", name], 3) / MIB,
            cache: pool(&stats, name) / MIB,
        }),
        disk: busy / f64::from(seconds),
        processors: used / (used + idle),
        lookups: number(after.0 - lookups),
        hits: number(after.1 - hits),
    }
}

pub(crate) const MIB: f64 = 1_048_576.0;

pub(crate) fn number(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap())
}

/// Bytes that a container's pool has.
pub(crate) fn pool(stats: &Value, name: &str) -> f64 {
    let pools = stats["cache"]["vms"][0]["pools"].as_array().unwrap();
    let pool = pools.iter().find(|pool| pool["name"] == name);
    pool.map_or(0.0, |pool| pool["memory_bytes"].as_f64().unwrap())
}
