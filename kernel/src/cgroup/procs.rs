//! The processes of a cgroup: `cgroup.procs`.

use rustix::fs::OFlags;

use super::Cgroup;
use crate::error::{Operation, Result};

const PROCS: &str = "cgroup.procs";

/// Room for several process ids.
const READ_LEN: usize = 64;

impl Cgroup {
    /// Moves the process `pid` into the cgroup: what the kernel allocates for it from now on is charged here. Only for
    /// processes that the caller has started.
    ///
    /// # Errors
    /// As every operation on a cgroup; `EBUSY` when the cgroup has controllers enabled for its children, so that it may
    /// hold no processes.
    pub fn attach_process(&self, pid: u32) -> Result<()> {
        self.write(PROCS, &pid.to_string())
    }

    /// Whether any other process than `pid` is in this very cgroup, descendants aside.
    ///
    /// # Errors
    /// As every operation on a cgroup.
    pub fn has_other_processes(&self, pid: u32) -> Result<bool> {
        // A number that is cut off is not the only one.
        let text = self.first_bytes()?;
        let pid = pid.to_string();
        let mut lines = text.split(|byte| *byte == b'\n');
        Ok(lines.any(|line| !line.is_empty() && line != pid.as_bytes()))
    }

    /// Up to `most` of the processes in this very cgroup, as `/proc` names them; none where they cannot be read.
    pub(super) fn some_processes(&self, most: usize) -> Vec<String> {
        let text = self.first_bytes().unwrap_or_default();
        // What is cut off at the end is no number.
        let whole = text.split_inclusive(|byte| *byte == b'\n');
        whole
            .filter_map(|line| line.strip_suffix(b"\n"))
            .filter_map(|line| String::from_utf8(line.to_owned()).ok())
            .filter(|pid| pid != "0")
            .take(most)
            .collect()
    }

    /// The beginning of `cgroup.procs`, from one read.
    fn first_bytes(&self) -> Result<Vec<u8>> {
        let fd = self.open(PROCS, OFlags::RDONLY)?;
        let mut text = [0; READ_LEN];
        let read = rustix::io::read(&fd, &mut text)
            .map_err(|errno| self.failed(Operation::Read, Some(PROCS), errno))?;
        Ok(text.get(..read).unwrap_or_default().to_vec())
    }
}
