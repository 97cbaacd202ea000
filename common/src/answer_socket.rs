//! A socket that answers with one document: connect, and read it until the end.

use std::io::{ErrorKind, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use justitia_api::client::connect;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};

/// A client that does not read is cut off.
const WRITE_TIMEOUT: Duration = Duration::from_secs(2);
/// Clients that may wait to be accepted.
const BACKLOG: i32 = 128;
/// Clients that are answered at one turn.
const MAX_CLIENTS: usize = 16;

/// The socket; removed when dropped.
#[derive(Debug)]
pub struct AnswerSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl AnswerSocket {
    /// Listens at `path`, for the owner only. A socket that a dead process has left there is replaced; one that a process
    /// has open, of whatever kind, is not.
    ///
    /// # Errors
    /// If the directory cannot be made or the address is in use.
    pub fn listen(path: &Path) -> std::io::Result<Self> {
        use std::os::unix::fs::DirBuilderExt;
        if let Some(dir) = path.parent() {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(dir)?;
        }
        match std::fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => {
                return Err(std::io::Error::other(
                    "expected nothing or a socket there, found something else: it is left alone",
                ));
            }
            // Only this error says that no process has it open: a living socket of another kind refuses with another error.
            Ok(_) => match connect(path) {
                Err(e) if e.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path)?,
                _ => {}
            },
            Err(_) => {}
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        bind(&socket, &SocketAddrUnix::new(path)?)?;
        // No client can connect before `listen`, so none does before the socket has its mode.
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        listen(&socket, BACKLOG)?;
        Ok(Self {
            listener: socket.into(),
            path: path.to_owned(),
        })
    }

    /// The listener, to wait for clients.
    #[must_use]
    pub const fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Answers each client that waits. `document` is called once, and only if a client waits; what it returns makes the
    /// text, in a thread of its own.
    pub fn answer<M: FnOnce() -> Vec<u8> + Send + 'static>(&self, document: impl FnOnce() -> M) {
        let accepted = std::iter::from_fn(|| self.listener.accept().ok());
        let clients: Vec<_> = accepted
            .map(|(client, _)| client)
            .take(MAX_CLIENTS)
            .collect();
        if clients.is_empty() {
            return;
        }
        let text = document();
        let tell = move || tell_all(clients, &text().into());
        let _ = std::thread::Builder::new()
            .name("status".into())
            .spawn(tell);
    }
}

/// Tells the clients, each by itself: one may be slow.
fn tell_all(clients: Vec<UnixStream>, text: &Arc<[u8]>) {
    for mut client in clients {
        let text = Arc::clone(text);
        let tell = move || {
            let _ = client.set_nonblocking(false);
            let _ = client.set_write_timeout(Some(WRITE_TIMEOUT));
            let _ = client.write_all(&text);
        };
        let _ = std::thread::Builder::new()
            .name("status-client".into())
            .spawn(tell);
    }
}

impl Drop for AnswerSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn a_living_socket_of_another_kind_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("j.sock");
        let living = UnixDatagram::bind(&path).unwrap();
        let refused = AnswerSocket::listen(&path).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::AddrInUse);
        let sender = UnixDatagram::unbound().unwrap();
        sender.send_to(b"hello", &path).unwrap();
        assert_eq!(living.recv(&mut [0; 8]).unwrap(), 5);

        // A socket that no process has open any more is replaced, too.
        drop(living);
        AnswerSocket::listen(&path).unwrap();
    }
}
