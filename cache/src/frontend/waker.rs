//! Waiting for clients, until woken: a listening socket may be systemd's, or the next daemon's, and must not be shut down.

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::{Errno, ioctl_fionbio};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

/// Wakes the thread that accepts a listener's clients.
#[derive(Clone)]
pub(crate) struct Waker(Arc<OwnedFd>);

impl Waker {
    /// For the thread that accepts clients of `socket`, which never waits from now on.
    pub(crate) fn new(socket: impl AsFd) -> io::Result<Self> {
        ioctl_fionbio(socket, true)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(wake)))
    }

    /// Wakes it, now and whenever it waits again.
    pub(crate) fn wake(&self) {
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Readable from when it was woken on, for those who wait for more than this.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Waits until there is a client, or until woken.
    pub(crate) fn wait(&self, socket: impl AsFd) {
        let mut both = [
            PollFd::new(&socket, PollFlags::IN),
            PollFd::new(&*self.0, PollFlags::IN),
        ];
        while poll(&mut both, None) == Err(Errno::INTR) {}
    }
}
