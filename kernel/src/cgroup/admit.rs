//! Moving a process of our own into a cgroup.

use super::Cgroup;
use crate::error::Result;

impl Cgroup {
    /// Moves the process `pid` into the cgroup: what it makes the kernel allocate from now on is charged here.
    /// Only for processes that the caller has started.
    ///
    /// # Errors
    /// As every operation on a cgroup; `EBUSY` when the cgroup hands controllers to its children and so may hold
    /// no processes.
    pub fn admit(&self, pid: u32) -> Result<()> {
        self.write("cgroup.procs", &pid.to_string())
    }
}
