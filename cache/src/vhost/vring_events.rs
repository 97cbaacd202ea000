//! The eventfds of a ring.

use parking_lot::Mutex;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Eventfds by which a queue's thread tells something. They may be exchanged while it runs.
#[derive(Default)]
pub(super) struct VringEvents {
    /// There are answers.
    call: Mutex<Option<File>>,
    /// The ring is broken.
    pub(super) error: Mutex<Option<File>>,
}

impl VringEvents {
    /// Tells of answers by this from now on. It is signalled once: a server that was killed may have answered and not
    /// have said so, and so may this one by the old eventfd.
    pub(super) fn set_call(&self, event: Option<File>) {
        *self.call.lock() = event;
        self.call();
    }

    /// Copies of both, for the next daemon: that of answers, and that of a broken ring.
    pub(super) fn copies(&self) -> io::Result<[Option<File>; 2]> {
        let copy =
            |event: &Mutex<Option<File>>| event.lock().as_ref().map(File::try_clone).transpose();
        Ok([copy(&self.call)?, copy(&self.error)?])
    }

    /// There are answers.
    pub(super) fn call(&self) {
        signal(self.call.lock().as_ref());
    }

    /// The ring is broken.
    pub(super) fn fail(&self) {
        signal(self.error.lock().as_ref());
    }
}

fn signal(event: Option<&File>) {
    // An eventfd that is full is signalled already.
    if let Some(event) = event
        && let Err(e) = rustix::io::write(event, &1u64.to_ne_bytes())
        && e != rustix::io::Errno::AGAIN
    {
        tracing::warn!("cannot signal a guest: {e}");
    }
}

/// Makes sure that a descriptor is an eventfd, and that using it never waits.
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
