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
mod disk;
mod error;
mod guest;
mod lock;
mod qemu;
mod qmp;

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

pub use accelerator::Accelerator;
pub use disk::{DiskSpec, Filesystem, Throttle};
pub use error::VmError;
pub use guest::Guest;

pub use crate::wire::ShResult;

use crate::host::Places;
use crate::image;
use crate::kernel::{Kernel, KernelChoice};
use disk::Disk;
use lock::MachineLock;
use qmp::Qmp;

/// Emulated on a loaded machine a boot takes 10 s; one that takes this long will not come.
const BOOT: Duration = Duration::from_secs(90);
/// Emulated on a loaded machine, seconds pass between two heartbeats of a healthy guest.
const PATIENCE: Duration = Duration::from_secs(45);
/// With KVM it takes 2 s.
const TRIAL: Duration = Duration::from_secs(15);

/// What machine to boot.
#[derive(Clone, Debug)]
pub struct VmSpec {
    /// Which kernel.
    pub kernel: KernelChoice,
    /// Memory in bytes.
    pub memory: u64,
    /// Processors.
    pub vcpus: u32,
    /// Disks, `/dev/vda` first.
    pub disks: Vec<DiskSpec>,
    /// Appended to the kernel's command line.
    pub cmdline: String,
    /// Give the guest's console to this program's terminal, with a shell on it.
    pub shell: bool,
    /// Silence after which the guest counts as hung.
    pub patience: Duration,
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
            disks: Vec::new(),
            cmdline: String::new(),
            shell: false,
            patience: PATIENCE,
            qemu_args: Vec::new(),
        }
    }
}

/// A running virtual machine, ended when dropped.
pub struct Vm {
    // Dropped in this order: QEMU ends before its files go and the next one may start.
    process: qemu::Process,
    guest: Guest,
    qmp: Mutex<Qmp>,
    /// Files without a name: they last as long as this.
    _disks: Vec<Disk>,
    accelerator: Accelerator,
    kernel: Kernel,
    dir: tempfile::TempDir,
    _lock: MachineLock,
}

impl Vm {
    /// Boots a machine and waits until scripts can run in it. A guest that crashes on the way is
    /// tried once more.
    pub fn boot(spec: &VmSpec) -> Result<Self> {
        let places = Places::find()?;
        let kernel = Kernel::resolve(&spec.kernel, &places)?;
        let initramfs = image::build(&kernel, &places)?;
        let lock = MachineLock::acquire()?;
        forget_dead(&places)?;
        let accelerator = Accelerator::choose(&places, || {
            let spec = VmSpec::default();
            let kvm = Accelerator::Kvm;
            Self::start(
                &spec,
                &kernel,
                &initramfs,
                kvm,
                TRIAL,
                &places,
                lock.clone(),
            )
            .is_ok()
        })?;
        let first = Self::start(
            spec,
            &kernel,
            &initramfs,
            accelerator,
            BOOT,
            &places,
            lock.clone(),
        );
        let Err(error) = first else {
            return first;
        };
        if !error
            .downcast_ref::<VmError>()
            .is_some_and(VmError::is_crash)
        {
            return Err(error);
        }
        eprintln!("trying once more: {error:#}");
        Self::start(spec, &kernel, &initramfs, accelerator, BOOT, &places, lock)
    }

    fn start(
        spec: &VmSpec,
        kernel: &Kernel,
        initramfs: &Path,
        accelerator: Accelerator,
        limit: Duration,
        places: &Places,
        lock: MachineLock,
    ) -> Result<Self> {
        let dir = tempfile::tempdir_in(places.dir("run")?).context("making a directory")?;
        let storage = places.dir("disks")?;
        let disks: Vec<Disk> = spec
            .disks
            .iter()
            .map(|disk| Disk::create(disk, &storage))
            .collect::<Result<_>>()?;
        let channel = listen(&qemu::channel_socket(dir.path()))?;
        let qmp = listen(&qemu::qmp_socket(dir.path()))?;
        let mut spec = spec.clone();
        if spec.shell {
            spec.cmdline.push_str(" justitia.shell");
        }
        let command = qemu::command(&qemu::Boot {
            spec: &spec,
            accelerator,
            kernel: &kernel.image,
            initramfs,
            disks: &disks,
            dir: dir.path(),
        })?;
        let process = qemu::Process::start(command, dir.path(), spec.shell)?;
        let channel = accept(&channel, &process, dir.path())?;
        let qmp = Qmp::new(accept(&qmp, &process, dir.path())?)?;
        let guest = Guest::new(channel, process.watch(), dir.path(), spec.patience)?;
        guest.greet(limit)?;
        Ok(Self {
            process,
            guest,
            qmp: Mutex::new(qmp),
            _disks: disks,
            accelerator,
            kernel: kernel.clone(),
            dir,
            _lock: lock,
        })
    }

    /// To run things in it.
    #[must_use]
    pub const fn guest(&self) -> &Guest {
        &self.guest
    }

    /// What runs its instructions.
    #[must_use]
    pub const fn accelerator(&self) -> Accelerator {
        self.accelerator
    }

    /// Its kernel.
    #[must_use]
    pub const fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Sets how fast the n-th disk is, at once.
    pub fn set_disk_speed(&self, disk: usize, throttle: Throttle) -> Result<(), VmError> {
        self.qmp
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .throttle(disk, throttle)
    }

    /// Waits until the machine ends by itself (`poweroff -f` in it).
    pub fn wait(&self) {
        while self.process.watch().ended().is_none() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The machine's directory on the host: console log and sockets. Gone when the machine ends.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

/// Removes what machines left whose programs were killed. The caller holds the machine's lock.
fn forget_dead(places: &Places) -> Result<()> {
    let run = places.dir("run")?;
    for entry in std::fs::read_dir(&run).with_context(|| format!("listing {}", run.display()))? {
        let path = entry?.path();
        std::fs::remove_dir_all(&path).with_context(|| format!("removing {}", path.display()))?;
    }
    Ok(())
}

fn listen(path: &Path) -> Result<UnixListener> {
    let listener =
        UnixListener::bind(path).with_context(|| format!("listening on {}", path.display()))?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// QEMU connects at once, or ends and says why.
fn accept(listener: &UnixListener, process: &qemu::Process, dir: &Path) -> Result<UnixStream> {
    let begin = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                return Ok(stream);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("waiting for QEMU to connect"),
        }
        let stderr = || std::fs::read_to_string(qemu::stderr_log(dir)).unwrap_or_default();
        if let Some(status) = process.watch().ended() {
            return Err(VmError::Exit {
                status: status.to_string(),
                stderr: stderr(),
                console: String::new(),
            }
            .into());
        }
        if begin.elapsed() > Duration::from_secs(30) {
            return Err(VmError::Slow {
                what: "start under QEMU".to_owned(),
                limit: Duration::from_secs(30),
                console: stderr(),
            }
            .into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
