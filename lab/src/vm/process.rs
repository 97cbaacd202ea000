//! QEMU's process.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};

/// Where QEMU's standard error is kept, in a guest's directory on the host.
pub(super) fn stderr_log(dir: &Path) -> PathBuf {
    dir.join("qemu.stderr")
}

/// QEMU's exit status, once it has ended.
#[derive(Clone)]
pub(super) struct Exit(Arc<Mutex<Option<ExitStatus>>>);

impl Exit {
    /// How it ended; `None` while it runs.
    pub(super) fn status(&self) -> Option<ExitStatus> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running QEMU, killed when dropped.
pub(super) struct Process {
    id: u32,
    ended: Arc<Mutex<Option<ExitStatus>>>,
    stop: Arc<AtomicBool>,
    waiter: Option<JoinHandle<()>>,
}

impl Process {
    /// Starts it.
    ///
    /// A thread of its own starts it and waits for it, because the kernel ties the death signal to
    /// the starting thread: a test's thread may end before the guest does.
    pub(super) fn start(mut command: Command, dir: &Path, shell: bool) -> Result<Self> {
        let stderr = stderr_log(dir);
        let log =
            File::create(&stderr).with_context(|| format!("creating {}", stderr.display()))?;
        command.stderr(log);
        if !shell {
            command.stdin(Stdio::null()).stdout(Stdio::null());
        }
        let ended = Arc::new(Mutex::new(None));
        let stop = Arc::new(AtomicBool::new(false));
        let (started, start) = mpsc::channel();
        let waiter = std::thread::Builder::new()
            .name("qemu".to_owned())
            .spawn({
                let (ended, stop) = (ended.clone(), stop.clone());
                move || match command.spawn() {
                    Ok(child) => {
                        let _ = started.send(Ok(child.id()));
                        let status = wait(child, &stop);
                        *ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
                    }
                    Err(error) => {
                        let _ = started.send(Err(error));
                    }
                }
            })
            .context("starting a thread")?;
        let id = start
            .recv()
            .context("expected the thread that starts QEMU to report, it ended")?
            .context("starting QEMU")?;
        Ok(Self {
            id,
            ended,
            stop,
            waiter: Some(waiter),
        })
    }

    /// Its process id: a program that starts it becomes it.
    pub(super) const fn id(&self) -> u32 {
        self.id
    }

    /// Its exit status, once it has ended.
    pub(super) fn exit(&self) -> Exit {
        Exit(Arc::clone(&self.ended))
    }

    /// Kills it and waits for its end.
    pub(super) fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(waiter) = self.waiter.take() {
            // A panic in it would have ended QEMU by the death signal.
            let _ = waiter.join();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}

fn wait(mut child: Child, stop: &AtomicBool) -> ExitStatus {
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return status;
        }
        if stop.load(Ordering::Relaxed) {
            // Fails only if it has just ended by itself.
            let _ = child.kill();
            return child.wait().unwrap_or_default();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
