//! The eventfds of a ring.

use parking_lot::Mutex;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Eventfds that a queue's thread signals. They may be exchanged while it runs.
#[derive(Default)]
pub(super) struct VringEvents {
    /// Signals answers.
    call: Mutex<Option<File>>,
    /// Signals a broken ring.
    pub(super) error: Mutex<Option<File>>,
}

impl VringEvents {
    /// Sets the eventfd for answers, and signals it once. A killed server may have answered without a signal; and this server
    /// may have signalled the old eventfd.
    pub(super) fn set_call(&self, event: Option<File>) {
        *self.call.lock() = event;
        self.call();
    }

    /// Copies of both, for the next daemon: for answers, and for a broken ring.
    pub(super) fn copies(&self) -> io::Result<[Option<File>; 2]> {
        let copy =
            |event: &Mutex<Option<File>>| event.lock().as_ref().map(File::try_clone).transpose();
        Ok([copy(&self.call)?, copy(&self.error)?])
    }

    /// Signals answers.
    pub(super) fn call(&self) {
        signal(self.call.lock().as_ref());
    }

    /// Signals a broken ring.
    pub(super) fn fail(&self) {
        signal(self.error.lock().as_ref());
    }
}

fn signal(event: Option<&File>) {
    // A full eventfd is signalled already.
    if let Some(event) = event
        && let Err(e) = rustix::io::write(event, &1u64.to_ne_bytes())
        && e != rustix::io::Errno::AGAIN
    {
        tracing::warn!("cannot signal a guest: {e}");
    }
}

/// Checks that a descriptor is an eventfd, and makes it non-blocking.
///
/// # Errors
/// When it is something else.
pub(super) fn eventfd(file: File) -> io::Result<File> {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    if link.as_os_str() != "anon_inode:[eventfd]" {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("expected an eventfd, found {}", link.display()),
        ));
    }
    fcntl_setfl(&file, fcntl_getfl(&file)? | OFlags::NONBLOCK)?;
    Ok(file)
}
