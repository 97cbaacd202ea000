//! What machine to boot.

use std::time::Duration;

use crate::kernel::KernelChoice;
use crate::spec::DiskSpec;

/// Emulated on a loaded machine, seconds pass between two heartbeats of a healthy guest.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(45);

/// What machine to boot.
#[derive(Clone, Debug)]
pub struct VmSpec {
    /// Which kernel.
    pub kernel: KernelChoice,
    /// Memory in bytes.
    pub memory: u64,
    /// Processors.
    pub vcpus: u32,
    /// Emulated, its processors together execute 250 million instructions per second, and never more.
    pub fixed_speed: bool,
    /// Disks, `/dev/vda` first.
    pub disks: Vec<DiskSpec>,
    /// Appended to the kernel's command line.
    pub cmdline: String,
    /// Give the guest's console to this program's terminal, with a shell on it.
    pub shell: bool,
    /// After so long without a message the guest counts as hung.
    pub heartbeat_timeout: Duration,
    /// A balloon that reports free pages, and the port over which a host asks the guest agent about memory:
    /// [`Vm::memory_channel`](super::Vm::memory_channel) is its other end. The balloon's driver is a module that the guest
    /// loads.
    pub gives_memory: bool,
    /// Appended to QEMU's command line.
    pub qemu_args: Vec<String>,
}

impl Default for VmSpec {
    /// The newest 6.12, 1 GiB, 4 processors, no disk.
    fn default() -> Self {
        Self {
            kernel: KernelChoice::default(),
            memory: 1 << 30,
            vcpus: 4,
            fixed_speed: false,
            disks: Vec::new(),
            cmdline: String::new(),
            shell: false,
            heartbeat_timeout: HEARTBEAT_TIMEOUT,
            gives_memory: false,
            qemu_args: Vec::new(),
        }
    }
}
