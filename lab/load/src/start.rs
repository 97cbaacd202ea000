//! Beginning together: several instances prepare, then start at the same moment.

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};

/// How often the start file is looked for.
const POLL: Duration = Duration::from_millis(5);

/// What to wait for before the run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Start {
    /// Made when the instance is prepared and only waits.
    pub ready: Option<PathBuf>,
    /// Waited for until it exists.
    pub wait_for: Option<PathBuf>,
    /// Waited for until CLOCK_MONOTONIC reads this, in nanoseconds.
    pub at: Option<u64>,
}

impl Start {
    /// Says that this instance is prepared.
    ///
    /// # Errors
    /// The ready file cannot be made.
    pub(crate) fn ready(&self) -> Result<()> {
        if let Some(ready) = &self.ready {
            File::create(ready).with_context(|| format!("make {}", ready.display()))?;
        }
        Ok(())
    }

    /// Says that this instance is prepared and waits for its start. Returns whether to begin: not
    /// if `stop` came first.
    ///
    /// # Errors
    /// The ready file cannot be made.
    pub(crate) fn wait(&self, stop: &dyn Fn() -> bool) -> Result<bool> {
        self.ready()?;
        while self.wait_for.as_ref().is_some_and(|path| !path.exists()) && !stop() {
            std::thread::sleep(POLL);
        }
        while let Some(left) = self.at.and_then(|at| at.checked_sub(monotonic())) {
            if left == 0 || stop() {
                break;
            }
            std::thread::sleep(Duration::from_nanos(left).min(Duration::from_millis(50)));
        }
        Ok(!stop())
    }
}

/// CLOCK_MONOTONIC in nanoseconds: the same for all processes of a machine.
pub(crate) fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    // The clock counts from boot: neither part is ever negative.
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds * 1_000_000_000 + nanos
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_for_the_clock_and_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let go = directory.path().join("go");
        let ready = directory.path().join("ready");
        let at = monotonic() + 60_000_000;
        let start = Start {
            ready: Some(ready.clone()),
            wait_for: Some(go.clone()),
            at: Some(at),
        };
        let opener = std::thread::spawn(move || {
            while !ready.exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
            File::create(go).unwrap();
        });
        assert!(start.wait(&|| false).unwrap());
        assert!(monotonic() >= at);
        opener.join().unwrap();
    }

    #[test]
    fn a_stop_ends_the_wait() {
        let start = Start {
            wait_for: Some(PathBuf::from("/nonexistent/start")),
            at: Some(u64::MAX),
            ..Start::default()
        };
        assert!(!start.wait(&|| true).unwrap());
    }
}
