//! What a process costs, by `/proc`.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use justitia_share::num::to_f64;

use super::cgroup::field;

/// CPU time over a window, in processors (1.0 is one of them).
pub(super) struct CpuUsage {
    /// Of all threads.
    pub all: f64,
    /// Of the main thread alone.
    pub main: f64,
}

/// Measures the CPU usage of a process over a window.
pub(super) fn cpu_usage(pid: u32, window: Duration) -> Result<CpuUsage> {
    let (begin, before) = (Instant::now(), CpuTime::of(pid)?);
    std::thread::sleep(window);
    let after = CpuTime::of(pid)?;
    let seconds = begin.elapsed().as_secs_f64();
    let usage = |before: u64, after: u64| to_f64(after.saturating_sub(before)) / 1e9 / seconds;
    Ok(CpuUsage {
        all: usage(before.all, after.all),
        main: usage(before.main, after.main),
    })
}

/// Nanoseconds that all threads of a process have run.
pub(super) fn time_run(pid: u32) -> Result<u64> {
    Ok(CpuTime::of(pid)?.all)
}

/// Nanoseconds that a process's threads have run.
#[derive(Default)]
struct CpuTime {
    all: u64,
    main: u64,
}

impl CpuTime {
    fn of(pid: u32) -> Result<Self> {
        let tasks = format!("/proc/{pid}/task");
        let main = pid.to_string();
        let mut time = Self::default();
        for task in std::fs::read_dir(&tasks).with_context(|| format!("listing {tasks}"))? {
            let task = task?;
            // A thread may have ended: the little that it ran is lost.
            let stat = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            let ran = stat
                .split_whitespace()
                .next()
                .and_then(|ns| ns.parse::<u64>().ok())
                .unwrap_or(0);
            time.all += ran;
            if task.file_name().to_str() == Some(&main) {
                time.main += ran;
            }
        }
        Ok(time)
    }
}

/// The most memory that a process has had resident, in bytes.
pub(super) fn peak_memory(pid: u32) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status =
        std::fs::read_to_string(Path::new(&path)).with_context(|| format!("reading {path}"))?;
    Ok(field(&status, "VmHWM:") << 10)
}
