//! QEMU's command line.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::accelerator::Accelerator;
use super::disk::Disk;
use super::spec::VmSpec;
use crate::host::tool;
use crate::protocol::PORT;

/// QEMU's name for the n-th disk.
pub(super) fn disk_id(index: usize) -> String {
    format!("disk{index}")
}

/// What a guest boots from.
pub(super) struct Boot<'a> {
    pub spec: &'a VmSpec,
    pub accelerator: Accelerator,
    pub kernel: &'a Path,
    pub initramfs: &'a Path,
    pub disks: &'a [Disk],
    /// Holds the sockets and the logs.
    pub dir: &'a Path,
}

/// Where things lie in a guest's directory on the host.
pub(super) fn console_log(dir: &Path) -> PathBuf {
    dir.join("console.log")
}
pub(super) fn channel_socket(dir: &Path) -> PathBuf {
    dir.join("channel")
}
pub(super) fn qmp_socket(dir: &Path) -> PathBuf {
    dir.join("qmp")
}

pub(super) fn memory_socket(dir: &Path) -> PathBuf {
    dir.join("memory")
}

/// The command that boots it.
pub(super) fn command(boot: &Boot<'_>) -> Result<Command> {
    let Boot { spec, dir, .. } = boot;
    // setpriv: QEMU dies with the thread that started it, even if that is killed.
    let mut command = Command::new(tool("setpriv")?);
    command
        .arg("--pdeathsig=KILL")
        .arg(tool("qemu-system-x86_64")?);
    machine(&mut command, boot);
    devices(&mut command, spec, dir);
    if spec.gives_memory {
        memory_devices(&mut command, dir);
    }
    for (index, disk) in boot.disks.iter().enumerate() {
        add_disk(&mut command, index, disk);
    }
    command.args(&spec.qemu_args);
    Ok(command)
}

/// Processors, memory and kernel.
fn machine(command: &mut Command, boot: &Boot<'_>) {
    let spec = boot.spec;
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
        // What QEMU holds is looked at where a guest gives memory: translated code is up to 1 GiB of it by default.
        Accelerator::Tcg if spec.gives_memory => {
            command.args(["-accel", "tcg,tb-size=256", "-cpu", "max"])
        }
        Accelerator::Tcg => command.args(["-accel", "tcg", "-cpu", "max"]),
    };
    if spec.fixed_speed && boot.accelerator == Accelerator::Tcg {
        // 4 ns an instruction, which a shared core keeps up with. The guest waits when it is ahead of the host's clock,
        // which throttles its disks; on a slow host its clock falls behind, and its disks look faster.
        command.args(["-icount", "shift=2,align=on,sleep=on"]);
    }
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
}

/// Console, the channel to the runner, QMP.
fn devices(command: &mut Command, spec: &VmSpec, dir: &Path) {
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
}

/// A balloon that reports free pages, and the port over which the guest agent is asked. The host may connect and go.
fn memory_devices(command: &mut Command, dir: &Path) {
    let balloon = "virtio-balloon-pci,id=balloon,free-page-reporting=on,deflate-on-oom=on";
    command.args(["-device", balloon]);
    let path = memory_socket(dir);
    command.args([
        "-chardev",
        &format!(
            "socket,id=memory,path={},server=on,wait=off",
            path.display()
        ),
    ]);
    command.args([
        "-device",
        "virtserialport,chardev=memory,name=org.justitia.memory.0",
    ]);
}

fn add_disk(command: &mut Command, index: usize, disk: &Disk) {
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
