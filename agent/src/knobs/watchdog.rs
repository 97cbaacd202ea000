//! A watchdog process beside the agent, which restores limits when the agent cannot.
//!
//! The agent starts it before it sets the first limit. The watchdog reads the agent's heartbeat from its standard input,
//! and does two things:
//!
//! - If the heartbeat stops for [`TIMEOUT`] (the agent was stopped by SIGSTOP, or hangs), it restores all knobs that throttle,
//!   as the journal names them. It then interrupts the agent, in case the kernel holds it in a write, and keeps waiting.
//! - If its input ends without `CLEAN_SHUTDOWN` (the agent has ended), it does the same as `justitia reset`, unless another
//!   agent has started.
//!
//! It has a process group of its own, so that a signal to the agent's group does not reach it. Freezing the whole cgroup
//! (`cgroup.freeze`) or the machine also freezes the watchdog.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use justitia_kernel::cgroup::CgroupFs;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, getppid, kill_process};
use rustix::time::Timespec;

use super::lock::KnobStoreError;
use super::put_back::RestoredKnob;
use super::restore::{LeftLimits, reset, restore_limits};

/// After this time without a heartbeat the watchdog restores the limits, and `vm.dirty_background_ratio`.
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// After this time without a heartbeat the agent itself no longer relies on its limits ([`credits`](crate::device::credits)).
/// It is shorter than [`TIMEOUT`], so that the agent notices first.
pub const LEASE_EXPIRY: Duration = Duration::from_secs(3);
/// The signal that interrupts the agent, which must handle it. A process that sets `memory.high` reclaims in the kernel until
/// the usage is below it: without end if the tenant allocates as fast. A handled signal ends that. A process without a handler
/// ignores this signal.
pub const INTERRUPT: i32 = signal_hook::consts::SIGURG;
/// The shortest time between heartbeats.
pub(super) const HEARTBEAT_PERIOD: Duration = Duration::from_secs(1);
/// The byte of a heartbeat.
pub(super) const HEARTBEAT: u8 = b'.';
/// The last byte of an agent that ends in order: it restores all knobs itself.
pub(super) const CLEAN_SHUTDOWN: u8 = b'!';

// In the agent.

/// A running watchdog. Dropping it ends the watchdog in order.
#[derive(Debug)]
pub struct Watchdog {
    child: Child,
    pipe: Option<ChildStdin>,
    last_heartbeat: Instant,
    /// Whether the agent restores all knobs itself.
    clean_shutdown: bool,
}

impl Watchdog {
    /// Starts this program again as `watchdog` of the knob journal in `state`. [`INTERRUPT`] must be handled before.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn start(state: &Path) -> std::io::Result<Self> {
        let last_heartbeat = Instant::now();
        let mut child = Command::new("/proc/self/exe")
            .arg("watchdog")
            .arg(state)
            .arg(std::process::id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()?;
        let pipe = child.stdin.take();
        Ok(Self {
            child,
            pipe,
            last_heartbeat,
            clean_shutdown: true,
        })
    }

    /// The time since the last heartbeat.
    #[must_use]
    pub fn since_heartbeat(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last_heartbeat)
    }

    /// The agent ends with unrestored knobs: the watchdog retries them afterwards.
    pub const fn take_over(&mut self) {
        self.clean_shutdown = false;
    }

    /// Sends a heartbeat, if one is due. Returns whether the watchdog is alive.
    pub fn heartbeat(&mut self, now: Instant) -> bool {
        if self.since_heartbeat(now) < HEARTBEAT_PERIOD {
            return true;
        }
        self.last_heartbeat = now;
        // A pipe takes some thousand heartbeats before a write blocks. A watchdog that was stopped for that long is useless.
        let alive = matches!(self.child.try_wait(), Ok(None));
        alive
            && self
                .pipe
                .as_mut()
                .is_some_and(|pipe| pipe.write_all(&[HEARTBEAT]).is_ok())
    }
}

#[cfg(test)]
impl Watchdog {
    /// A watchdog that does nothing, with its last heartbeat this long ago.
    pub(crate) fn fake(since_heartbeat: Duration) -> Self {
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            pipe: child.stdin.take(),
            child,
            last_heartbeat: Instant::now() - since_heartbeat,
            clean_shutdown: true,
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // After a panic nothing is certain: the watchdog checks.
        let clean = self.clean_shutdown && !std::thread::panicking();
        // The watchdog ends with its input. It may have ended already: then the write fails.
        if let Some(mut pipe) = self.pipe.take()
            && clean
        {
            let _ = pipe.write_all(&[CLEAN_SHUTDOWN]);
        }
        // Otherwise it waits for the agent's end.
        if clean {
            let _ = self.child.wait();
        }
    }
}

// In the watchdog's process.

/// A killed agent still holds the lock while the kernel closes its files and detaches its probes one by one. That takes seconds
/// on a loaded machine, and a minute on an emulated one. If the lock is held for longer, another agent holds it.
const EXIT_TIMEOUT: Duration = Duration::from_secs(180);
/// The time between two checks of the lock.
const LOCK_POLL: Duration = Duration::from_millis(100);
/// The time between two tries of failed restores.
const RESTORE_RETRY: Duration = Duration::from_secs(1);
/// Failed restores are retried for this long after the agent's exit.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(60);

/// The results of a restore.
type Restored = Result<Vec<RestoredKnob>, KnobStoreError>;

/// Interrupts the agent with a signal, if `agent` is still this process's parent.
pub fn interrupt(agent: u32) {
    let parent = getppid().filter(|pid| u32::try_from(pid.as_raw_nonzero().get()) == Ok(agent));
    if let Some(parent) = parent
        && let Err(error) = kill_process(parent, Signal::URG)
    {
        tracing::warn!(agent, %error, "the agent could not be interrupted");
    }
}

/// Whether nothing has to be retried.
fn is_complete(restored: &Restored) -> bool {
    let complete = |all: &Vec<RestoredKnob>| all.iter().all(|one| !one.outcome.is_failed());
    restored.as_ref().is_ok_and(complete)
}

/// Reads the heartbeat from `pipe` until its end. After `timeout` without a heartbeat it restores the limits and calls
/// `interrupt`. After each further `timeout` it calls that again, and retries failed restores. `report` receives the results of
/// each restore.
///
/// # Errors
/// If the pipe cannot be read.
pub fn watch<P: Read + AsFd>(
    fs: &CgroupFs,
    state: &Path,
    mut pipe: P,
    timeout: Duration,
    mut interrupt: impl FnMut(),
    mut report: impl FnMut(Restored),
) -> std::io::Result<()> {
    let timeout = Timespec::try_from(timeout).ok();
    let mut restored = false;
    let mut bytes = [0; 64];
    loop {
        let ready = poll(&mut [PollFd::new(&pipe, PollFlags::IN)], timeout.as_ref());
        match ready {
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
            Ok(0) => {
                if !restored {
                    let done = restore_limits(fs, state);
                    restored = is_complete(&done);
                    report(done);
                }
                interrupt();
                continue;
            }
            Ok(_) => {}
        }
        let count = pipe.read(&mut bytes)?;
        if count == 0 {
            break;
        }
        if bytes.iter().take(count).any(|byte| *byte == CLEAN_SHUTDOWN) {
            return Ok(());
        }
        restored = false;
    }
    reset_after_exit(fs, state, report);
    Ok(())
}

/// Restores all knobs of an agent that has ended, unless another agent has started. Failures are retried for a while.
fn reset_after_exit(fs: &CgroupFs, state: &Path, mut report: impl FnMut(Restored)) {
    let exited = Instant::now();
    let mut limits = LimitsAfterExit::default();
    loop {
        let done = reset(fs, state, false);
        let retry = match &done {
            // Another agent has restored all knobs at its start.
            Err(error) if error.is_busy() && exited.elapsed() >= EXIT_TIMEOUT => return,
            // Limits are restored before the agent's files are closed. If another agent holds the lock already, it sets its
            // limits again; retries then concern only those of the ended agent.
            Err(error) if error.is_busy() => {
                limits.restore(fs, state, &mut report);
                std::thread::sleep(LOCK_POLL);
                continue;
            }
            Err(error) if error.is_corruption() => false,
            Err(_) => true,
            Ok(done) => done.restored.iter().any(|one| one.outcome.is_failed()),
        };
        // Limits are restored even if the lock cannot be used, or the journal is corrupt.
        let limits_complete = done.is_ok() || limits.restore(fs, state, &mut report);
        if limits_complete && !retry || exited.elapsed() >= RESTORE_TIMEOUT {
            return report(done.map(|done| done.restored));
        }
        std::thread::sleep(RESTORE_RETRY);
    }
}

/// The limits of an agent that has ended, while its journal cannot be taken over.
#[derive(Default)]
struct LimitsAfterExit {
    /// Limits not restored yet; `None` until the journal was read. It is read only once: later it may be another agent's, with
    /// limits of its own.
    left: Option<LeftLimits>,
    tried_at: Option<Instant>,
    complete: bool,
}

impl LimitsAfterExit {
    /// Restores them, at most once in [`RESTORE_RETRY`], until all are restored; returns whether they are. Reports the first
    /// try and the one that completes it.
    fn restore(&mut self, fs: &CgroupFs, state: &Path, report: &mut impl FnMut(Restored)) -> bool {
        let early = self.tried_at.is_some_and(|at| at.elapsed() < RESTORE_RETRY);
        if self.complete || early {
            return self.complete;
        }
        let first = self.tried_at.replace(Instant::now()).is_none();
        let done = self.try_restore(fs, state);
        self.complete = is_complete(&done);
        if self.complete || first {
            report(done);
        }
        self.complete
    }

    fn try_restore(&mut self, fs: &CgroupFs, state: &Path) -> Restored {
        let left = match &mut self.left {
            Some(left) => left,
            none => none.insert(LeftLimits::read(state)?),
        };
        Ok(left.restore(fs))
    }
}
