//! The virtio-serial port for the host's requests.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use justitia_guest_protocol::memory::PORT_NAME;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};

/// How long the host may take to make room for an answer. Then the answer is dropped: the host has given it up.
const ROOM: Duration = Duration::from_secs(1);

/// The device of the port, if this machine has one. `sys` is `/sys`, `dev` is `/dev`.
pub(super) fn find(sys: &Path, dev: &Path) -> Option<PathBuf> {
    let ports = fs::read_dir(sys.join("class/virtio-ports")).ok()?;
    let is_ours = |path: &Path| {
        fs::read_to_string(path.join("name")).is_ok_and(|name| name.trim_end() == PORT_NAME)
    };
    let mut ours: Vec<PathBuf> = ports
        .flatten()
        .filter(|port| is_ours(&port.path()))
        .map(|port| dev.join(port.file_name()))
        .collect();
    ours.sort_unstable();
    ours.into_iter().next()
}

/// The result of a read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// This many bytes.
    Bytes(usize),
    /// Nothing yet.
    Nothing,
    /// The other end is closed.
    NoHost,
}

/// An open port. No other process has it open. Calls wait for the host no longer than they say.
#[derive(Debug)]
pub(super) struct Port {
    file: File,
    /// The host has let an answer wait for too long: the next ones do not wait until it takes one.
    is_clogged: bool,
}

impl Port {
    /// Opens the port.
    ///
    /// # Errors
    /// If it does not exist, or another process has it open (`EBUSY`).
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        Ok(Self {
            file,
            is_clogged: false,
        })
    }

    /// Waits at most `wait` for input from the host.
    ///
    /// # Errors
    /// If the port is gone.
    pub(super) fn read(&mut self, buffer: &mut [u8], wait: Duration) -> io::Result<Found> {
        let ready = self.poll(PollFlags::IN, wait)?;
        if ready.is_empty() {
            return Ok(Found::Nothing);
        }
        match self.file.read(buffer) {
            Ok(0) => Ok(Found::NoHost),
            Ok(read) => Ok(Found::Bytes(read)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                match ready.contains(PollFlags::HUP) {
                    true => Ok(Found::NoHost),
                    false => Ok(Found::Nothing),
                }
            }
            Err(error) => Err(error),
        }
    }

    /// Writes a line, if the host makes room for it within a second.
    ///
    /// # Errors
    /// If it does not (`WouldBlock`), or the port is gone.
    pub(super) fn write(&mut self, line: &[u8]) -> io::Result<()> {
        let until = match self.is_clogged {
            true => Instant::now(),
            false => Instant::now() + ROOM,
        };
        let written = self.write_until(line, until);
        self.is_clogged = written.is_err();
        written
    }

    fn write_until(&mut self, mut line: &[u8], until: Instant) -> io::Result<()> {
        while !line.is_empty() {
            match self.file.write(line) {
                // The driver's buffer is full.
                Ok(0) => return Err(io::ErrorKind::WouldBlock.into()),
                Ok(written) => line = line.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Err(error) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(error);
                    }
                    // Without a host, poll returns at once and the port is never ready.
                    if self.poll(PollFlags::OUT, left)?.contains(PollFlags::HUP) {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    fn poll(&self, of: PollFlags, wait: Duration) -> io::Result<PollFlags> {
        let mut fds = [PollFd::new(&self.file, of)];
        let wait = Timespec::try_from(wait).ok();
        match poll(&mut fds, wait.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => Ok(PollFlags::empty()),
            Ok(_) => Ok(fds.first().map_or(PollFlags::empty(), PollFd::revents)),
            Err(errno) => Err(errno.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_port_is_known_by_its_name() {
        let sys = tempfile::tempdir().unwrap();
        let dev = Path::new("/dev");
        assert_eq!(find(sys.path(), dev), None);
        for (port, name) in [
            ("vport0p1", "org.qemu.guest_agent.0\n"),
            ("vport1p3", "org.justitia.memory.0\n"),
            ("vport2p1", "org.justitia.memory.0"),
            ("vport0p2", "org.justitia.memory.01\n"),
        ] {
            let port = sys.path().join("class/virtio-ports").join(port);
            fs::create_dir_all(&port).unwrap();
            fs::write(port.join("name"), name).unwrap();
        }
        let nameless = sys.path().join("class/virtio-ports/vport0p0");
        fs::create_dir(nameless).unwrap();
        assert_eq!(find(sys.path(), dev), Some(PathBuf::from("/dev/vport1p3")));
    }

    #[test]
    fn udev_starts_the_agent_where_there_is_the_port() {
        let rules = include_str!("../../../packaging/60-justitia-guest.rules");
        assert!(rules.contains(&format!("ATTR{{name}}==\"{PORT_NAME}\"")));
    }

    /// A port that is a socket, and its other end.
    fn pair() -> (Port, UnixStream) {
        let (port, host) = UnixStream::pair().unwrap();
        port.set_nonblocking(true).unwrap();
        let file = File::from(std::os::fd::OwnedFd::from(port));
        let port = Port {
            file,
            is_clogged: false,
        };
        (port, host)
    }

    #[test]
    fn reading_waits_for_a_while() {
        let (mut port, mut host) = pair();
        let mut buffer = [0; 16];
        let mut read = || port.read(&mut buffer, Duration::from_millis(10)).unwrap();
        assert_eq!(read(), Found::Nothing);
        host.write_all(b"abc").unwrap();
        assert_eq!(read(), Found::Bytes(3));
        drop(host);
        assert_eq!(read(), Found::NoHost);
    }

    #[test]
    fn an_answer_that_nobody_reads_is_dropped() {
        let (mut port, mut host) = pair();
        port.write(b"line\n").unwrap();
        let mut line = [0; 5];
        host.read_exact(&mut line).unwrap();
        assert_eq!(&line, b"line\n");
        let much = vec![b'x'; 1 << 22];
        let error = port.write(&much).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        // The next ones do not wait, until the host reads again.
        assert!(port.is_clogged);
        assert!(port.write(b"line\n").is_err() && port.is_clogged);
        host.set_nonblocking(true).unwrap();
        let mut all = Vec::new();
        let _ = host.read_to_end(&mut all);
        port.write(b"line\n").unwrap();
        assert!(!port.is_clogged);
    }
}
