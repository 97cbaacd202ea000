//! Unix sockets that no other user can connect to or replace.

use justitia_common::regular_file::{self, LockFile, directory_of};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::{Gid, Mode, Uid};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why listening on a socket failed: what was expected and found, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {what}: {why}")]
pub struct ListenError {
    /// The socket or address.
    what: String,
    why: String,
}

impl ListenError {
    pub(crate) fn new(what: impl Display, why: impl Display) -> Self {
        let (what, why) = (what.to_string(), why.to_string());
        Self { what, why }
    }

    fn in_use(path: &Path) -> Self {
        let why = "another server answers there: stop it, or choose another path";
        Self::new(path.display(), why)
    }
}

/// Owner, group and mode of a unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SocketAccess {
    /// The mode of the socket. It never has bits for others than owner and group.
    pub mode: u16,
    /// Its owner, if not the listening user.
    pub owner: Option<u32>,
    /// Its group, if not that of the process.
    pub group: Option<u32>,
}

impl Default for SocketAccess {
    /// For this user alone.
    fn default() -> Self {
        Self {
            mode: 0o600,
            owner: None,
            group: None,
        }
    }
}

/// Checks that other users cannot replace the socket.
fn check_directory(path: &Path) -> Result<(), ListenError> {
    let error = |why: &dyn Display| ListenError::new(path.display(), why);
    let found = regular_file::foreign_directory(path).map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => error(&format_args!(
            "expected its directory, found none: make it (`install -d -m 0711 {}`)",
            directory_of(path).display()
        )),
        _ => error(&e),
    })?;
    found.map_or(Ok(()), |(uid, mode)| {
        Err(error(&format_args!(
            "expected a directory that only this user or root may write, found one of the user {uid} with mode {mode:03o}: choose another, such as one in /run or $XDG_RUNTIME_DIR"
        )))
    })
}

/// Listens on a unix socket. Replaces a dead socket at the path. Meanwhile it holds the lock of a file beside the socket, whose
/// name ends in `.lock`, and which is removed.
///
/// # Errors
/// When another server answers there or is about to, another file is at the path, or the system refuses.
pub(crate) fn unix_listener(path: &Path, access: SocketAccess) -> Result<OwnedFd, ListenError> {
    let io_error = |e: io::Error| ListenError::new(path.display(), e);
    let errno = |e: Errno| io_error(e.into());
    let address = SocketAddrUnix::new(path).map_err(errno)?;
    check_directory(path)?;
    // A socket refuses connections when no process has it open, but also between bind and listen. The lock excludes the latter.
    let _lock = lock(path)?;
    if is_there(path)? {
        check_unused(path, &address)?;
        std::fs::remove_file(path).map_err(io_error)?;
    }
    let socket = socket(SocketFlags::empty()).map_err(errno)?;
    bind(&socket, &address).map_err(errno)?;
    if let Err(e) = open_to(&socket, path, access) {
        // The lock is held, so it is the socket that was just bound.
        let _ = std::fs::remove_file(path);
        return Err(errno(e));
    }
    Ok(socket)
}

/// Whether a socket is there.
///
/// # Errors
/// When something else is.
fn is_there(path: &Path) -> Result<bool, ListenError> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => Ok(true),
        Ok(_) => {
            let why = "expected a socket or nothing, found another kind of file";
            Err(ListenError::new(path.display(), why))
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(ListenError::new(path.display(), e)),
    }
}

/// Checks the place of a socket without listening. A directory that is not there may be made before the start.
///
/// # Errors
/// When [`unix_listener`] would refuse the path, its directory, or what is there.
pub(crate) fn check_socket_place(path: &Path) -> Result<(), ListenError> {
    SocketAddrUnix::new(path).map_err(|e| ListenError::new(path.display(), io::Error::from(e)))?;
    if directory_of(path).is_dir() {
        check_directory(path)?;
    }
    is_there(path).map(drop)
}

/// Lets those connect to the bound socket who may. No client can connect before listen, so none connects before owner and mode
/// are set.
fn open_to(socket: &OwnedFd, path: &Path, access: SocketAccess) -> rustix::io::Result<()> {
    // Set the mode first: changing that of another user's socket takes CAP_FOWNER.
    rustix::fs::chmod(path, Mode::from_raw_mode(access.mode.into()))?;
    let (owner, group) = (
        access.owner.map(Uid::from_raw),
        access.group.map(Gid::from_raw),
    );
    if owner.is_some() || group.is_some() {
        rustix::fs::chown(path, owner, group)?;
    }
    listen(socket, 128)
}

/// Gives a socket that is listened on another mode and owner, for clients that connect from now on. What fails is said, and
/// leaves the socket usable by those who could use it.
pub(crate) fn reopen_to(path: &Path, access: SocketAccess) {
    let reopen = || -> rustix::io::Result<()> {
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        // Without CAP_FOWNER only the owner may change the mode.
        let group = access.group.map_or(group, Gid::from_raw);
        rustix::fs::chown(path, Some(user), Some(group))?;
        rustix::fs::chmod(path, Mode::from_raw_mode(access.mode.into()))?;
        match access.owner {
            Some(owner) => rustix::fs::chown(path, Some(Uid::from_raw(owner)), None),
            None => Ok(()),
        }
    };
    if let Err(e) = reopen() {
        tracing::error!(
            "cannot change the mode and the owner of the socket {}: {e}",
            path.display()
        );
    }
}

fn socket(flags: SocketFlags) -> rustix::io::Result<OwnedFd> {
    let flags = flags | SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
}

/// Locks the file beside the socket.
fn lock(path: &Path) -> Result<LockFile, ListenError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let name = PathBuf::from(name);
    LockFile::take(&name).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => ListenError::in_use(path),
        _ => ListenError::new(
            format_args!("{}: its lock {}", path.display(), name.display()),
            e,
        ),
    })
}

/// Checks that no process has the socket at `path` open.
fn check_unused(path: &Path, address: &SocketAddrUnix) -> Result<(), ListenError> {
    let connected = socket(SocketFlags::NONBLOCK).and_then(|socket| connect(&socket, address));
    match connected {
        Err(Errno::CONNREFUSED) => Ok(()),
        // AGAIN: the server's backlog is full.
        Ok(()) | Err(Errno::AGAIN) => Err(ListenError::in_use(path)),
        Err(Errno::PROTOTYPE) => Err(ListenError::new(
            path.display(),
            "expected a stream socket or nothing, found a socket of another kind that is open: stop what has it open, or choose another path",
        )),
        Err(other) => Err(ListenError::new(path.display(), io::Error::from(other))),
    }
}

// Waiting for clients, until woken. A listening socket may be systemd's, or the next daemon's, so it must not be shut down.

/// Wakes the thread that accepts a listener's clients.
#[derive(Clone)]
pub(crate) struct Waker(Arc<OwnedFd>);

impl Waker {
    /// A waker for the thread that accepts clients of `socket`. Makes the socket non-blocking.
    pub(crate) fn new(socket: impl AsFd) -> io::Result<Self> {
        ioctl_fionbio(socket, true)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(wake)))
    }

    /// Wakes the thread, now and in all later waits.
    pub(crate) fn wake(&self) {
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// An eventfd that is readable once woken, for a poll with other descriptors.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Waits until there is a client, or until woken.
    pub(crate) fn wait(&self, socket: impl AsFd) {
        let mut both = [
            PollFd::new(&socket, PollFlags::IN),
            PollFd::new(&*self.0, PollFlags::IN),
        ];
        while poll(&mut both, None) == Err(Errno::INTR) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    use std::os::unix::fs::MetadataExt;

    /// Listens for another user, in a thread without these capabilities.
    fn listen_without(dropped: CapabilitySet, path: &Path) -> Result<OwnedFd, ListenError> {
        let access = SocketAccess {
            mode: 0o660,
            owner: Some(65534),
            group: None,
        };
        let listen = || {
            let mut own = capabilities(None).unwrap();
            own.effective -= dropped;
            set_capabilities(None, own).unwrap();
            unix_listener(path, access)
        };
        std::thread::scope(|scope| scope.spawn(listen).join().unwrap())
    }

    #[test]
    fn a_socket_that_cannot_be_listened_on_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let error = listen_without(CapabilitySet::CHOWN, &path).unwrap_err();
        assert!(error.to_string().contains("not permitted"), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_socket_is_given_to_another_user_without_cap_fowner() {
        let own = capabilities(None).unwrap().effective;
        if !own.contains(CapabilitySet::CHOWN) {
            eprintln!("not tested: this user cannot give files away");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _socket = listen_without(CapabilitySet::FOWNER, &path).unwrap();
        let found = || {
            let found = std::fs::metadata(&path).unwrap();
            (found.uid(), found.mode() & 0o777)
        };
        assert_eq!(found(), (65534, 0o660));
        // Nor does another mode, while it is listened on, take that.
        let other = SocketAccess {
            mode: 0o600,
            owner: Some(65533),
            group: None,
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut own = capabilities(None).unwrap();
                own.effective -= CapabilitySet::FOWNER;
                set_capabilities(None, own).unwrap();
                reopen_to(&path, other);
            });
        });
        assert_eq!(found(), (65533, 0o600));
    }
}
