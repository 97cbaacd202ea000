//! Beginning together: several instances prepare, then start at the same moment.

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

/// How often the start file is looked for.
const POLL: Duration = Duration::from_millis(5);

/// What to wait for before the run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Start {
    /// Made when the instance is prepared and only waits.
    pub ready: Option<PathBuf>,
    /// Waited for until it exists.
    pub wait_for: Option<PathBuf>,
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
        Ok(!stop())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_for_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let go = directory.path().join("go");
        let ready = directory.path().join("ready");
        let start = Start {
            ready: Some(ready.clone()),
            wait_for: Some(go.clone()),
        };
        let opener = std::thread::spawn(move || {
            while !ready.exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
            File::create(go).unwrap();
        });
        assert!(start.wait(&|| false).unwrap());
        opener.join().unwrap();
    }

    #[test]
    fn a_stop_ends_the_wait() {
        let start = Start {
            wait_for: Some(PathBuf::from("/nonexistent/start")),
            ..Start::default()
        };
        assert!(!start.wait(&|| true).unwrap());
    }
}
