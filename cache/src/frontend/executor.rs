//! The threads that wait for disks and for the SSD store.

use super::limits::IoLimits;
use super::vm::Vm;
use super::workers::{Job, Workers};

/// Two pools of threads, shared by all front ends: one waits for disks, which may hang, the other for the SSD store.
#[derive(Clone)]
pub(crate) struct Executor {
    disk: Workers,
    ssd: Workers,
}

impl Executor {
    pub(crate) fn new(limits: &IoLimits) -> Self {
        Self {
            disk: Workers::new(limits.workers, limits.workers / 4),
            // All of these threads wait for the same device: a limit per VM would keep nothing free for others.
            ssd: Workers::new(limits.ssd_workers, limits.ssd_workers),
        }
    }

    /// Runs `job` on a thread that may wait for a disk.
    pub(crate) fn submit_disk(&self, vm: &Vm, job: Job) {
        self.disk.submit(&vm.disk_queue, job);
    }

    /// Runs `job` on a thread that may wait for the SSD store.
    pub(crate) fn submit_ssd(&self, vm: &Vm, job: Job) {
        self.ssd.submit(&vm.ssd_queue, job);
    }
}
