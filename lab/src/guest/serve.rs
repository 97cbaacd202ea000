//! The runner's loop: a thread for each request.

use std::fs::OpenOptions;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};

use super::host::{HostPort, RequestContext};
use super::{execute, files, shell};
use crate::protocol::{GuestMessage, HEARTBEAT_SECONDS, HostMessage, PORT, Request, Response};

/// As much of a request as any build understands.
#[derive(serde::Deserialize)]
struct Numbered {
    id: u64,
}

/// Serves the host until the channel closes.
///
/// # Errors
/// The channel cannot be opened, or breaks.
pub fn serve() -> Result<()> {
    let path = port()?;
    let port = OpenOptions::new()
        .read(true)
        .write(true)
        .open(&path)
        .with_context(|| format!("opening {}", path.display()))?;
    let host = HostPort::new(port.try_clone()?);
    host.send(&GuestMessage::Ready {
        kernel: rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned(),
    })?;
    let heartbeat = Arc::clone(&host);
    std::thread::spawn(move || {
        while heartbeat.send(&GuestMessage::Heartbeat).is_ok() {
            std::thread::sleep(Duration::from_secs(HEARTBEAT_SECONDS));
        }
    });
    for line in BufReader::new(port).lines() {
        let line = line.context("reading from the host")?;
        match serde_json::from_str(&line) {
            Ok(message) => dispatch(message, &host),
            Err(error) => refuse(&line, &error, &host)?,
        }
    }
    Ok(())
}

fn dispatch(message: HostMessage, host: &Arc<HostPort>) {
    let HostMessage { id, request } = message;
    if let Request::Done = request {
        host.done(id);
        return;
    }
    let context = host.begin(id);
    std::thread::spawn(move || {
        let result = handle(request, &context);
        context.finish(result);
    });
}

/// Answers a host of another build, so that it does not wait for a response that will not come.
fn refuse(line: &str, error: &serde_json::Error, host: &HostPort) -> Result<()> {
    let Numbered { id } = serde_json::from_str(line).context("expected a request from the host")?;
    let result = Err(format!(
        "expected a request that this guest's program knows: {error}; host and guest are of \
         different builds, build all with `cargo build --workspace --bins`"
    ));
    host.send(&GuestMessage::Response { id, result })
}

fn handle(request: Request, context: &RequestContext) -> Result<Response> {
    Ok(match request {
        Request::Sh { script, seconds } => {
            Response::Sh(shell::sh(&script, Duration::from_secs(seconds))?)
        }
        Request::Push {
            path,
            mode,
            offset,
            part,
        } => {
            files::push(&path, mode, offset, &part)?;
            Response::Pushed
        }
        Request::Run(run) => Response::Ran(Box::new(execute::execute(&run, context)?)),
        // The loop handles it.
        Request::Done => Response::Pushed,
    })
}

/// The channel's device, found by the port's name.
fn port() -> Result<PathBuf> {
    let class = "/sys/class/virtio-ports";
    for entry in std::fs::read_dir(class).with_context(|| format!("listing {class}"))? {
        let entry = entry?;
        let name = std::fs::read_to_string(entry.path().join("name")).unwrap_or_default();
        if name.trim() == PORT {
            return Ok(PathBuf::from("/dev").join(entry.file_name()));
        }
    }
    anyhow::bail!("expected a virtio port named {PORT} in {class}, found none")
}
