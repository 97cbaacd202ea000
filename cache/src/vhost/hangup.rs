//! Ending a front end's connection from another thread than its own.

use parking_lot::Mutex;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

/// The connection of a front end.
pub(super) struct Hangup {
    pub(super) socket: UnixStream,
    why: Mutex<Option<&'static str>>,
}

impl Hangup {
    pub(super) const fn new(socket: UnixStream) -> Self {
        Self {
            socket,
            why: Mutex::new(None),
        }
    }

    /// Ends the connection: its thread finds no more messages, and stops the queues.
    pub(super) fn end(&self, why: &'static str) {
        self.why.lock().get_or_insert(why);
        self.close();
    }

    /// As [`end`](Self::end), where nobody is to blame.
    pub(super) fn close(&self) {
        // An error says that the front end has left already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Why the connection was ended, if that is the front end's fault.
    pub(super) fn why(&self) -> Option<&'static str> {
        *self.why.lock()
    }
}
