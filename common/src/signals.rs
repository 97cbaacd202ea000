//! Signals that ask a daemon to stop, or to read its configuration again.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Sockets that become readable when a signal has come.
#[derive(Debug)]
pub struct Signals {
    /// SIGTERM or SIGINT: the daemon is to stop.
    pub stop: UnixStream,
    /// SIGHUP: the configuration is to be read again, or the terminal is gone.
    pub hang_up: UnixStream,
    /// Whether the daemon was started at a terminal.
    pub at_terminal: bool,
}

impl Signals {
    /// Installs the handlers.
    ///
    /// # Errors
    /// If one cannot be installed.
    pub fn handle() -> io::Result<Self> {
        let ((stop, stopped), (hang_up, hung_up)) = (UnixStream::pair()?, UnixStream::pair()?);
        for (signal, sender) in [(SIGTERM, &stopped), (SIGINT, &stopped), (SIGHUP, &hung_up)] {
            signal_hook::low_level::pipe::register(signal, sender.try_clone()?)?;
        }
        hang_up.set_nonblocking(true)?;
        Ok(Self {
            stop,
            hang_up,
            at_terminal: has_terminal(),
        })
    }

    /// Whether a signal has come that ends what shows itself at a terminal.
    #[must_use]
    pub fn has_come(&self) -> bool {
        let mut sockets = [&self.stop, &self.hang_up].map(|of| PollFd::new(of, PollFlags::IN));
        matches!(poll(&mut sockets, Some(&Timespec::default())), Ok(1..))
    }

    /// Takes note of a SIGHUP that has come. Returns whether it asks to stop: the terminal is gone at which the daemon was
    /// started.
    pub fn take_hang_up(&mut self) -> bool {
        let _ = self.hang_up.read(&mut [0; 64]);
        self.at_terminal && !has_terminal()
    }
}

/// Whether this process has a terminal.
fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}
