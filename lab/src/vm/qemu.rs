//! QEMU's command line and process.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};

use super::disk::Disk;
use super::{Accelerator, VmSpec};
use crate::host::tool;
use crate::wire::PORT;

/// QEMU's name for the n-th disk.
pub fn disk_id(index: usize) -> String {
    format!("disk{index}")
}

/// What a guest boots from.
pub struct Boot<'a> {
    pub spec: &'a VmSpec,
    pub accelerator: Accelerator,
    pub kernel: &'a Path,
    pub initramfs: &'a Path,
    pub disks: &'a [Disk],
    /// Holds the sockets and the logs.
    pub dir: &'a Path,
}

/// Where things lie in a guest's directory on the host.
pub fn console_log(dir: &Path) -> PathBuf {
    dir.join("console.log")
}
pub fn stderr_log(dir: &Path) -> PathBuf {
    dir.join("qemu.stderr")
}
pub fn channel_socket(dir: &Path) -> PathBuf {
    dir.join("channel")
}
pub fn qmp_socket(dir: &Path) -> PathBuf {
    dir.join("qmp")
}

pub fn command(boot: &Boot<'_>) -> Result<Command> {
    let Boot { spec, dir, .. } = boot;
    // setpriv: QEMU dies with the thread that started it, even if that is killed.
    let mut command = Command::new(tool("setpriv")?);
    command
        .arg("--pdeathsig=KILL")
        .arg(tool("qemu-system-x86_64")?);
    command.args([
        "-nodefaults",
        "-no-user-config",
        "-display",
        "none",
        "-no-reboot",
    ]);
    match boot.accelerator {
        Accelerator::Kvm => command.args(["-accel", "kvm", "-cpu", "host"]),
        // A thread for each processor is the default; not with `-icount`, which allows one only.
        Accelerator::Tcg => command.args(["-accel", "tcg", "-cpu", "max"]),
    };
    command.args(["-machine", "q35"]);
    command.args(["-smp", &spec.vcpus.to_string()]);
    command.args(["-m", &format!("{}k", spec.memory >> 10)]);
    command.arg("-kernel").arg(boot.kernel);
    command.arg("-initrd").arg(boot.initramfs);
    let extra = &spec.cmdline;
    command.args([
        "-append",
        &format!("console=ttyS0 quiet loglevel=5 panic=-1 oops=panic psi=1 nokaslr random.trust_cpu=on tsc=reliable {extra}"),
    ]);
    command.args(["-device", "virtio-rng-pci"]);
    if spec.shell {
        command.args(["-chardev", "stdio,id=console,signal=off"]);
    } else {
        command.args([
            "-chardev",
            &format!("file,id=console,path={}", console_log(dir).display()),
        ]);
    }
    command.args(["-serial", "chardev:console"]);
    let socket = |id: &str, path: PathBuf| format!("socket,id={id},path={}", path.display());
    command.args(["-chardev", &socket("channel", channel_socket(dir))]);
    command.args(["-device", "virtio-serial-pci"]);
    command.args([
        "-device",
        &format!("virtserialport,chardev=channel,name={PORT}"),
    ]);
    command.args(["-chardev", &socket("qmp", qmp_socket(dir))]);
    command.args(["-mon", "chardev=qmp,mode=control"]);
    for (index, disk) in boot.disks.iter().enumerate() {
        let id = disk_id(index);
        let path = disk.path();
        let bytes = disk.throttle.bytes_per_second;
        let requests = disk.throttle.requests_per_second;
        // Naming a group makes the throttle settable later, even if it is absent now.
        command.args([
            "-drive",
            &format!(
                "if=none,id=drive{index},format=raw,cache=unsafe,aio=threads,discard=unmap,file.locking=off,file.filename={path},throttling.group=throttle{index},throttling.bps-total={bytes},throttling.iops-total={requests}"
            ),
        ]);
        command.args([
            "-device",
            // One queue of 32 requests, as a SATA disk has: with QEMU's own hundreds, everything waits at the
            // disk, in order of arrival, where no scheduler of the guest has a say.
            &format!(
                "virtio-blk-pci,drive=drive{index},id={id},serial={id},num-queues=1,queue-size=32"
            ),
        ]);
    }
    command.args(&spec.qemu_args);
    Ok(command)
}

/// Sees whether QEMU has ended.
#[derive(Clone)]
pub struct Watch(Arc<Mutex<Option<ExitStatus>>>);

impl Watch {
    /// How it ended, if it has.
    pub fn ended(&self) -> Option<ExitStatus> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running QEMU, killed when dropped.
pub struct Process {
    ended: Arc<Mutex<Option<ExitStatus>>>,
    stop: Arc<AtomicBool>,
    keeper: Option<JoinHandle<()>>,
}

impl Process {
    /// Starts it.
    ///
    /// A thread of its own starts it and waits for it, because the kernel ties the death signal to
    /// the starting thread: a test's thread may end before the guest does.
    pub fn start(mut command: Command, dir: &Path, shell: bool) -> Result<Self> {
        let stderr = stderr_log(dir);
        let log =
            File::create(&stderr).with_context(|| format!("creating {}", stderr.display()))?;
        command.stderr(log);
        if !shell {
            command.stdin(Stdio::null()).stdout(Stdio::null());
        }
        let ended = Arc::new(Mutex::new(None));
        let stop = Arc::new(AtomicBool::new(false));
        let (started, wait) = mpsc::channel();
        let keeper = std::thread::Builder::new()
            .name("qemu".to_owned())
            .spawn({
                let (ended, stop) = (ended.clone(), stop.clone());
                move || match command.spawn() {
                    Ok(child) => {
                        let _ = started.send(Ok(()));
                        let status = keep(child, &stop);
                        *ended.lock().unwrap_or_else(PoisonError::into_inner) = Some(status);
                    }
                    Err(error) => {
                        let _ = started.send(Err(error));
                    }
                }
            })
            .context("starting a thread")?;
        wait.recv()
            .context("expected the thread that starts QEMU to report, it ended")?
            .context("starting QEMU")?;
        Ok(Self {
            ended,
            stop,
            keeper: Some(keeper),
        })
    }

    /// To see whether it has ended.
    pub fn watch(&self) -> Watch {
        Watch(Arc::clone(&self.ended))
    }

    /// Kills it and waits for its end.
    pub fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(keeper) = self.keeper.take() {
            // A panic in it would have ended QEMU by the death signal.
            let _ = keeper.join();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.stop();
    }
}

fn keep(mut child: Child, stop: &AtomicBool) -> ExitStatus {
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return status;
        }
        if stop.load(Ordering::Relaxed) {
            // Fails only if it has just ended by itself; wait tells how.
            let _ = child.kill();
            return child.wait().unwrap_or_default();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
