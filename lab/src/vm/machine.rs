//! A virtual machine: QEMU's process, its disks, the guest in it.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};

use super::accelerator::Accelerator;
use super::connect::{accept, listen};
use super::disk::Disk;
use super::error::VmError;
use super::guest::Guest;
use super::lock::MachineLock;
use super::process::Process;
use super::qemu;
use super::qmp::Qmp;
use super::spec::VmSpec;
use crate::host::LabDir;
use crate::image;
use crate::kernel::Kernel;
use crate::spec::Throttle;

/// Emulated on a loaded machine a boot takes 10 s; one that takes this long will not come.
const BOOT: Duration = Duration::from_secs(90);
/// A boot that crashes is tried so often: kernels patch their own code while they boot, and an emulator of several processors gets that wrong
/// now and then (an int3 in `sched_clock_cpu`), sometimes twice in a row.
const BOOTS: usize = 4;
/// With KVM a boot takes 2 s.
const TRIAL: Duration = Duration::from_secs(15);

/// A running virtual machine, ended when dropped.
pub struct Vm {
    // Dropped in this order: QEMU ends before its files go and the next one may start.
    process: Process,
    guest: Guest,
    qmp: Mutex<Qmp>,
    /// Files without a name: they last as long as this.
    _disks: Vec<Disk>,
    accelerator: Accelerator,
    dir: tempfile::TempDir,
    lock: MachineLock,
}

impl Vm {
    /// Boots a machine and waits until scripts can run in it. A guest that crashes on the way is
    /// tried again, a few times.
    ///
    /// # Errors
    /// If the kernel, the image, a disk or QEMU cannot be had, or the guest does not get ready: then a [`VmError`] says why.
    pub fn boot(spec: &VmSpec) -> Result<Self> {
        Self::boot_with(spec, None)
    }

    /// As [`boot`](Self::boot), beside this machine: a test of both together.
    ///
    /// # Errors
    /// As there.
    pub fn boot_beside(&self, spec: &VmSpec) -> Result<Self> {
        Self::boot_with(spec, Some(self.lock.clone()))
    }

    fn boot_with(spec: &VmSpec, held: Option<MachineLock>) -> Result<Self> {
        let lab = LabDir::find()?;
        let kernel = Kernel::resolve(&spec.kernel, &lab)?;
        let initramfs = image::build(&kernel, &lab)?;
        let lock = match held {
            Some(lock) => lock,
            None => {
                let lock = MachineLock::acquire()?;
                remove_stale(&lab)?;
                lock
            }
        };
        let accelerator = Accelerator::choose(&lab, || {
            let spec = VmSpec::default();
            let kvm = Accelerator::Kvm;
            Self::start(&spec, &kernel, &initramfs, kvm, TRIAL, &lab, lock.clone()).is_ok()
        })?;
        let start = || {
            let lock = lock.clone();
            Self::start(spec, &kernel, &initramfs, accelerator, BOOT, &lab, lock)
        };
        for _ in 1..BOOTS {
            match start() {
                Err(error) if VmError::crashed(&error) => eprintln!("trying once more: {error:#}"),
                other => return other,
            }
        }
        start()
    }

    fn start(
        spec: &VmSpec,
        kernel: &Kernel,
        initramfs: &Path,
        accelerator: Accelerator,
        limit: Duration,
        lab: &LabDir,
        lock: MachineLock,
    ) -> Result<Self> {
        let dir = tempfile::tempdir_in(lab.dir("run")?).context("making a directory")?;
        let storage = lab.dir("disks")?;
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
        let process = Process::start(command, dir.path(), spec.shell)?;
        let channel = accept(&channel, &process, dir.path())?;
        let qmp = Qmp::new(accept(&qmp, &process, dir.path())?)?;
        let guest = Guest::new(channel, process.exit(), dir.path(), spec.heartbeat_timeout)?;
        guest.wait_until_ready(limit)?;
        Ok(Self {
            process,
            guest,
            qmp: Mutex::new(qmp),
            _disks: disks,
            accelerator,
            dir,
            lock,
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

    /// Sets how fast the n-th disk is, at once.
    ///
    /// # Errors
    /// If the machine has ended or QEMU refuses, as for a disk that it does not have.
    pub fn set_disk_speed(&self, disk: usize, throttle: Throttle) -> Result<(), VmError> {
        self.qmp
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .throttle(disk, throttle)
    }

    /// The socket on which QEMU listens for a host that asks the guest agent about memory: [`VmSpec::gives_memory`].
    #[must_use]
    pub fn memory_channel(&self) -> PathBuf {
        qemu::memory_socket(self.dir.path())
    }

    /// QEMU's process.
    #[must_use]
    pub const fn process_id(&self) -> u32 {
        self.process.id()
    }

    /// Memory of this machine that QEMU has, bytes: the guest's, and its own.
    ///
    /// # Errors
    /// If it has ended.
    pub fn resident(&self) -> std::io::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        let expected = || std::io::Error::other("expected VmRSS in the status of QEMU, found none");
        kilobytes.map(|kb| kb << 10).ok_or_else(expected)
    }

    /// Waits until the machine ends by itself (`poweroff -f` in it).
    pub fn wait(&self) {
        while self.process.exit().status().is_none() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// The machine's directory on the host: console log and sockets. Gone when the machine ends.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

/// Removes the directories of machines whose programs were killed. The caller holds the machine's lock.
fn remove_stale(lab: &LabDir) -> Result<()> {
    let run = lab.dir("run")?;
    for entry in std::fs::read_dir(&run).with_context(|| format!("listing {}", run.display()))? {
        let path = entry?.path();
        std::fs::remove_dir_all(&path).with_context(|| format!("removing {}", path.display()))?;
    }
    Ok(())
}
