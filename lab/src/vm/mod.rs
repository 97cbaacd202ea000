//! Virtual machines that run a stock kernel and the project's own programs.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use justitia_lab::vm::{DiskSpec, Vm, VmSpec};
//! let vm = Vm::boot(&VmSpec { disks: vec![DiskSpec::ext4(1 << 30)], ..VmSpec::default() })?;
//! let result = vm.guest().sh("mount /dev/vda /data && uname -r")?;
//! assert_eq!(result.status, 0);
//! # Ok(()) }
//! ```
//!
//! One guest at a time runs on a machine; [`Vm::boot`] waits for its turn. Whatever happens to the
//! program that booted it, the guest ends with it and nothing is left of its disks.

mod accelerator;
mod channel;
mod connect;
mod disk;
mod error;
mod guest;
mod lock;
mod machine;
mod process;
mod qemu;
mod qmp;
mod spec;

pub use accelerator::Accelerator;
pub use error::VmError;
pub use guest::Guest;
pub use machine::Vm;
pub use spec::VmSpec;

pub use crate::protocol::ShResult;
pub use crate::spec::{DiskSpec, Filesystem, Throttle};
