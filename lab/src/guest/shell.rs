//! Scripts.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::protocol::ShResult;

/// The most that is kept of each output, in bytes.
const OUTPUT: u64 = 4 << 20;

/// Runs a script to its end. It may leave processes in the background: they are not waited for,
/// because their output goes to a file, not to a pipe.
pub(super) fn sh(script: &str, limit: Duration) -> Result<ShResult> {
    let stdout = tempfile::tempfile_in("/run").context("making a file for standard output")?;
    let stderr = tempfile::tempfile_in("/run").context("making a file for standard error")?;
    let mut child = Command::new("sh")
        .args(["-c", script])
        .stdin(Stdio::null())
        .stdout(stdout.try_clone()?)
        .stderr(stderr.try_clone()?)
        .process_group(0)
        .spawn()
        .context("starting sh")?;
    let (status, timed_out) = wait(&mut child, limit)?;
    Ok(ShResult {
        status: status
            .code()
            .or_else(|| status.signal().map(|signal| 128 + signal))
            .unwrap_or(-1),
        timed_out,
        stdout: end_of(stdout)?,
        stderr: end_of(stderr)?,
    })
}

/// Starts a script in a directory, without input and without output.
pub(super) fn start(script: &str, dir: &Path) -> Result<Child> {
    Command::new("sh")
        .args(["-c", script])
        .current_dir(dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("starting {script}"))
}

fn wait(child: &mut Child, limit: Duration) -> Result<(ExitStatus, bool)> {
    let begin = Instant::now();
    let mut pause = Duration::from_millis(2);
    loop {
        if let Some(status) = child.try_wait().context("waiting for sh")? {
            return Ok((status, false));
        }
        if begin.elapsed() > limit {
            if let Some(group) = rustix::process::Pid::from_raw(i32::try_from(child.id())?) {
                // Gone in this moment: all the better.
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            return Ok((child.wait().context("waiting for sh")?, true));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

fn end_of(mut file: File) -> Result<String> {
    let from = file.metadata()?.len().saturating_sub(OUTPUT);
    file.seek(SeekFrom::Start(from))?;
    let mut content = Vec::new();
    file.read_to_end(&mut content)?;
    Ok(String::from_utf8_lossy(&content).into_owned())
}
