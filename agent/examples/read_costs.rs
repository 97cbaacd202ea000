//! What one look costs, file by file, on this machine: the numbers behind the monitor's pace.

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use justitia_agent::monitor::thread_cpu;
use justitia_kernel::cgroup::{Cgroup, CgroupFs};
use justitia_kernel::proc::ProcFs;
use justitia_kernel::psi::PsiResource;

fn time(name: &str, mut look: impl FnMut() -> bool) {
    const TIMES: u32 = 500;
    let (cpu, wall) = (thread_cpu(), Instant::now());
    let good = (0..TIMES).filter(|_| look()).count();
    let cpu = (thread_cpu() - cpu) / TIMES;
    println!(
        "{name:24} {cpu:>10.1?} CPU  {:>10.1?} wall  {good} of {TIMES}",
        wall.elapsed() / TIMES
    );
}

fn main() -> justitia_kernel::Result<()> {
    let fs = CgroupFs::discover()?;
    let proc = ProcFs::open(Path::new("/proc"))?;
    let path = std::env::args().nth(1).unwrap_or_default();
    let cgroup = Cgroup::open_at(&fs, Path::new(&path))?;
    time("sysinfo", || {
        black_box(rustix::system::sysinfo()).freeram > 0
    });
    time("/proc/vmstat", || black_box(proc.vmstat()).is_ok());
    time("/proc/meminfo", || black_box(proc.meminfo()).is_ok());
    time("/proc/zoneinfo", || black_box(proc.zoneinfo()).is_ok());
    time("memory.current", || {
        black_box(cgroup.memory_current()).is_ok()
    });
    time("memory.stat", || black_box(cgroup.memory_stat()).is_ok());
    time("memory.low", || black_box(cgroup.memory_low()).is_ok());
    time("memory.pressure", || {
        black_box(cgroup.pressure(PsiResource::Memory)).is_ok()
    });
    time("cpu.stat", || black_box(cgroup.cpu_usage_usec()).is_ok());
    time("cgroup.events", || black_box(cgroup.events()).is_ok());
    Ok(())
}
