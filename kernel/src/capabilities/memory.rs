//! Reclaim, the LRU, swap and pressure.

use std::path::Path;

use rustix::io::Errno;

use super::State;
use super::finding::{Finding, no, not_applicable, readable, unknown, yes};
use crate::buffer::read_path;
use crate::cgroup::Cgroup;
use crate::error::Error;
use crate::lru_gen;
use crate::proc::Meminfo;
use crate::psi::Psi;

pub(super) fn memory_reclaim(root: &Cgroup) -> Finding {
    match root.open("memory.reclaim", rustix::fs::OFlags::PATH) {
        Ok(_) => yes("the root has the file"),
        Err(error) if error.is_missing() => {
            no("the root lacks the file: needs Linux 5.19 and the memory controller in cgroup v2")
        }
        Err(error) => unknown(&error),
    }
}

pub(super) fn mglru(sys: &Path) -> Finding {
    let path = sys.join("kernel/mm/lru_gen/enabled");
    match lru_gen::enabled(sys) {
        Ok(Some(bits)) if bits & 1 == 1 => yes(format!("{path:?} says {bits:#06x}")),
        Ok(Some(bits)) => no(format!(
            "{path:?} says {bits:#06x}: the classic LRU is in use"
        )),
        Ok(None) => (
            State::Unknown,
            format!("{path:?}: expected a number such as 0x0007"),
        ),
        Err(error) if error.is_missing() => {
            no("the kernel is built without CONFIG_LRU_GEN: the classic LRU is in use")
        }
        Err(error) => unknown(&error),
    }
}

pub(super) fn mglru_debug(sys: &Path) -> Finding {
    if !sys.join("kernel/mm/lru_gen").exists() {
        return not_applicable("the kernel is built without CONFIG_LRU_GEN");
    }
    readable(&sys.join("kernel/debug/lru_gen"), "mount debugfs, as root")
}

pub(super) fn swap(proc: &Path) -> Finding {
    let path = proc.join("meminfo");
    match read_path(&path, Meminfo::parse) {
        Ok(Ok(info)) if info.swap_total > 0 => {
            yes(format!("{} MiB of swap", info.swap_total >> 20))
        }
        Ok(Ok(_)) => no("no swap is on"),
        Ok(Err(source)) => unknown(&Error::Parse { path, source }),
        Err(error) => unknown(&error),
    }
}

pub(super) fn psi(proc: &Path) -> Finding {
    const BOOT: &str = "needs CONFIG_PSI, and psi=1 on the kernel command line \
                        where it is off by default";
    let path = proc.join("pressure/memory");
    match read_path(&path, Psi::parse) {
        Ok(Ok(_)) => yes(format!("{path:?} can be read")),
        Ok(Err(source)) => unknown(&Error::Parse { path, source }),
        Err(error) if error.is_missing() || error.errno() == Some(Errno::OPNOTSUPP) => {
            no(format!("{error}: {BOOT}"))
        }
        Err(error) => unknown(&error),
    }
}
