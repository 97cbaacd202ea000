//! Unix sockets that no other user can connect to or replace.

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Why a socket cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another server does already.
    #[error(
        "cannot listen on {path}: another server answers there: stop it, or choose another path"
    )]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// Something else has that name.
    #[error("cannot listen on {path}: expected a socket or nothing, found another kind of file")]
    NoSocket {
        /// The path.
        path: PathBuf,
    },
    /// Others can write the directory, and so put a socket of theirs in its place.
    #[error(
        "cannot listen on {path}: expected a directory that only this user or root may write, found one of the user {uid} with mode {mode:03o}: choose another, such as one in /run or $XDG_RUNTIME_DIR"
    )]
    Directory {
        /// The socket.
        path: PathBuf,
        /// The owner of its directory.
        uid: u32,
        /// The mode of its directory.
        mode: u32,
    },
    /// A TCP port that would ask no client for a certificate.
    #[error(
        "cannot listen on {address}: expected certificates of clients ([tls] with verify_clients) or `insecure = true`, found neither: every client that reaches the address could read and write every disk"
    )]
    Unauthenticated {
        /// The address.
        address: SocketAddr,
    },
    /// The system refused.
    #[error("cannot listen on {what}: {source}")]
    Io {
        /// The socket or address.
        what: String,
        /// Why not.
        source: io::Error,
    },
}

/// Checks that other users cannot replace the socket by one of theirs.
fn check_directory(path: &Path) -> Result<(), ListenError> {
    let directory = match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    let found = std::fs::metadata(directory).map_err(|source| ListenError::Io {
        what: path.display().to_string(),
        source,
    })?;
    let ours = rustix::process::geteuid().as_raw();
    if [0, ours].contains(&found.uid()) && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(ListenError::Directory {
        path: path.into(),
        uid: found.uid(),
        mode: found.mode() & 0o7777,
    })
}

/// Listens on a unix socket for this user alone. One that no server answers on is replaced.
///
/// # Errors
/// When something else is there, or the system refuses.
pub(crate) fn unix_listener(path: &Path) -> Result<OwnedFd, ListenError> {
    let io_error = |source: io::Error| ListenError::Io {
        what: path.display().to_string(),
        source,
    };
    let errno = |e: rustix::io::Errno| io_error(e.into());
    let new = || {
        socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
    };
    let address = SocketAddrUnix::new(path).map_err(errno)?;
    check_directory(path)?;
    match std::fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ListenError::NoSocket { path: path.into() });
        }
        Ok(_) => {
            // Only this error says that nobody has it open.
            match connect(&new().map_err(errno)?, &address) {
                Ok(()) => return Err(ListenError::InUse { path: path.into() }),
                Err(Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(io_error)?,
                Err(other) => return Err(errno(other)),
            }
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {}
        Err(e) => return Err(io_error(e)),
    }
    let socket = new().map_err(errno)?;
    bind(&socket, &address).map_err(errno)?;
    // No client can connect before listen, so none connects before the mode is set.
    rustix::fs::chmod(path, Mode::RUSR | Mode::WUSR).map_err(errno)?;
    listen(&socket, 128).map_err(errno)?;
    Ok(socket)
}
