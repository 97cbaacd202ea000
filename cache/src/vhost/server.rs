//! The socket of a disk. It serves one front end at a time.

use super::config::ConfigChannel;
use super::device::Device;
use super::hangup::Hangup;
use super::leave::{Left, PROTOCOL};
use super::limits::SECTOR;
use super::messages;
use crate::connections::LeftConnection;
use crate::frontend::{
    Amount, Executor, IoLimits, ListenError, SocketAccess, Volume, reopen_to, unix_listener,
};
use crate::inherited;
use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{Shutdown, SocketFlags, accept_with, shutdown};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Open files of a connection: the socket and two copies, the eventfd that wakes its thread, the channel of the back end's
/// messages, and the region of requests in flight.
const CONNECTION_FILES: u64 = 6;

/// A disk, served over vhost-user on a socket of its own.
pub struct VhostServer {
    path: PathBuf,
    listener: Arc<OwnedFd>,
    shared: Arc<Shared>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

struct Shared {
    volume: Arc<Volume>,
    executor: Executor,
    limits: IoLimits,
    closing: AtomicBool,
    /// The front end's connection.
    session: Mutex<Option<Arc<Session>>>,
    ended: Condvar,
    /// The connection, for the next daemon.
    left: Mutex<Option<LeftConnection>>,
}

struct Session {
    hangup: Arc<Hangup>,
    config_channel: Arc<ConfigChannel>,
}

/// Removes the session when its thread ends or panics.
struct SessionEntry(Arc<Shared>);

impl Drop for SessionEntry {
    fn drop(&mut self) {
        *self.0.session.lock() = None;
        self.0.ended.notify_all();
    }
}

/// Warns of an image's last bytes if they do not fill a sector, since a virtio disk has whole sectors.
fn warn_of_tail(volume: &Volume) {
    let tail = volume.size() % SECTOR;
    if tail > 0 {
        tracing::warn!(
            disk = volume.name(),
            "expected an image of whole sectors of {SECTOR} bytes, found {} bytes: its last {tail} bytes cannot be reached over vhost-user-blk (make it longer: `truncate -s %{SECTOR}`, then `justitia cache set disk {} --rescan`)",
            volume.size(),
            volume.name()
        );
    }
}

impl VhostServer {
    /// Serves a volume on a unix socket. No other user may write its directory. A dead socket at the path is replaced.
    ///
    /// # Errors
    /// When another file is at the path, others may write the directory, or the system refuses.
    pub(crate) fn listen(
        path: &Path,
        volume: Arc<Volume>,
        executor: Executor,
        limits: IoLimits,
        access: SocketAccess,
    ) -> Result<Self, ListenError> {
        warn_of_tail(&volume);
        let listener = Arc::new(unix_listener(path, access)?);
        let shared = Arc::new(Shared {
            volume,
            executor,
            limits,
            closing: AtomicBool::new(false),
            session: Mutex::new(None),
            ended: Condvar::new(),
            left: Mutex::new(None),
        });
        shared.take(inherited::take_unix_connections(PROTOCOL, path));
        let (socket, accepting) = (Arc::clone(&listener), Arc::clone(&shared));
        let thread = std::thread::Builder::new()
            .name("justitia-vhost".into())
            .spawn(move || accepting.accept(&socket))
            .map_err(|e| ListenError::new(path.display(), e))?;
        Ok(Self {
            path: path.to_owned(),
            listener,
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Gives the socket to those who have access to it from now on.
    pub(crate) fn reopen_to(&self, access: SocketAccess) {
        reopen_to(&self.path, access);
    }

    /// Is a front end connected?
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.shared.session.lock().is_some()
    }

    /// The volume that is served.
    pub(crate) fn volume(&self) -> &Arc<Volume> {
        &self.shared.volume
    }

    /// Tells the front end that the disk's size has changed, if it takes messages.
    pub(crate) fn notify_config(&self) {
        warn_of_tail(&self.shared.volume);
        let session = self.shared.session.lock().clone();
        if let Some(session) = session
            && let Err(e) = session.config_channel.notify()
        {
            let disk = self.shared.volume.name();
            tracing::warn!(disk, "cannot tell a guest the new size of its disk: {e}");
        }
    }

    /// Stops taking front ends and requests; requests in flight are answered. With `leaving` the front end is not disconnected,
    /// but [left](Self::take_left) to the next daemon.
    pub(crate) fn close(&self, leaving: bool) {
        self.shared.closing.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = shutdown(&self.listener, Shutdown::Both);
        if let Some(session) = &*self.shared.session.lock() {
            if leaving {
                session.hangup.leave();
            } else {
                session.hangup.close();
            }
        }
    }

    /// The front end's connection, if its requests were answered in time after [`close`](Self::close).
    pub(crate) fn take_left(&self) -> Option<LeftConnection> {
        self.shared.left.lock().take()
    }

    /// Waits until the requests in flight at [`close`](Self::close) are answered. A disk that does not answer until `deadline`
    /// is left behind.
    pub(crate) fn wait(&self, deadline: Instant) {
        let mut session = self.shared.session.lock();
        while session.is_some() {
            if self
                .shared
                .ended
                .wait_until(&mut session, deadline)
                .timed_out()
            {
                let disk = self.shared.volume.name();
                tracing::warn!(disk, "left behind with requests of a guest in flight");
                break;
            }
        }
        drop(session);
        // Only once: later the path may belong to another server.
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Closes it and waits for at most `timeout`.
    #[cfg(test)]
    pub(crate) fn shut_down(&self, timeout: Duration) {
        self.close(false);
        self.wait(Instant::now() + timeout);
    }
}

impl Shared {
    /// Accepts front ends until the server closes.
    fn accept(self: Arc<Self>, listener: &OwnedFd) {
        loop {
            let accepted = accept_with(listener, SocketFlags::CLOEXEC);
            if self.closing.load(Ordering::SeqCst) {
                return;
            }
            match accepted {
                Ok(socket) => self.start_session(socket.into(), None),
                Err(e) => {
                    // A temporary shortage, for example of descriptors.
                    tracing::warn!("cannot accept a front end: {e}");
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
    }

    /// Logs why a front end is refused or disconnected.
    fn log(&self, what: &str, why: &dyn std::fmt::Display) {
        if let Some(left_out) = self.volume.log.permit() {
            tracing::warn!(disk = self.volume.name(), "{what}: {why}{left_out}");
        }
    }

    /// Resumes the front end that the last daemon has left. There is one; more are closed.
    fn take(self: &Arc<Self>, left: Vec<LeftConnection>) {
        if let Some(connection) = left.into_iter().next() {
            let LeftConnection {
                socket,
                others,
                state,
            } = connection;
            self.start_session(socket.into(), Some(Left { state, others }));
        }
    }

    fn start_session(self: &Arc<Self>, socket: UnixStream, left: Option<Left>) {
        let refused = "refused a front end";
        if !self.is_free() {
            return self.log(refused, &"another one has the disk");
        }
        let limit = self.limits.vm_connections;
        let Some(permit) = self.volume.vm().connect(limit) else {
            let why = format!("its VM has {limit} connections, which is the limit");
            return self.log(refused, &why);
        };
        let budget = self.volume.vm().budget.for_front_end();
        let share = budget.take(Amount {
            files: CONNECTION_FILES,
            ..Amount::default()
        });
        let share = match share {
            Ok(share) => share,
            Err(e) => return self.log(refused, &e),
        };
        let hangup = match socket.try_clone().and_then(Hangup::new) {
            Ok(hangup) => Arc::new(hangup),
            Err(e) => return self.log(refused, &e),
        };
        let config_channel = Arc::<ConfigChannel>::default();
        let device = Device::new(
            Arc::clone(&self.volume),
            self.executor.clone(),
            self.limits,
            Arc::clone(&config_channel),
            Arc::clone(&hangup),
            budget,
        );
        *self.session.lock() = Some(Arc::new(Session {
            hangup: Arc::clone(&hangup),
            config_channel,
        }));
        // The server may have been closed before it could find the session.
        if self.closing.load(Ordering::SeqCst) {
            hangup.close();
        }
        let entry = SessionEntry(Arc::clone(self));
        let started = std::thread::Builder::new()
            .name("justitia-vhost".into())
            .spawn(move || {
                let entry = entry;
                match messages::serve(socket, device, left) {
                    Ok(left) => *entry.0.left.lock() = left,
                    Err(e) => entry.0.log("a front end's connection broke", &e),
                }
                drop((permit, share));
            });
        if let Err(e) = started {
            self.log("cannot start a thread for a front end", &e);
        }
    }

    /// Waits for requests in flight of the last front end if it has left. Returns `false` if it is still connected.
    fn is_free(&self) -> bool {
        let mut session = self.session.lock();
        while let Some(current) = &*session {
            if !has_left(&current.hangup.socket) {
                return false;
            }
            if self.closing.load(Ordering::SeqCst) {
                return false;
            }
            self.ended
                .wait_for(&mut session, Duration::from_millis(100));
        }
        true
    }
}

/// Has the other side closed the connection?
fn has_left(socket: &UnixStream) -> bool {
    let mut waiting = PollFd::new(socket, PollFlags::RDHUP);
    let left = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
    poll(
        std::slice::from_mut(&mut waiting),
        Some(&rustix::time::Timespec::default()),
    )
    .is_ok_and(|n| n > 0)
        && waiting.revents().intersects(left)
}
