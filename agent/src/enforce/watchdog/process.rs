//! The watchdog process.

use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use justitia_kernel::cgroup::CgroupFs;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, getppid, kill_process};
use rustix::time::Timespec;

use super::protocol::CLEAN_SHUTDOWN;
use crate::enforce::knob_store::{KnobStoreError, LeftLimits, RestoredKnob, reset, restore_limits};

/// A killed agent still holds the lock while the kernel closes its files, and detaches its probes one by one in between.
/// That takes seconds on a loaded machine, and a minute on an emulated one. If the lock is held for longer, another agent
/// holds it.
const EXIT_TIMEOUT: Duration = Duration::from_secs(180);
/// The watchdog checks this often whether the lock is still held.
const LOCK_POLL: Duration = Duration::from_millis(100);
/// Failed restores are retried this often.
const RESTORE_RETRY: Duration = Duration::from_secs(1);
/// Failed restores are retried for this long after the agent's exit.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(60);

/// The results of a restore.
type Restored = Result<Vec<RestoredKnob>, KnobStoreError>;

/// Interrupts the agent with a signal, if `agent` is still the process that has started this one.
pub fn interrupt(agent: u32) {
    let parent = getppid().filter(|pid| u32::try_from(pid.as_raw_nonzero().get()) == Ok(agent));
    if let Some(parent) = parent
        && let Err(error) = kill_process(parent, Signal::URG)
    {
        tracing::warn!(agent, %error, "the agent could not be interrupted");
    }
}

/// Whether nothing of it has to be tried again.
fn is_complete(restored: &Restored) -> bool {
    let complete = |all: &Vec<RestoredKnob>| all.iter().all(|one| !one.outcome.is_failed());
    restored.as_ref().is_ok_and(complete)
}

/// Reads the heartbeat from `pipe` until its end. After `timeout` without a heartbeat it restores the limits and calls
/// `interrupt`. After each further `timeout` it calls that again, and restores what could not be restored before. `report`
/// receives the results of each restore.
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

/// Restores all knobs that an agent which is gone has left, unless another agent has started. What fails is tried again
/// for a while.
fn reset_after_exit(fs: &CgroupFs, state: &Path, mut report: impl FnMut(Restored)) {
    let exited = Instant::now();
    let mut limits = LimitsAfterExit::default();
    loop {
        let done = reset(fs, state, false);
        let retry = match &done {
            // Another agent has restored all knobs when it started.
            Err(error) if error.is_busy() && exited.elapsed() >= EXIT_TIMEOUT => return,
            // Limits are restored before the agent's files are closed. If another agent holds the lock already, it sets its
            // limits again; what is tried again then is what the one that is gone has left.
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

/// The limits of an agent that is gone, while its journal cannot be taken over.
#[derive(Default)]
struct LimitsAfterExit {
    /// Those that are not restored yet; `None` until the journal could be read. It is read once: by the second time it may
    /// be that of another agent, which has set limits of its own.
    left: Option<LeftLimits>,
    tried_at: Option<Instant>,
    complete: bool,
}

impl LimitsAfterExit {
    /// Restores them, at most once in [`RESTORE_RETRY`], until that is complete once; says whether it is. Reports the first
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
