//! Beginning together: several instances prepare, then start at the same moment.

use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

/// How often the start file is looked for.
const POLL: Duration = Duration::from_millis(5);

/// What to wait for before the run.
#[derive(Debug, clap::Args)]
pub(crate) struct Start {
    /// File to make when prepared.
    #[arg(long)]
    pub ready: Option<PathBuf>,

    /// File to wait for before the run.
    #[arg(long)]
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
