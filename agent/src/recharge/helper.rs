//! The helper process that reads for the owner: the kernel charges a page to the cgroup of the process that reads it in, so a
//! process in that cgroup must read.
//!
//! It is this program again. It knows no path and opens nothing. The agent opens the file as its standard output, and requests
//! come over a socket, its standard input. It lives for one file and ends with its socket. The kernel also kills it with the
//! thread that has started it. If the tenant runs out of memory, the OOM killer kills the helper first.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use justitia_common::kill_on_drop::KillOnDrop;
use justitia_kernel::cgroup::Cgroup;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};

/// Bytes read at once.
const BUFFER: usize = 256 << 10;

/// A running helper. Dropping it ends the process.
#[derive(Debug)]
pub(super) struct RechargeHelper {
    /// It is killed before the socket closes: it may be in a read that waits for the disk.
    child: KillOnDrop,
    socket: UnixStream,
}

impl RechargeHelper {
    /// Starts a process that can read `file`, and moves it into `cgroup`. A read must end within `timeout`.
    ///
    /// # Errors
    /// The failed step.
    pub(super) fn start(file: &File, cgroup: &Cgroup, timeout: Duration) -> Result<Self, String> {
        let failed = |what: &str, error: &dyn std::fmt::Display| format!("{what}: {error}");
        let (socket, other) = UnixStream::pair().map_err(|e| failed("creating a socket", &e))?;
        socket
            .set_read_timeout(Some(timeout))
            .map_err(|e| failed("creating a socket", &e))?;
        let file = file
            .try_clone()
            .map_err(|e| failed("duplicating the file", &e))?;
        let child = Command::new("/proc/self/exe")
            .arg("recharge-helper")
            .arg(std::process::id().to_string())
            .current_dir("/")
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(other)))
            .stdout(Stdio::from(file))
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|e| failed("starting the helper", &e))?;
        let child = KillOnDrop(child);
        let helper = Self { child, socket };
        // Without a request it reads nothing.
        cgroup
            .attach_process(helper.child.id())
            .map_err(|e| failed("moving the helper into the owner's cgroup", &e))?;
        Ok(helper)
    }

    /// Whether the helper is the only process in the cgroup, and would keep it from being removed.
    pub(super) fn is_alone_in(&self, cgroup: &Cgroup) -> bool {
        !cgroup.has_other_processes(self.child.id()).unwrap_or(false)
    }

    /// Has `length` bytes read from `offset`; returns the number of bytes.
    ///
    /// # Errors
    /// If it took too long, or the process has ended.
    pub(super) fn read(&mut self, offset: u64, length: u64) -> std::io::Result<u64> {
        let mut request = [0; 16];
        request[..8].copy_from_slice(&offset.to_ne_bytes());
        request[8..].copy_from_slice(&length.to_ne_bytes());
        self.socket.write_all(&request)?;
        let mut answer = [0; 8];
        self.socket.read_exact(&mut answer)?;
        Ok(u64::from_ne_bytes(answer))
    }
}

/// The helper's main function: `justitia recharge-helper PID`.
///
/// # Errors
/// If it was not started by the process `parent`, or its file or socket fails.
pub fn run_helper(parent: u32) -> std::io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have ended before.
    let ours = getppid().map(|pid| pid.as_raw_nonzero().get());
    if ours != i32::try_from(parent).ok() {
        return Err(std::io::Error::other(format!(
            "expected to be started by process {parent}, found {ours:?}"
        )));
    }
    // A kernel without this file has no OOM killer.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let mut socket = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let file = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
    serve(&mut socket, &file)
}

fn serve(socket: &mut UnixStream, file: &File) -> std::io::Result<()> {
    let mut piece = vec![0; BUFFER];
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
            let most = usize::try_from(length - done).map_or(BUFFER, |left| left.min(BUFFER));
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
    fn the_helper_reads_what_is_requested_and_ends_with_its_socket() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&vec![7; 3 * BUFFER], 0).unwrap();
        let (mut ours, mut other) = UnixStream::pair().unwrap();
        let reading = std::thread::spawn(move || serve(&mut other, &file));
        let mut ask = |offset: usize, length: usize| {
            for word in [offset, length] {
                ours.write_all(&u64::try_from(word).unwrap().to_ne_bytes())
                    .unwrap();
            }
            let mut answer = [0; 8];
            ours.read_exact(&mut answer).unwrap();
            usize::try_from(u64::from_ne_bytes(answer)).unwrap()
        };
        assert_eq!(ask(0, 2 * BUFFER + 5), 2 * BUFFER + 5);
        assert_eq!(ask(2 * BUFFER, 2 * BUFFER), BUFFER, "up to the end");
        assert_eq!(ask(9 * BUFFER, 1), 0);
        drop(ours);
        reading.join().unwrap().unwrap();
    }

    #[test]
    fn the_helper_serves_only_the_process_that_started_it() {
        let error = run_helper(1_999_999_999).unwrap_err();
        set_parent_process_death_signal(None).unwrap();
        assert!(
            error.to_string().contains("expected to be started by"),
            "{error}"
        );
    }
}
