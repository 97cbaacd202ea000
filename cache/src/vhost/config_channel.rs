//! The channel by which the back end tells a front end that the configuration space has changed.
//!
//! Crate `vhost` does not send this message, and does not give out the channel's socket. So the session takes the one
//! message that brings the socket itself.

use parking_lot::Mutex;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recv, recvmsg, send, sockopt,
};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use vhost::vhost_user::message::VhostUserProtocolFeatures;

/// Bytes of a message's header: request, flags, size.
const HEADER: usize = 12;
/// `VHOST_USER_SET_BACKEND_REQ_FD`.
const SET_BACKEND_REQ_FD: u32 = 21;
/// `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`.
const CONFIG_CHANGE: u32 = 2;
/// Flags: the protocol's version, an answer, and that one is wanted.
const VERSION: u32 = 1;
const IS_REPLY: u32 = 4;
const NEEDS_REPLY: u32 = 8;

/// What comes next from a front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It has left.
    End,
    /// The channel's socket.
    Channel,
    /// Any other message.
    Other,
}

/// The channel; none until the front end makes it.
#[derive(Default)]
pub(super) struct ConfigChannel(Mutex<Option<OwnedFd>>);

impl ConfigChannel {
    /// Tells the front end to read the configuration space again. Never waits.
    pub(super) fn notify(&self) -> io::Result<()> {
        let socket = self.0.lock();
        let Some(socket) = &*socket else {
            return Ok(());
        };
        let message = header(CONFIG_CHANGE, VERSION, 0);
        let sent = send(socket, &message, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        if sent == message.len() {
            Ok(())
        } else {
            Err(io::ErrorKind::WriteZero.into())
        }
    }

    /// The channel's socket, for the next daemon.
    pub(super) fn take(&self) -> Option<OwnedFd> {
        self.0.lock().take()
    }

    /// Goes on with the channel of the last daemon.
    pub(super) fn set(&self, socket: OwnedFd) {
        *self.0.lock() = Some(socket);
    }

    pub(super) fn close(&self) {
        *self.0.lock() = None;
    }
}

fn header(request: u32, flags: u32, size: u32) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..4].copy_from_slice(&request.to_ne_bytes());
    bytes[4..8].copy_from_slice(&flags.to_ne_bytes());
    bytes[8..].copy_from_slice(&size.to_ne_bytes());
    bytes
}

/// Waits for the next message, and looks at its header.
pub(super) fn look_ahead(socket: &UnixStream) -> io::Result<Next> {
    let mut bytes = [0u8; HEADER];
    let flags = RecvFlags::PEEK | RecvFlags::WAITALL;
    let (count, _) = recv(socket, &mut bytes[..], flags)?;
    let [a, b, c, d, ..] = bytes;
    Ok(match count {
        0 => Next::End,
        // Too short for a header: the front end has left within it, which the reader of messages finds.
        HEADER.. if u32::from_ne_bytes([a, b, c, d]) == SET_BACKEND_REQ_FD => Next::Channel,
        _ => Next::Other,
    })
}

/// Takes the message that brings the socket of `channel`. `has_protocol` tells whether a feature was negotiated.
///
/// # Errors
/// When it was not negotiated, or brings something else.
pub(super) fn take_channel(
    socket: &UnixStream,
    channel: &ConfigChannel,
    has_protocol: impl Fn(VhostUserProtocolFeatures) -> bool,
) -> io::Result<()> {
    let mut bytes = [0; HEADER];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
    let mut files = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut bytes)],
        &mut files,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::WAITALL,
    )?;
    let mut found = files
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(files) => Some(files),
            _ => None,
        })
        .flatten();
    let [.., flags, size] = words(bytes);
    let invalid = |what: &'static str| io::Error::new(io::ErrorKind::InvalidData, what);
    if received.bytes != HEADER || size != 0 || flags & !NEEDS_REPLY != VERSION {
        return Err(invalid("expected a message with a socket, found another"));
    }
    let (Some(found), None) = (found.next(), found.next()) else {
        return Err(invalid("expected one socket for the back end's messages"));
    };
    if !has_protocol(VhostUserProtocolFeatures::BACKEND_REQ) || !is_stream(&found)? {
        return Err(invalid(
            "expected a unix stream socket, after it was agreed on",
        ));
    }
    *channel.0.lock() = Some(found);
    if flags & NEEDS_REPLY != 0 && has_protocol(VhostUserProtocolFeatures::REPLY_ACK) {
        let mut reply = header(SET_BACKEND_REQ_FD, VERSION | IS_REPLY, 8).to_vec();
        reply.extend(0u64.to_ne_bytes());
        if send(socket, &reply, SendFlags::NOSIGNAL)? != reply.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
    }
    Ok(())
}

fn words(bytes: [u8; HEADER]) -> [u32; 3] {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
    [[a, b, c, d], [e, f, g, h], [i, j, k, l]].map(u32::from_ne_bytes)
}

fn is_stream(socket: &OwnedFd) -> io::Result<bool> {
    Ok(
        sockopt::socket_domain(socket)? == rustix::net::AddressFamily::UNIX
            && sockopt::socket_type(socket)? == rustix::net::SocketType::STREAM,
    )
}
