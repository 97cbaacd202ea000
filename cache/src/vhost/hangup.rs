//! Ends a front end's connection from another thread.

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

/// The connection of a front end.
pub(super) struct Hangup {
    pub(super) socket: UnixStream,
    /// Readable once the connection is to be left to the next daemon.
    leave: OwnedFd,
    why: Mutex<Option<&'static str>>,
}

impl Hangup {
    /// # Errors
    /// When the system refuses an eventfd.
    pub(super) fn new(socket: UnixStream) -> io::Result<Self> {
        Ok(Self {
            socket,
            leave: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            why: Mutex::new(None),
        })
    }

    /// Ends the connection: its thread gets no more messages, and stops the queues.
    pub(super) fn end(&self, why: &'static str) {
        self.why.lock().get_or_insert(why);
        self.close();
    }

    /// As [`end`](Self::end), without a fault of the front end.
    pub(super) fn close(&self) {
        // It fails if the front end has left already.
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }

    /// Lets the connection's thread answer its current message, and leave the rest to the next daemon.
    pub(super) fn leave(&self) {
        let _ = rustix::io::write(&self.leave, &1_u64.to_ne_bytes());
    }

    /// Waits for a message or the front end's end. Returns `false` when the connection is to be left instead.
    pub(super) fn wait(&self) -> io::Result<bool> {
        let mut both = [
            PollFd::new(&self.socket, PollFlags::IN),
            PollFd::new(&self.leave, PollFlags::IN),
        ];
        loop {
            match poll(&mut both, None) {
                Ok(_) => return Ok(both.last().is_some_and(|leave| leave.revents().is_empty())),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }

    /// Why the connection was ended, if that is the front end's fault.
    pub(super) fn why(&self) -> Option<&'static str> {
        *self.why.lock()
    }
}
