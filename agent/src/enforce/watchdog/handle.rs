//! The agent's side of the watchdog.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use super::protocol::{CLEAN_SHUTDOWN, HEARTBEAT, HEARTBEAT_PERIOD};

/// A running watchdog. Dropping it ends the watchdog in order.
#[derive(Debug)]
pub struct Watchdog {
    child: Child,
    pipe: Option<ChildStdin>,
    last_heartbeat: Instant,
    /// The agent restores all knobs itself.
    clean_shutdown: bool,
}

impl Watchdog {
    /// Starts this program again as `watchdog` of the knob journal in `state`.
    /// [`INTERRUPT`](super::INTERRUPT) has to be handled before.
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

    /// The agent ends without having restored all knobs: the watchdog tries once the agent is gone.
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
    /// A watchdog that does nothing, with its last heartbeat so long ago.
    pub(in crate::enforce) fn fake(since_heartbeat: Duration) -> Self {
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
        // The watchdog ends with its input. One that is gone already cannot be told.
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
