//! Descriptors that this process was started with: sockets that systemd listens on for it, and those that the last daemon has
//! handed over. Unused ones are closed once the daemon has started, except systemd's sockets: systemd passes them only at a
//! start and keeps listening, so that no other process can listen there. They are kept for later additions.
//!
//! Code that listens on an address, or opens an image, looks here first. The descriptors belong to the thread that starts the
//! daemon, so that several daemons in one process each take their own.

use crate::connections::LeftConnection;
use parking_lot::Mutex;
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::net::{AddressFamily, SocketType, getsockname, sockopt};
use std::cell::RefCell;
use std::fs::{File, Metadata};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

/// A listening socket.
pub(crate) struct InheritedSocket {
    pub(crate) socket: OwnedFd,
    /// The last daemon has made it, so this one removes its file at the end.
    pub(crate) ours: bool,
}

/// Listening sockets of another process (systemd) that currently serve nothing.
#[derive(Clone, Default)]
pub(crate) struct SpareSockets(Arc<Mutex<Vec<OwnedFd>>>);

impl SpareSockets {
    pub(crate) fn keep(&self, socket: OwnedFd) {
        self.0.lock().push(socket);
    }

    /// The socket that listens on this path, if there is one whose file is still there.
    pub(crate) fn take_unix(&self, path: &Path) -> Option<InheritedSocket> {
        is_socket(path).then(|| self.take(|socket| is_at_path(socket, path)))?
    }

    /// The socket that listens on this address.
    pub(crate) fn take_tcp(&self, address: SocketAddr) -> Option<InheritedSocket> {
        self.take(|socket| listens_on(socket, address))
    }

    /// All of them.
    pub(crate) fn take_all(&self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.0.lock())
    }

    fn take(&self, is: impl Fn(&OwnedFd) -> bool) -> Option<InheritedSocket> {
        let mut sockets = self.0.lock();
        let at = sockets.iter().position(is)?;
        let socket = sockets.remove(at);
        Some(InheritedSocket {
            socket,
            ours: false,
        })
    }
}

thread_local! {
    static SOCKETS: RefCell<Vec<InheritedSocket>> = const { RefCell::new(Vec::new()) };
    static IMAGES: RefCell<Vec<File>> = const { RefCell::new(Vec::new()) };
    static CONNECTIONS: RefCell<Vec<LeftConnection>> = const { RefCell::new(Vec::new()) };
}

/// Offers a socket to the code that listens on its address.
///
/// # Errors
/// The reason, if it is not a listening stream socket.
pub(crate) fn offer_socket(socket: OwnedFd, ours: bool) -> Result<(), &'static str> {
    let stream = sockopt::socket_type(&socket).map_err(|_| "no socket")?;
    if stream != SocketType::STREAM {
        return Err("a socket of another kind than a stream");
    }
    if !sockopt::socket_acceptconn(&socket).unwrap_or(false) {
        return Err("a socket that does not listen");
    }
    SOCKETS.with_borrow_mut(|sockets| sockets.push(InheritedSocket { socket, ours }));
    Ok(())
}

/// Offers a locked image to the code that opens it.
pub(crate) fn offer_image(image: File) {
    IMAGES.with_borrow_mut(|images| images.push(image));
}

/// Offers a connection to the server at its address.
pub(crate) fn offer_connection(connection: LeftConnection) {
    CONNECTIONS.with_borrow_mut(|connections| connections.push(connection));
}

/// The socket that listens on this path, if there is one whose file is still there.
pub(crate) fn take_unix(path: &Path) -> Option<InheritedSocket> {
    is_socket(path).then(|| take(|socket| is_at_path(socket, path)))?
}

fn is_socket(path: &Path) -> bool {
    let there = std::fs::symlink_metadata(path);
    there.is_ok_and(|there| there.file_type().is_socket())
}

/// The connections of this protocol that were accepted on this path.
pub(crate) fn take_unix_connections(protocol: &str, path: &Path) -> Vec<LeftConnection> {
    take_connections(protocol, |socket| is_at_path(socket, path))
}

/// The connections of this protocol that were accepted on the address of this listener.
pub(crate) fn take_tcp_connections(protocol: &str, listener: SocketAddr) -> Vec<LeftConnection> {
    take_connections(protocol, |socket| is_at_address(socket, listener))
}

fn take_connections(protocol: &str, is: impl Fn(&OwnedFd) -> bool) -> Vec<LeftConnection> {
    CONNECTIONS.with_borrow_mut(|connections| {
        let found = |of: &mut LeftConnection| of.state.protocol == protocol && is(&of.socket);
        connections.extract_if(.., found).collect()
    })
}

/// Is it a socket of this path, listening or accepted there?
fn is_at_path(socket: &OwnedFd, path: &Path) -> bool {
    let name = getsockname(socket).ok();
    let name = name.and_then(|name| rustix::net::SocketAddrUnix::try_from(name).ok());
    let bytes = name.as_ref().and_then(|name| name.path_bytes());
    bytes == Some(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()))
}

/// Was it accepted on the address of this listener?
fn is_at_address(socket: &OwnedFd, listener: SocketAddr) -> bool {
    let name = getsockname(socket).ok();
    let name = name.and_then(|name| SocketAddr::try_from(name).ok());
    name.is_some_and(|name| {
        let ip = name.ip().to_canonical();
        let all = listener.ip().is_unspecified();
        name.port() == listener.port() && (all || ip == listener.ip().to_canonical())
    })
}

/// The socket that listens on this address. Wildcard addresses of both families match each other.
pub(crate) fn take_tcp(address: SocketAddr) -> Option<InheritedSocket> {
    take(|socket| listens_on(socket, address))
}

fn listens_on(socket: &OwnedFd, address: SocketAddr) -> bool {
    let families = [AddressFamily::INET, AddressFamily::INET6];
    let family = sockopt::socket_domain(socket);
    let name = getsockname(socket).ok();
    let name = name.and_then(|name| SocketAddr::try_from(name).ok());
    family.is_ok_and(|family| families.contains(&family))
        && name.is_some_and(|name| {
            let all = name.ip().is_unspecified() && address.ip().is_unspecified();
            name.port() == address.port() && (all || name.ip() == address.ip())
        })
}

fn take(is: impl Fn(&OwnedFd) -> bool) -> Option<InheritedSocket> {
    SOCKETS.with_borrow_mut(|sockets| {
        let at = sockets.iter().position(|found| is(&found.socket))?;
        Some(sockets.remove(at))
    })
}

/// The open file of an image from the last daemon, if its mode fits: writable or not, and direct I/O or, where that fails, not.
/// A file of another mode is closed.
pub(crate) fn take_image(found: &Metadata, writable: bool, direct: bool) -> Option<File> {
    let is = |image: &File| {
        image.metadata().is_ok_and(|of| {
            let (of, found) = if found.file_type().is_block_device() {
                ((1, of.rdev()), (1, found.rdev()))
            } else {
                ((of.dev(), of.ino()), (found.dev(), found.ino()))
            };
            of == found
        })
    };
    let image = IMAGES.with_borrow_mut(|images| {
        let at = images.iter().position(is)?;
        Some(images.remove(at))
    })?;
    let flags = fcntl_getfl(&image).ok()?;
    let is_writable = flags & OFlags::RWMODE == OFlags::RDWR;
    let fits = is_writable == writable && (direct || !flags.contains(OFlags::DIRECT));
    fits.then_some(image)
}

/// Closes unused descriptors, but keeps sockets of another process. Returns how many were closed.
pub(crate) fn close_rest(spare: &SpareSockets) -> usize {
    let mut closed = IMAGES.take().len() + CONNECTIONS.take().len();
    for InheritedSocket { socket, ours } in SOCKETS.take() {
        if ours {
            closed += 1;
        } else {
            spare.keep(socket);
        }
    }
    closed
}
