//! Descriptors that systemd or the last daemon hands over, and those that are handed on.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, anyhow, bail};
use justitia_cache::serve::{Descriptors, STORED, adopt, keep_over_exec, kept_over_exec};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use sd_notify::NotifyState;

/// Tells the program that is executed again which descriptors are its.
const KEPT: &str = "JUSTITIA_CACHE_DESCRIPTORS";

const NO_NAME: &str = "expected this program's name as its first argument, found no arguments";

/// Descriptors that are sent to systemd together: a message has at most 253.
const BATCH: usize = 128;

/// What this process was started with. Call once, before anything is opened.
pub(super) fn given() -> Descriptors {
    let kept = std::env::var(KEPT).ok();
    let mut numbers = kept.map_or_else(Vec::new, |told| kept_over_exec(&told));
    // Over an exec the number of the process stays, and so does what systemd has told it, but not its descriptors.
    if numbers.is_empty() {
        match sd_notify::listen_fds_with_names() {
            Ok(found) => numbers.extend(found),
            Err(e) => tracing::warn!("cannot use the descriptors that systemd has passed: {e}"),
        }
    }
    // They are this process's now: a copy in the store would keep memory and locks beyond its end.
    for name in STORED {
        let forget = format!("FDSTOREREMOVE=1\nFDNAME={name}");
        let _ = sd_notify::notify(&[NotifyState::Custom(&forget)]);
    }
    adopt(numbers)
}

/// Gives descriptors to systemd, which passes them to the next start, and closes them if there is none.
pub(super) fn store(left: &Descriptors) {
    for name in STORED {
        let named = left.iter().filter(|(of, _)| of == name);
        let named: Vec<_> = named.map(|(_, descriptor)| descriptor.as_fd()).collect();
        for batch in named.chunks(BATCH) {
            if let Err(e) = send(name, batch) {
                tracing::warn!("systemd does not keep what is cached until the next start: {e}");
            }
        }
    }
}

/// Sends systemd descriptors, at most [`BATCH`], to keep under a name.
fn send(name: &str, descriptors: &[BorrowedFd<'_>]) -> std::io::Result<()> {
    let Some(systemd) = std::env::var_os("NOTIFY_SOCKET") else {
        return Ok(());
    };
    let socket = UnixDatagram::unbound()?;
    match systemd.as_bytes().strip_prefix(b"@") {
        Some(name) => socket.connect_addr(&SocketAddr::from_abstract_name(name)?)?,
        None => socket.connect(&systemd)?,
    }
    let text = format!("FDSTORE=1\nFDNAME={name}\n");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut attached = SendAncillaryBuffer::new(&mut space);
    attached.push(SendAncillaryMessage::ScmRights(descriptors));
    let text = IoSlice::new(text.as_bytes());
    sendmsg(&socket, &[text], &mut attached, SendFlags::empty())?;
    Ok(())
}

/// Asks the program that would be executed whether it can serve what this one was called with: after an upgrade it is
/// another one.
///
/// # Errors
/// Why it cannot.
pub(super) fn can_execute_again(config: Option<&Path>) -> anyhow::Result<()> {
    let mut args = std::env::args_os();
    let program = args.next().ok_or_else(|| anyhow!(NO_NAME))?;
    let mut command = Command::new(&program);
    match config {
        Some(_) => command.args(args).arg("--check-config"),
        None => command.arg("--version"),
    };
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot execute {}", program.display()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{}: {}", program.display(), said.trim());
    }
    Ok(())
}

/// Executes this program again, as it was called, with these descriptors. Returns only when that fails.
pub(super) fn execute_again(left: &Descriptors) -> anyhow::Error {
    let mut args = std::env::args_os();
    let Some(program) = args.next() else {
        return anyhow!(NO_NAME);
    };
    let mut command = Command::new(&program);
    command.args(args).env(KEPT, keep_over_exec(left));
    let error = command.exec();
    anyhow!("cannot execute {} again: {error}", program.display())
}
