//! The sockets that QEMU connects to.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::error::VmError;
use super::process::{Process, stderr_log};

/// A socket at this path.
pub(super) fn listen(path: &Path) -> Result<UnixListener> {
    let listener =
        UnixListener::bind(path).with_context(|| format!("listening on {}", path.display()))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// QEMU connects at once, or ends and says why.
pub(super) fn accept(listener: &UnixListener, process: &Process, dir: &Path) -> Result<UnixStream> {
    let begin = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("waiting for QEMU to connect"),
        }
        let stderr = || std::fs::read_to_string(stderr_log(dir)).unwrap_or_default();
        if let Some(status) = process.exit().status() {
            return Err(VmError::Exit {
                status: status.to_string(),
                stderr: stderr(),
                console: String::new(),
            }
            .into());
        }
        if begin.elapsed() > Duration::from_secs(30) {
            return Err(VmError::Slow {
                what: "start under QEMU".to_owned(),
                limit: Duration::from_secs(30),
                console: stderr(),
            }
            .into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
