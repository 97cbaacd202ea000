//! The configuration space and the features of the device (virtio 1.2, 5.2.3 and 5.2.4).

use super::limits::{MAX_QUEUES, MAX_RANGE_SECTORS, MAX_SEGMENT, MAX_SEGMENTS, SECTOR};
use parking_lot::Mutex;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recv, recvmsg, send, sockopt,
};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_CONFIG_WCE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH,
    VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_SIZE_MAX,
    VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

/// Bytes of the configuration space; beyond it a driver reads zeroes.
const SIZE: usize = 60;
/// The offset of the write-cache mode, which the driver sets.
pub(super) const WRITE_BACK: u32 = 32;
/// Sectors of 4 KiB: the size of the cache's blocks, and of writes that need no read.
const BLOCK_SECTORS: u32 = 8;

/// The features that the device offers.
pub(super) fn features(read_only: bool) -> u64 {
    let always = [
        VIRTIO_BLK_F_SIZE_MAX,
        VIRTIO_BLK_F_SEG_MAX,
        VIRTIO_BLK_F_BLK_SIZE,
        VIRTIO_BLK_F_TOPOLOGY,
        VIRTIO_BLK_F_FLUSH,
        VIRTIO_BLK_F_CONFIG_WCE,
        VIRTIO_BLK_F_MQ,
        VIRTIO_RING_F_INDIRECT_DESC,
        VIRTIO_RING_F_EVENT_IDX,
        VIRTIO_F_VERSION_1,
    ];
    let by_access: &[u32] = if read_only {
        &[VIRTIO_BLK_F_RO]
    } else {
        &[VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_WRITE_ZEROES]
    };
    always.iter().chain(by_access).map(|bit| 1u64 << bit).sum()
}

/// Has the driver accepted a feature?
pub(super) const fn has(features: u64, bit: u32) -> bool {
    features >> bit & 1 == 1
}

/// Must a write be durable before its answer? Yes without a write cache, and for drivers that cannot flush it.
pub(super) const fn is_write_through(features: u64, write_back: bool) -> bool {
    let chosen = has(features, VIRTIO_BLK_F_CONFIG_WCE) && !write_back;
    chosen || !has(features, VIRTIO_BLK_F_FLUSH)
}

/// The configuration space of a disk of `size` bytes.
pub(super) fn config_space(size: u64, write_back: bool) -> [u8; SIZE] {
    let mut space = [0; SIZE];
    let mut put = |at: usize, bytes: &[u8]| {
        for (to, from) in space.iter_mut().skip(at).zip(bytes) {
            *to = *from;
        }
    };
    put(0, &(size / SECTOR).to_le_bytes());
    put(8, &MAX_SEGMENT.to_le_bytes());
    put(12, &MAX_SEGMENTS.to_le_bytes());
    put(20, &512u32.to_le_bytes());
    // Topology: 2^3 logical blocks in a physical one, aligned at 0. That is also the minimum I/O size.
    put(24, &[3, 0]);
    put(26, &8u16.to_le_bytes());
    put(32, &[u8::from(write_back)]);
    put(34, &MAX_QUEUES.to_le_bytes());
    put(36, &MAX_RANGE_SECTORS.to_le_bytes());
    put(40, &1u32.to_le_bytes());
    put(44, &BLOCK_SECTORS.to_le_bytes());
    put(48, &MAX_RANGE_SECTORS.to_le_bytes());
    put(52, &1u32.to_le_bytes());
    // Write-zeroes may deallocate.
    put(56, &[1]);
    space
}

/// A part of the configuration space, as a driver reads it.
pub(super) fn read(space: [u8; SIZE], offset: u32, size: u32) -> Vec<u8> {
    let (Ok(offset), Ok(size)) = (usize::try_from(offset), usize::try_from(size)) else {
        return Vec::new();
    };
    space
        .into_iter()
        .chain(std::iter::repeat(0))
        .skip(offset)
        .take(size)
        .collect()
}

// The channel for the back end's message that the configuration space has changed.
//
// Crate `vhost` neither sends this message nor gives access to the channel's socket. So the session itself takes the message
// that brings the socket.

/// Bytes of a message's header: request, flags, size.
const HEADER: usize = 12;
/// `VHOST_USER_SET_BACKEND_REQ_FD`.
const SET_BACKEND_REQ_FD: u32 = 21;
/// `VHOST_USER_BACKEND_CONFIG_CHANGE_MSG`.
const CONFIG_CHANGE: u32 = 2;
/// Flags: the protocol's version, a reply, and a request for a reply.
const VERSION: u32 = 1;
const IS_REPLY: u32 = 4;
const NEEDS_REPLY: u32 = 8;

/// The next message of a front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It has left.
    End,
    /// The channel's socket.
    Channel,
    /// Any other message.
    Other,
}

/// The channel; `None` until the front end makes it.
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

    /// Takes over the channel of the last daemon.
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

/// Waits for the next message, and peeks at its header.
pub(super) fn look_ahead(socket: &UnixStream) -> io::Result<Next> {
    let mut bytes = [0u8; HEADER];
    let flags = RecvFlags::PEEK | RecvFlags::WAITALL;
    let (count, _) = recv(socket, &mut bytes[..], flags)?;
    let [a, b, c, d, ..] = bytes;
    Ok(match count {
        0 => Next::End,
        // Too short for a header: the front end has left in the middle, which the reader of messages notices.
        HEADER.. if u32::from_ne_bytes([a, b, c, d]) == SET_BACKEND_REQ_FD => Next::Channel,
        _ => Next::Other,
    })
}

/// Takes the message that brings the socket of `channel`. `has_protocol` tells whether a feature was negotiated.
///
/// # Errors
/// When it was not negotiated, or the message brings something else.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_space_is_virtios() {
        let space = config_space((1 << 30) + 300, true);
        let word = |at: usize| u32::from_le_bytes(space[at..at + 4].try_into().unwrap());
        assert_eq!(word(0), 1 << 21, "sectors");
        assert_eq!((word(8), word(12), word(20)), (65536, 126, 512));
        assert_eq!(space[32], 1);
        assert_eq!(read(space, 32, 4), space[32..36]);
        assert_eq!(read(space, 58, 4), [0; 4]);
        assert_eq!(read(space, 200, 3), [0; 3]);
    }

    #[test]
    fn without_a_cache_or_a_flush_writes_are_durable() {
        let all = features(false);
        assert!(!is_write_through(all, true));
        assert!(is_write_through(all, false));
        assert!(is_write_through(all & !(1 << VIRTIO_BLK_F_FLUSH), true));
        let without_choice = all & !(1 << VIRTIO_BLK_F_CONFIG_WCE);
        assert!(!is_write_through(without_choice, false));
        assert!(has(features(true), VIRTIO_BLK_F_RO) && !has(all, VIRTIO_BLK_F_RO));
        assert!(!has(features(true), VIRTIO_BLK_F_DISCARD));
    }
}
