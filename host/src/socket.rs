//! The socket of a VM's monitor or channel, and the process that listens on it.

use std::io::{Error, ErrorKind};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use justitia_api::client::connect;
use rustix::net::sockopt::socket_peercred;
use serde::{Deserialize, Serialize};

/// A socket on which QEMU listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Socket {
    /// Its path.
    pub path: PathBuf,
    /// The process that must listen on it: its command line names the path, and could name another process's socket. `None`
    /// if the host's operator or libvirt named it.
    listener: Option<u32>,
}

impl Socket {
    /// A socket that the host's operator, or libvirt, has named.
    #[must_use]
    pub const fn trusted(path: PathBuf) -> Self {
        Self {
            path,
            listener: None,
        }
    }

    /// A socket that this process has named.
    #[must_use]
    pub(crate) const fn of(path: PathBuf, process: u32) -> Self {
        Self {
            path,
            listener: Some(process),
        }
    }

    /// Connects without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if other clients wait to be accepted. Other errors if nothing, or another process, listens.
    pub fn connect(&self) -> std::io::Result<UnixStream> {
        let stream = connect(&self.path)?;
        let Some(expected) = self.listener else {
            return Ok(stream);
        };
        let found = socket_peercred(&stream)?.pid.as_raw_nonzero().get();
        match u32::try_from(found) == Ok(expected) {
            true => Ok(stream),
            false => Err(Error::new(
                ErrorKind::PermissionDenied,
                format!(
                    "expected process {expected} to listen, whose command line names the socket, found process {found}: it is left alone"
                ),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn only_the_process_that_named_a_socket_is_talked_to_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qmp");
        let _listener = UnixListener::bind(&path).unwrap();
        assert!(Socket::trusted(path.clone()).connect().is_ok());
        assert!(
            Socket::of(path.clone(), std::process::id())
                .connect()
                .is_ok()
        );
        let refused = Socket::of(path, 1).connect().unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    }

    /// QEMU accepts no other client while it has one; one may wait.
    #[test]
    fn nobody_waits_to_be_accepted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let socket = Socket::trusted(path);
        let errors = (0..4).filter_map(|_| socket.connect().err());
        let kinds: Vec<ErrorKind> = errors.map(|error| error.kind()).collect();
        assert!(kinds.contains(&ErrorKind::WouldBlock), "{kinds:?}");
    }
}
