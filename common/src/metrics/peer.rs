//! Which user or machine a client belongs to, so that none takes all connections.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// The user or machine that a client belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// A user of this machine, in the agent's network namespace.
    User(u32),
    /// Another machine, or a network of IPv6 (the first 64 bits): one machine may have all of its addresses.
    Address(IpAddr),
    /// A client that has closed its side already: its user or machine is not known.
    Closing,
}

/// Asks the kernel which user a client is.
#[derive(Debug)]
pub(crate) struct Peers {
    /// Asks for sockets (man 7 sock_diag); `None` where the kernel does not tell.
    sockets: Option<OwnedFd>,
}

/// From linux/sock_diag.h, linux/netlink.h and netinet/tcp.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const TCP: u8 = 6;
const TCP_ESTABLISHED: u8 = 1;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// The length of a request, bytes: `nlmsghdr` and `inet_diag_req_v2`.
const REQUEST: u32 = 72;
/// Where an answer has its socket's state and user: in `inet_diag_msg`, behind the `nlmsghdr`.
const STATE: usize = 17;
const USER: usize = 80;

impl Peers {
    pub(crate) fn new() -> Self {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            Some(netlink::SOCK_DIAG),
        );
        Self {
            sockets: socket.ok(),
        }
    }

    /// The user or machine at the other end; `None` if the client is gone.
    pub(crate) fn of(&self, client: &TcpStream) -> Option<Peer> {
        let (theirs, ours) = (client.peer_addr().ok()?, client.local_addr().ok()?);
        Some(
            self.local(theirs, ours)
                .unwrap_or_else(|| Peer::Address(network(theirs.ip()))),
        )
    }

    /// The user of the socket at the other end, if it is one of this machine. The kernel answers within the call that asks.
    fn local(&self, theirs: SocketAddr, ours: SocketAddr) -> Option<Peer> {
        let socket = self.sockets.as_ref()?;
        rustix::net::send(socket, &request(theirs, ours), SendFlags::empty()).ok()?;
        let mut answer = [0; 512];
        rustix::net::recv(socket, &mut answer[..], RecvFlags::empty()).ok()?;
        user(&answer)
    }
}

/// The address by which a machine is known.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        address @ IpAddr::V4(_) => address,
    }
}

/// A request for the one socket that is at `theirs` and connected to `ours`.
fn request(theirs: SocketAddr, ours: SocketAddr) -> Vec<u8> {
    let padded = |address: IpAddr| {
        let mut bytes = match address.to_canonical() {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        bytes.resize(16, 0);
        bytes
    };
    let family = match theirs.ip().to_canonical() {
        IpAddr::V4(_) => AF_INET,
        IpAddr::V6(_) => AF_INET6,
    };
    let all = u32::MAX.to_ne_bytes();
    [
        // struct nlmsghdr: length, type, flags, sequence, port.
        &REQUEST.to_ne_bytes()[..],
        &SOCK_DIAG_BY_FAMILY.to_ne_bytes(),
        &NLM_F_REQUEST.to_ne_bytes(),
        &[0; 8],
        // struct inet_diag_req_v2: family, protocol, nothing more, all states.
        &[family, TCP, 0, 0],
        &all,
        // struct inet_diag_sockid: ports, addresses, any interface, no cookie.
        &theirs.port().to_be_bytes(),
        &ours.port().to_be_bytes(),
        &padded(theirs.ip()),
        &padded(ours.ip()),
        &[0; 4],
        &all,
        &all,
    ]
    .concat()
}

/// The user in an answer; `None` if it says that there is no such socket.
fn user(answer: &[u8]) -> Option<Peer> {
    // The kernel answers with an error where there is none.
    if answer.get(4..6)? != SOCK_DIAG_BY_FAMILY.to_ne_bytes() {
        return None;
    }
    let uid = answer.get(USER..USER + 4)?;
    let uid = u32::from_ne_bytes(uid.try_into().ok()?);
    // The kernel forgets the user of a socket that was closed.
    match *answer.get(STATE)? {
        TCP_ESTABLISHED => Some(Peer::User(uid)),
        _ => Some(Peer::Closing),
    }
}
