//! Contended locks on the way to a page, provoked deliberately, against the kernel's own stack traces
//! of every wait.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, OFlags};

use super::{Tenant, io_calls, open};
use justitia_kernel::probes::{IoProbes, Limits, Probe};

const TRACING: &str = "/sys/kernel/tracing";
const WAITS: &str = "/sys/kernel/tracing/events/lock/contention_begin";
/// The functions that the probe takes for the way to a page, as far as they are in traces.
const WAY: [&str; 9] = [
    "__alloc_pages",
    "__alloc_pages_noprof",
    "filemap_add_folio",
    "folio_add_lru",
    "folio_mark_accessed",
    "folios_put_refs",
    "release_pages",
    "__folio_batch_release",
    "__pagevec_release",
];
const THREADS: usize = 16;
/// What each takes at a time, in bytes.
const SIZE: u64 = 4 << 20;
const LONG: Duration = Duration::from_secs(4);
const BRIEF: Duration = Duration::from_millis(500);
/// More than the few that there is room for at the end.
const TENANTS: u32 = 20;

pub(super) fn compare(directory: &Path) {
    let tracing =
        |name: &str, value: &str| std::fs::write(Path::new(TRACING).join(name), value).unwrap();
    tracing("buffer_size_kb", "65536");
    let mut probes = open();
    let allocating = Tenant::new("locks allocate");
    let renaming = Tenant::new("locks rename");
    let idle = Tenant::new("locks idle");
    for (tenant, case) in [(&allocating, "allocate"), (&renaming, "rename")] {
        tracing("trace", "");
        std::fs::write(Path::new(WAITS).join("trigger"), "stacktrace").unwrap();
        probes.trace_locks(true).unwrap();
        std::fs::write(Path::new(WAITS).join("enable"), "1").unwrap();
        tenant.case(&format!("locks/{case}"));
        std::fs::write(Path::new(WAITS).join("enable"), "0").unwrap();
        let counted = probes.lock_contention().unwrap();
        probes.trace_locks(false).unwrap();
        std::fs::write(Path::new(WAITS).join("trigger"), "!stacktrace").unwrap();
        let trace = std::fs::read_to_string(Path::new(TRACING).join("trace")).unwrap();
        let (traced, unknown) = on_the_way(&trace);
        let all = trace.matches("contention_begin:").count();
        let sum: u64 = counted.values().map(|one| one.count).sum();
        let own = counted.get(&tenant.id).copied().unwrap_or_default();
        println!(
            "{case}: {all} waits, {traced} on the way to a page by their stacks, {unknown} without one; \
             counted {sum}, \
             of them {} in its own cgroup, {} us each",
            own.count,
            own.wait_ns / own.count.max(1) / 1000
        );
        assert!(!trace.contains("LOST"), "the trace's buffer was too small");
        // At both ends one may be seen by one of the two only.
        assert!(
            (traced.saturating_sub(2)..=traced + unknown + 2).contains(&sum),
            "{case}: counted {sum}, traced {traced}, {unknown} without a stack"
        );
        assert!(!counted.contains_key(&idle.id));
        if case == "allocate" {
            assert!(
                own.count >= 10,
                "no contention on the way to a page: {own:?}"
            );
            assert!(own.count * 10 >= sum * 8, "{own:?} of {sum}");
            assert!(own.wait_ns > 0);
        } else {
            assert!(all >= 10, "no contention among the renamers");
            assert!(
                own.count * 2 < u64::try_from(all).unwrap(),
                "{own:?} of {all}"
            );
        }
    }
    let _ = Command::new("rm")
        .arg("-r")
        .arg(directory.join("renamed"))
        .status();
    drop(probes);
    beyond_the_room();
}

/// What finds the map full is reported, also when tracing is off again.
fn beyond_the_room() {
    let limits = Limits {
        max_cgroups: 16,
        ..Limits::default()
    };
    let mut probes = IoProbes::attach(&limits).unwrap();
    probes.trace_locks(true).unwrap();
    let tenants: Vec<_> = (0..TENANTS)
        .map(|number| {
            let tenant = Tenant::new(&format!("locks {number}"));
            tenant.case("locks/briefly");
            tenant
        })
        .collect();
    let lost = probes.dropped(Probe::LockContention).unwrap();
    let kept = probes.lock_contention().unwrap().len();
    println!("waits of {kept} cgroups counted, {lost} waits of others not");
    assert!(kept <= 16 && lost > 0, "{kept} of {}", tenants.len());
    probes.trace_locks(false).unwrap();
    assert!(probes.dropped(Probe::LockContention).unwrap() >= lost);
}

/// How many of the traced waits have a function of the way in their stacks, and how many no stack.
fn on_the_way(trace: &str) -> (u64, u64) {
    let (mut found, mut unknown) = (0, 0);
    for event in trace.split("contention_begin:").skip(1) {
        let mut stack = event
            .lines()
            .filter_map(|line| line.trim().strip_prefix("=> "))
            .map(str::trim)
            .peekable();
        if stack.peek().is_none() {
            unknown += 1;
        } else if stack.any(|name| WAY.contains(&name)) {
            found += 1;
        }
    }
    (found, unknown)
}

/// Runs in a tenant's cgroup: many threads that do the same for a while.
pub(super) fn run(case: &str, directory: &Path) {
    let begin = Instant::now();
    if case == "rename" {
        std::fs::create_dir_all(directory.join("renamed")).unwrap();
    }
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            scope.spawn(move || {
                let name = format!("/dev/shm/allocate-{number}");
                let file = io_calls::open(Path::new(&name), OFlags::RDWR);
                let long = if case == "briefly" { BRIEF } else { LONG };
                while begin.elapsed() < long {
                    if case == "rename" {
                        rename(directory, number);
                    } else {
                        allocate(&file);
                    }
                }
            });
        }
    });
    println!("\ntruth threads={THREADS}");
}

/// Takes new pages for a file in memory, and gives them back.
fn allocate(file: &std::fs::File) {
    rustix::fs::fallocate(file, FallocateFlags::empty(), 0, SIZE).unwrap();
    rustix::fs::ftruncate(file, 0).unwrap();
}

fn rename(directory: &Path, number: usize) {
    let [one, other] =
        ["one", "other"].map(|name| directory.join(format!("renamed/{number}-{name}")));
    std::fs::write(&one, "").unwrap();
    for _ in 0..16 {
        std::fs::rename(&one, &other).unwrap();
        std::fs::rename(&other, &one).unwrap();
    }
}
