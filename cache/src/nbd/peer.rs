//! Who a client is, for the log.

use rustix::net::{getpeername, sockopt};
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

/// The other side of a client's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// Its address.
    Tcp(SocketAddr),
    /// Its process and user.
    Unix { pid: i32, uid: u32 },
    /// It has left already.
    Unknown,
}

impl Peer {
    /// The peer of a TCP socket, or of a unix socket.
    pub(super) fn of(socket: &OwnedFd, tcp: bool) -> Self {
        if tcp {
            let address = getpeername(socket).ok().flatten();
            let address = address.and_then(|any| SocketAddr::try_from(any).ok());
            return address.map_or(Self::Unknown, Self::Tcp);
        }
        sockopt::socket_peercred(socket).map_or(Self::Unknown, |of| Self::Unix {
            pid: of.pid.as_raw_nonzero().get(),
            uid: of.uid.as_raw(),
        })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(f, "{address}"),
            Self::Unix { pid, uid } => write!(f, "process {pid} of user {uid}"),
            Self::Unknown => write!(f, "a client that has left"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Peer;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_peer_is_its_address_or_its_process() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let pid = i32::try_from(std::process::id()).unwrap();
        let uid = rustix::process::geteuid().as_raw();
        assert_eq!(Peer::of(&ours.into(), false), Peer::Unix { pid, uid });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, from) = listener.accept().unwrap();
        assert_eq!(client.local_addr().unwrap(), from);
        assert_eq!(Peer::of(&server.into(), true), Peer::Tcp(from));
    }
}
