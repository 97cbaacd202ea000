//! Settings of the agent's process: signal handlers, resource limits and locked memory.

use std::sync::Arc;

use justitia_common::signals::Signals;
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::SIGXFSZ;

use super::checks::RunError;
use crate::knobs::watchdog::INTERRUPT;

/// Installs the signal handlers.
///
/// # Errors
/// If a handler cannot be installed.
pub(super) fn handle_signals() -> Result<Signals, RunError> {
    let install = || RunError::system("installing a signal handler");
    let signals = Signals::handle().map_err(install())?;
    // The handler does nothing: a pending signal interrupts a write in the kernel. The signal is delivered to this main thread,
    // which writes the knobs.
    signal_hook::flag::register(INTERRUPT, Arc::default()).map_err(install())?;
    // With this handler a write beyond the file size limit fails, as on a full file system, and does not kill the agent.
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map_err(install())?;
    Ok(signals)
}

/// Raises the limit of file descriptors: a cgroup takes three (its directory, its events, its watch). The soft limit is raised
/// to the hard one, and the hard one, if permitted, to the need of 10,000 cgroups.
pub(super) fn raise_descriptor_limit() {
    const WANTED: u64 = 32_768;
    let now = getrlimit(Resource::Nofile);
    let highest = now.maximum.map(|max| max.max(WANTED));
    let raised = Rlimit {
        current: highest,
        maximum: highest,
    };
    if setrlimit(Resource::Nofile, raised).is_err() {
        let _ = setrlimit(
            Resource::Nofile,
            Rlimit {
                current: now.maximum,
                ..now
            },
        );
    }
}

/// Locks the agent's pages as they come into use. So it does not wait for its own code and heap to be read back when memory is
/// short, which is when it is needed. A `MemoryMin=` of its unit does not help: it has no effect below a slice without one.
/// Returns whether they are locked.
///
/// They are locked only if locked memory is not limited, as in the packaged unit, whose `MemoryMax=` bounds them. A limit
/// counts address space, of which stacks and heaps reserve far more than they use, and beyond it allocations would fail.
pub(super) fn lock_memory() -> bool {
    if getrlimit(Resource::Memlock).current.is_some() {
        return false;
    }
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    match mlockall(flags) {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(%error, "the agent's memory could not be locked: it may wait for its own pages when memory is short");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of a line of `/proc/self/status`, KiB.
    fn status(key: &str) -> u64 {
        let text = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = text.lines().find(|line| line.starts_with(key)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn memory_is_locked_where_that_is_not_limited_and_only_what_is_used() {
        let set = |maximum| {
            let current = maximum;
            setrlimit(Resource::Memlock, Rlimit { current, maximum })
        };
        let before = getrlimit(Resource::Memlock);
        if before.current.is_some() && set(None).is_err() {
            assert!(!lock_memory(), "limited, and we may not raise it");
            return;
        }
        assert!(lock_memory());
        let resident = status("VmRSS:");
        let reserved = vec![0_u8; 1 << 30];
        assert!(status("VmLck:") >= 1 << 20, "it is locked once it is used");
        assert!(status("VmRSS:") < resident + (512 << 10));
        drop(reserved);
        rustix::mm::munlockall().unwrap();
        set(Some(64 << 10)).unwrap();
        assert!(!lock_memory());
        assert_eq!(status("VmLck:"), 0);
    }
}
