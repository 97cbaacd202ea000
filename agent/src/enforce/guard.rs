//! A guard beside the agent: a tiny process that gives limits back when the agent cannot.
//!
//! It is started before the first limit is set, waits for the agent's heartbeat on its standard input, and
//! does two things. If the heartbeat stops (the agent was stopped by SIGSTOP, or hangs), it gives back
//! whatever throttles, by the journal, wakes the agent, should the kernel hold it in a write, and goes on
//! waiting. If its input ends without a farewell (the agent
//! is gone, however), it does what `justitia reset` does, unless another agent has begun already.
//!
//! It is in a process group of its own, so that what stops the agent's does not stop it. What freezes the whole
//! cgroup (`cgroup.freeze`) or machine freezes it too.

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

use super::ledger::{Back, LedgerError, Returned, lapse, reset};

/// Limits, and when the kernel writes back, of an agent that has been silent for so long are given back.
pub const SILENCE: Duration = Duration::from_secs(5);
/// After so long a silence the agent itself no longer trusts what stands ([`credits`](super::credits)): sooner than the
/// guard, so that it notices.
pub const LAPSE: Duration = Duration::from_secs(3);
/// Wakes the agent, which has to handle it: whoever sets `memory.high` reclaims, in the kernel, until less is used, and
/// for ever if the tenant takes as fast as that; a handled signal ends it. Without a handler this one does nothing.
pub const WAKE: i32 = signal_hook::consts::SIGURG;
/// The agent is heard at least this often.
const BEAT: Duration = Duration::from_secs(1);
/// What an agent that ends in order says last: it gives everything back itself.
const FAREWELL: u8 = b'!';
/// A killed agent still holds the ledger while the kernel closes its files, and in between detaches its probes one by
/// one: on a loaded machine seconds, emulated a minute. Whoever holds it for longer is the next agent.
const DYING: Duration = Duration::from_secs(180);
/// So often the guard looks whether it still does.
const LOOK: Duration = Duration::from_millis(100);
/// What cannot be given back is tried again so often,
const RETRY: Duration = Duration::from_secs(1);
/// for so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// The agent's end.
#[derive(Debug)]
pub struct Guard {
    child: Child,
    heart: Option<ChildStdin>,
    beaten: Instant,
    /// The agent gives everything back itself.
    farewell: bool,
}

impl Guard {
    /// Starts this program again as `guard` of the ledger in `state`. [`WAKE`] is to be handled before.
    ///
    /// # Errors
    /// If the program cannot be started.
    pub fn start(state: &Path) -> std::io::Result<Self> {
        let beaten = Instant::now();
        let mut child = Command::new("/proc/self/exe")
            .arg("guard")
            .arg(state)
            .arg(std::process::id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()?;
        let heart = child.stdin.take();
        Ok(Self {
            child,
            heart,
            beaten,
            farewell: true,
        })
    }

    /// How long the guard has heard nothing.
    #[must_use]
    pub fn silent_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.beaten)
    }

    /// The agent ends without having given everything back: the guard is to try, once the agent is gone.
    pub const fn take_over(&mut self) {
        self.farewell = false;
    }

    /// Tells the guard that the agent lives. Says whether the guard does.
    pub fn beat(&mut self, now: Instant) -> bool {
        if self.silent_for(now) < BEAT {
            return true;
        }
        self.beaten = now;
        // A pipe takes some thousand beats before a write would wait: a guard that is stopped for that long
        // is none.
        let alive = matches!(self.child.try_wait(), Ok(None));
        alive
            && self
                .heart
                .as_mut()
                .is_some_and(|h| h.write_all(b".").is_ok())
    }
}

#[cfg(test)]
impl Guard {
    /// A guard that does nothing, and has heard of the agent so long ago.
    pub(super) fn deaf(silent: Duration) -> Self {
        let mut child = Command::new("cat")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            heart: child.stdin.take(),
            child,
            beaten: Instant::now() - silent,
            farewell: true,
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // After a panic nothing is certain: it had better look.
        let farewell = self.farewell && !std::thread::panicking();
        // The end of its input is the end of the guard; one that is gone already needs no farewell.
        if let Some(mut heart) = self.heart.take()
            && farewell
        {
            let _ = heart.write_all(&[FAREWELL]);
        }
        // Otherwise it waits for our end.
        if farewell {
            let _ = self.child.wait();
        }
    }
}

/// Wakes the agent, if `agent` is still the process that this one was started by.
pub fn wake(agent: u32) {
    let parent = getppid().filter(|pid| u32::try_from(pid.as_raw_nonzero().get()) == Ok(agent));
    if let Some(parent) = parent
        && let Err(error) = kill_process(parent, Signal::URG)
    {
        tracing::warn!(agent, %error, "the agent could not be woken");
    }
}

/// The guard's end: waits for the heartbeat on `heart` until it ends. `wake` is called after each silence, once limits
/// were given back; `told` hears what was.
///
/// # Errors
/// If the heartbeat cannot be read.
pub fn guard<H: Read + AsFd>(
    fs: &CgroupFs,
    state: &Path,
    mut heart: H,
    silence: Duration,
    mut wake: impl FnMut(),
    mut told: impl FnMut(Result<Vec<Returned>, LedgerError>),
) -> std::io::Result<()> {
    let timeout = Timespec::try_from(silence).ok();
    let mut lapsed = false;
    let mut beats = [0; 64];
    loop {
        let ready = poll(&mut [PollFd::new(&heart, PollFlags::IN)], timeout.as_ref());
        match ready {
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
            Ok(0) => {
                if !std::mem::replace(&mut lapsed, true) {
                    told(lapse(fs, state));
                }
                wake();
                continue;
            }
            Ok(_) => {}
        }
        let count = heart.read(&mut beats)?;
        if count == 0 {
            break;
        }
        if beats.iter().take(count).any(|beat| *beat == FAREWELL) {
            return Ok(());
        }
        lapsed = false;
    }
    clean_up(fs, state, told);
    Ok(())
}

/// Gives back what an agent that is gone has left: all of it, unless another agent has begun. What cannot be given
/// back at once is tried again for a while.
fn clean_up(fs: &CgroupFs, state: &Path, mut told: impl FnMut(Result<Vec<Returned>, LedgerError>)) {
    let gone = Instant::now();
    let mut lapsed = false;
    loop {
        let done = reset(fs, state, false);
        let (again, last) = match &done {
            // The next agent has given everything back when it began.
            Err(LedgerError::Busy(_)) if gone.elapsed() >= DYING => return,
            // Limits do not wait until it is gone. If this is the next one already, it writes its own again.
            Err(LedgerError::Busy(_)) => {
                if !std::mem::replace(&mut lapsed, true) {
                    told(lapse(fs, state));
                }
                std::thread::sleep(LOOK);
                continue;
            }
            Err(error) => (!error.is_damage(), gone.elapsed() >= PATIENCE),
            Ok(done) => {
                let failed = |one: &Returned| matches!(one.back, Back::Failed { .. });
                (done.returned.iter().any(failed), gone.elapsed() >= PATIENCE)
            }
        };
        // What throttles comes back even where the lock cannot be had, or not every line is certain.
        if done.is_err() && !std::mem::replace(&mut lapsed, true) {
            told(lapse(fs, state));
        }
        if !again || last {
            return told(done.map(|done| done.returned));
        }
        std::thread::sleep(RETRY);
    }
}
