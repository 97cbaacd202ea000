//! One virtual machine at a time on a machine, whichever program starts it: measurements would disturb
//! each other, and so would tests.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};

/// Held until the last clone is gone.
#[derive(Clone)]
pub(super) struct MachineLock {
    _file: Arc<File>,
}

impl MachineLock {
    /// Waits until no other virtual machine of the lab runs, saying so if that takes a while.
    pub(super) fn acquire() -> Result<Self> {
        let path = path();
        // Opened before created: in a sticky directory, opening another user's file for creation
        // is refused (fs.protected_regular).
        let file = File::open(&path)
            .or_else(|_| {
                OpenOptions::new()
                    .create(true)
                    .truncate(false)
                    .write(true)
                    .mode(0o644)
                    .open(&path)
            })
            .with_context(|| format!("opening the lock file {}", path.display()))?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            eprintln!(
                "waiting for another virtual machine of the lab to end (lock {})",
                path.display()
            );
            flock(&file, FlockOperation::LockExclusive)
                .with_context(|| format!("locking {}", path.display()))?;
        }
        Ok(Self {
            _file: Arc::new(file),
        })
    }
}

fn path() -> PathBuf {
    let shared = PathBuf::from("/run/lock");
    let dir = if shared.is_dir() {
        shared
    } else {
        std::env::temp_dir()
    };
    dir.join("justitia-vm.lock")
}
