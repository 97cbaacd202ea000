//! The process that reads on an owner's behalf: the kernel charges a page to the cgroup of the process that brings it
//! in, so somebody has to read from within.
//!
//! It is this program once more, knows no path and opens nothing: the file comes to it opened (as its standard output,
//! which is read), and what to read comes over a socket (its standard input). It lives for one file, ends with its
//! socket, and the kernel kills it with the thread that has started it. Should the tenant run out of memory, it is the
//! first to be killed.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use justitia_kernel::cgroup::Cgroup;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// Read at once.
const PIECE: usize = 256 << 10;

/// The agent's end. Dropped, the process is gone.
#[derive(Debug)]
pub struct Reader {
    child: Child,
    socket: UnixStream,
}

impl Reader {
    /// Starts a process that can read `file`, and moves it into `cgroup`. A read must be over within `patience`.
    ///
    /// # Errors
    /// What could not be done.
    pub fn start(file: &File, cgroup: &Cgroup, patience: Duration) -> Result<Self, String> {
        let failed = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
        let (socket, theirs) = UnixStream::pair().map_err(|e| failed("a socket", &e))?;
        socket
            .set_read_timeout(Some(patience))
            .map_err(|e| failed("a socket", &e))?;
        let file = file.try_clone().map_err(|e| failed("the file", &e))?;
        let child = Command::new("/proc/self/exe")
            .arg("read-for")
            .arg(std::process::id().to_string())
            .current_dir("/")
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::from(file))
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|e| failed("a process to read", &e))?;
        let reader = Self { child, socket };
        // Until it is told to, it reads nothing.
        cgroup.attach_process(reader.child.id()).map_err(|e| {
            failed(
                "a process of ours could not be moved into the owner's cgroup",
                &e,
            )
        })?;
        Ok(reader)
    }

    /// Whether nobody else is left in the cgroup, which then would be held by this process alone.
    #[must_use]
    pub fn alone_in(&self, cgroup: &Cgroup) -> bool {
        !cgroup.has_other_processes(self.child.id()).unwrap_or(false)
    }

    /// Has `length` bytes from `offset` read; says how many there were.
    ///
    /// # Errors
    /// If it took too long, or the process has ended.
    pub fn read(&mut self, offset: u64, length: u64) -> std::io::Result<u64> {
        let mut request = [0; 16];
        request[..8].copy_from_slice(&offset.to_ne_bytes());
        request[8..].copy_from_slice(&length.to_ne_bytes());
        self.socket.write_all(&request)?;
        let mut answer = [0; 8];
        self.socket.read_exact(&mut answer)?;
        Ok(u64::from_ne_bytes(answer))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Fails only where it has ended already. A read that waits for the disk ends first.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The process's end: `justitia read-for PID`, on the agent's behalf alone.
///
/// # Errors
/// If it was not started by the process `parent`, or its file or socket fails.
pub fn read_for(parent: u32) -> std::io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have gone before.
    let ours = getppid().map(|pid| pid.as_raw_nonzero().get());
    if ours != i32::try_from(parent).ok() {
        return Err(std::io::Error::other(format!(
            "expected to be started by process {parent}, found {ours:?}"
        )));
    }
    // Where there is no such file, nobody is killed for memory either.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let file = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
    serve(&mut socket, &file)
}

fn serve(socket: &mut UnixStream, file: &File) -> std::io::Result<()> {
    let mut piece = vec![0; PIECE];
    let mut request = [0; 16];
    loop {
        match socket.read_exact(&mut request) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(e) => return Err(e),
        }
        let [offset, length] = [0, 8].map(|at| {
            let mut word = [0; 8];
            word.copy_from_slice(&request[at..at + 8]);
            u64::from_ne_bytes(word)
        });
        let mut done = 0;
        while done < length {
            let most = usize::try_from(length - done).map_or(PIECE, |left| left.min(PIECE));
            match file.read_at(&mut piece[..most], offset + done)? {
                0 => break,
                read => done += u64::try_from(read).unwrap_or(0),
            }
        }
        socket.write_all(&done.to_ne_bytes())?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_what_it_is_asked_for_and_ends_with_its_socket() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&vec![7; 3 * PIECE], 0).unwrap();
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let reading = std::thread::spawn(move || serve(&mut theirs, &file));
        let mut ask = |offset: usize, length: usize| {
            for word in [offset, length] {
                ours.write_all(&u64::try_from(word).unwrap().to_ne_bytes())
                    .unwrap();
            }
            let mut answer = [0; 8];
            ours.read_exact(&mut answer).unwrap();
            usize::try_from(u64::from_ne_bytes(answer)).unwrap()
        };
        assert_eq!(ask(0, 2 * PIECE + 5), 2 * PIECE + 5);
        assert_eq!(ask(2 * PIECE, 2 * PIECE), PIECE, "up to the end");
        assert_eq!(ask(9 * PIECE, 1), 0);
        drop(ours);
        reading.join().unwrap().unwrap();
    }

    #[test]
    fn it_serves_nobody_but_who_started_it() {
        let error = read_for(1_999_999_999).unwrap_err();
        set_parent_process_death_signal(None).unwrap();
        assert!(
            error.to_string().contains("expected to be started by"),
            "{error}"
        );
    }
}
