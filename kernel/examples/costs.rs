//! What one read of each interface costs here: `costs [CGROUP]`, relative to the mount.
//!
//! Figures include the kernel's own work, which is most of it. Run it in the guest that is meant:
//! under emulation everything takes about ten times as long.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use justitia_kernel::cgroup::{Cgroup, CgroupFs, StatFdCache};
use justitia_kernel::error::Result;
use justitia_kernel::memory::MemoryStat;
use justitia_kernel::proc::ProcFs;
use justitia_kernel::psi::PsiResource;

fn main() -> Result<()> {
    let path = std::env::args_os()
        .nth(1)
        .map_or_else(PathBuf::new, PathBuf::from);
    let fs = CgroupFs::discover()?;
    let cgroup = Cgroup::open_at(&fs, &path)?;
    let proc = ProcFs::open("/proc".as_ref())?;

    report("memory.stat", || cgroup.memory_stat());
    report("memory.current", || cgroup.memory_current());
    let kept = StatFdCache::open(&cgroup)?;
    report("memory.stat, kept open", || kept.memory_stat());
    report("memory.current, kept open", || kept.current());
    report("io.stat, kept open", || kept.io_stat());
    report("io.pressure, kept open", || kept.io_pressure());
    report("memory.pressure, kept open", || kept.memory_pressure());
    report("memory.low", || cgroup.memory_low());
    report("memory.pressure", || cgroup.pressure(PsiResource::Memory));
    report("cgroup.events", || cgroup.events());
    report("cgroup.procs", || cgroup.has_other_processes(1));
    report("cpu.stat", || cgroup.cpu_usage_usec());
    report("io.stat", || cgroup.io_stat());
    report("io.weight", || cgroup.io_weight());
    report("children", || cgroup.children());
    report("open again", || Cgroup::open_at(&fs, &path));
    report("/proc/meminfo", || proc.meminfo());
    report("/proc/vmstat", || proc.vmstat());
    report("/proc/zoneinfo", || proc.zoneinfo());
    report("/proc/pressure/memory", || {
        proc.pressure(PsiResource::Memory)
    });

    let text = std::fs::read(cgroup.full_path().join("memory.stat")).unwrap_or_default();
    report("memory.stat, parsing alone", || {
        Ok(MemoryStat::parse(&text).is_ok())
    });
    Ok(())
}

/// Runs `read` for a fifth of a second and prints microseconds a call.
fn report<T>(name: &str, read: impl Fn() -> Result<T>) {
    if let Err(error) = read() {
        println!("{name:28} {error}");
        return;
    }
    let start = Instant::now();
    let mut calls = 0_u32;
    while start.elapsed() < Duration::from_millis(200) {
        for _ in 0..16 {
            let _value = std::hint::black_box(read());
        }
        calls += 16;
    }
    let each = start.elapsed() / calls;
    println!("{name:28} {:8.2} µs", each.as_secs_f64() * 1e6);
}
