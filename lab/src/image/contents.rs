//! What the guest's file system holds: programs and libraries of the host, the project's programs, kernel modules.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::archive::{Archive, DATA, Entry, PROGRAM};
use crate::host::{run, sibling, tool};
use crate::kernel::{Kernel, Modules};

/// The script that the kernel starts.
const INIT: &str = include_str!("../guest/init.sh");

/// Loaded by [`INIT`] before anything else, in this order.
const BOOT_MODULES: [&str; 5] = ["virtio_pci", "virtio_console", "virtio_blk", "ext4", "bfq"];

/// There for `modprobe`. Kernels differ in what they have: a missing one is left out.
const MORE_MODULES: [&str; 23] = [
    "xfs",
    "btrfs",
    "overlay",
    "fuse",
    "dm_mod",
    "dm_crypt",
    "dm_log_writes",
    "xts",
    "ecb",
    "dm_thin_pool",
    "raid1",
    "loop",
    "nbd",
    "null_blk",
    "zram",
    "virtio_balloon",
    "virtio_scsi",
    "virtio_net",
    "virtio_rng",
    "kyber_iosched",
    "mq_deadline",
    "vmw_vsock_virtio_transport",
    "scsi_debug",
];

/// The host's tools that experiments and tests use; all must be there.
const TOOLS: [&str; 10] = [
    "fio",
    "mkfs.ext4",
    "mkfs.xfs",
    "fsfreeze",
    "dmsetup",
    "setpriv",
    "unshare",
    "ionice",
    "prlimit",
    "strace",
];
/// Of those, the ones that a guest can do without.
const OPTIONAL_TOOLS: [&str; 1] = ["strace"];

/// Our own programs. Only the guest's runner must be there.
const RUNNER: &str = "justitia-lab-guest";
const PROGRAMS: [&str; 2] = ["justitia", "justitia-load"];

/// The host's tools without which there is no image.
pub(crate) fn tools() -> impl Iterator<Item = &'static str> {
    let needed = TOOLS.iter().filter(|name| !OPTIONAL_TOOLS.contains(name));
    needed.copied().chain(["busybox", "ldd"])
}

/// All of it, for this kernel.
pub(super) fn contents(kernel: &Kernel) -> Result<Archive> {
    let mut all = Archive::default();
    for dir in [
        "dev", "proc", "sys", "run", "tmp", "etc", "root", "data", "var/lib", "lib",
    ] {
        all.put(dir, Entry::Directory);
    }
    all.put("dev/console", Entry::Device(5, 1));
    all.put("init", Entry::Bytes(INIT.into(), PROGRAM));
    all.put(
        "etc/passwd",
        Entry::Bytes(
            b"root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n".to_vec(),
            DATA,
        ),
    );
    all.put(
        "etc/group",
        Entry::Bytes(b"root:x:0:\nnogroup:x:65534:\n".to_vec(), DATA),
    );
    add_busybox(&mut all)?;
    for name in TOOLS {
        match tool(name) {
            Ok(path) => add_program(&mut all, name, &path, false)?,
            Err(_) if OPTIONAL_TOOLS.contains(&name) => {}
            Err(error) => return Err(error),
        }
    }
    add_program(&mut all, RUNNER, &sibling(RUNNER)?, true)?;
    for name in PROGRAMS {
        if let Ok(path) = sibling(name) {
            add_program(&mut all, name, &path, true)?;
        }
    }
    add_modules(&mut all, kernel)?;
    Ok(all)
}

fn add_busybox(all: &mut Archive) -> Result<()> {
    let busybox = tool("busybox")?;
    let applets = run(Command::new(&busybox).arg("--list"))?;
    all.put("bin/busybox", Entry::Copy(busybox, PROGRAM));
    for applet in String::from_utf8_lossy(&applets).lines() {
        if applet != "busybox" {
            all.put(&format!("bin/{applet}"), Entry::Link("/bin/busybox".into()));
        }
    }
    Ok(())
}

/// A program and the libraries it needs, each where the loader looks for it.
fn add_program(all: &mut Archive, name: &str, path: &Path, strip: bool) -> Result<()> {
    let entry = if strip {
        Entry::Stripped(path.to_owned())
    } else {
        Entry::Copy(path.to_owned(), PROGRAM)
    };
    all.put(&format!("bin/{name}"), entry);
    let listing = Command::new(tool("ldd")?)
        .arg(path)
        .output()
        .with_context(|| format!("asking ldd about {}", path.display()))?;
    // A static program makes ldd fail, with nothing listed.
    for line in String::from_utf8_lossy(&listing.stdout).lines() {
        let library = line.split_whitespace().find(|word| word.starts_with('/'));
        if let Some(library) = library {
            all.put(library, Entry::Copy(library.into(), PROGRAM));
        }
    }
    Ok(())
}

fn add_modules(all: &mut Archive, kernel: &Kernel) -> Result<()> {
    let modules = Modules::read(kernel)?;
    let mut boot = Vec::new();
    for name in BOOT_MODULES {
        boot.push(modules.load_order(name)?);
    }
    let more = MORE_MODULES
        .iter()
        .filter_map(|name| modules.load_order(name).ok());
    let base = format!("lib/modules/{}", kernel.release);
    let files = boot.iter().cloned().chain(more).flatten();
    add_module_files(all, &modules, &base, files)?;
    let mut seen = BTreeSet::new();
    let order: String = boot
        .iter()
        .flatten()
        .filter(|module| seen.insert((*module).clone()))
        .map(|module| format!("/{base}/{}\n", uncompressed(module)))
        .collect();
    all.put("etc/modules", Entry::Bytes(order.into(), DATA));
    Ok(())
}

/// Modules, and the `modules.dep` that says what each of them needs.
fn add_module_files(
    all: &mut Archive,
    modules: &Modules,
    base: &str,
    files: impl Iterator<Item = String>,
) -> Result<()> {
    let mut dependencies = BTreeMap::new();
    for module in files {
        let mut needs = modules.load_order(&module)?;
        needs.pop();
        dependencies.insert(module, needs);
    }
    let mut listing = String::new();
    for (module, needs) in &dependencies {
        let plain = uncompressed(module);
        let needs: Vec<&str> = needs.iter().rev().map(|need| uncompressed(need)).collect();
        listing.push_str(&format!("{plain}: {}\n", needs.join(" ")));
        all.put(
            &format!("{base}/{plain}"),
            Entry::Bytes(modules.content(module)?, DATA),
        );
    }
    all.put(
        &format!("{base}/modules.dep"),
        Entry::Bytes(listing.into(), DATA),
    );
    Ok(())
}

fn uncompressed(module: &str) -> &str {
    [".xz", ".zst", ".gz"]
        .iter()
        .find_map(|ending| module.strip_suffix(ending))
        .unwrap_or(module)
}
