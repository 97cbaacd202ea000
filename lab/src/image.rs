//! The guest's file system: an initramfs from the host's own binaries and the kernel's modules.
//!
//! Built again only when something that goes into it has changed: the file's name is the hash of
//! the inputs.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::host::{Places, run, sibling, tool};
use crate::kernel::{Kernel, Modules};

/// The script that the kernel starts.
const INIT: &str = include_str!("guest/init.sh");

/// Loaded by [`INIT`] before anything else, in this order.
const BOOT_MODULES: [&str; 5] = ["virtio_pci", "virtio_console", "virtio_blk", "ext4", "bfq"];

/// There for whoever loads them with `modprobe`. Kernels differ in what they have: one that is
/// missing is left out.
const MORE_MODULES: [&str; 20] = [
    "xfs",
    "btrfs",
    "overlay",
    "fuse",
    "dm_mod",
    "dm_crypt",
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

const DIRECTORY: u32 = 0o040_755;
const SYMLINK: u32 = 0o120_777;
const PROGRAM: u32 = 0o100_755;
const DATA: u32 = 0o100_644;
const CHARACTER_DEVICE: u32 = 0o020_600;

enum Entry {
    /// A host's file, with its mode in the guest.
    Copy(PathBuf, u32),
    /// The same, with debugging symbols removed.
    Stripped(PathBuf),
    Bytes(Vec<u8>, u32),
    Link(String),
    Directory,
    /// A character device.
    Device(u32, u32),
}

/// What goes into the guest, by path without the leading slash.
struct Contents {
    entries: BTreeMap<String, Entry>,
}

/// The initramfs for this kernel and these programs, built if it is not there yet.
pub fn build(kernel: &Kernel, places: &Places) -> Result<PathBuf> {
    let contents = contents(kernel)?;
    let path = places
        .dir("image")?
        .join(format!("{}.cpio", contents.hash()?));
    if !path.is_file() {
        forget_old(&places.dir("image")?, 6)?;
        contents
            .write(&path)
            .with_context(|| format!("building the guest's image {}", path.display()))?;
    }
    Ok(path)
}

fn contents(kernel: &Kernel) -> Result<Contents> {
    let mut all = Contents {
        entries: BTreeMap::new(),
    };
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
    all.add_busybox()?;
    for name in TOOLS {
        match tool(name) {
            Ok(path) => all.add_program(name, &path, false)?,
            Err(_) if OPTIONAL_TOOLS.contains(&name) => {}
            Err(error) => return Err(error),
        }
    }
    all.add_program(RUNNER, &sibling(RUNNER)?, true)?;
    for name in PROGRAMS {
        if let Ok(path) = sibling(name) {
            all.add_program(name, &path, true)?;
        }
    }
    all.add_modules(kernel)?;
    Ok(all)
}

impl Contents {
    fn put(&mut self, path: &str, entry: Entry) {
        let path = path.trim_start_matches('/');
        // The archive must hold a directory before what is in it; the order of names sees to that.
        for (end, _) in path.match_indices('/') {
            let dir = path.get(..end).unwrap_or_default();
            self.entries
                .entry(dir.to_owned())
                .or_insert(Entry::Directory);
        }
        self.entries.insert(path.to_owned(), entry);
    }

    fn add_busybox(&mut self) -> Result<()> {
        let busybox = tool("busybox")?;
        let applets = run(Command::new(&busybox).arg("--list"))?;
        self.put("bin/busybox", Entry::Copy(busybox, PROGRAM));
        for applet in String::from_utf8_lossy(&applets).lines() {
            if applet != "busybox" {
                self.put(&format!("bin/{applet}"), Entry::Link("/bin/busybox".into()));
            }
        }
        Ok(())
    }

    /// A program and the libraries it needs, each where the loader looks for it.
    fn add_program(&mut self, name: &str, path: &Path, strip: bool) -> Result<()> {
        let entry = if strip {
            Entry::Stripped(path.to_owned())
        } else {
            Entry::Copy(path.to_owned(), PROGRAM)
        };
        self.put(&format!("bin/{name}"), entry);
        let listing = Command::new(tool("ldd")?)
            .arg(path)
            .output()
            .with_context(|| format!("asking ldd about {}", path.display()))?;
        // A static program makes ldd fail, with nothing listed.
        for line in String::from_utf8_lossy(&listing.stdout).lines() {
            let library = line.split_whitespace().find(|word| word.starts_with('/'));
            if let Some(library) = library {
                self.put(library, Entry::Copy(library.into(), PROGRAM));
            }
        }
        Ok(())
    }

    fn add_modules(&mut self, kernel: &Kernel) -> Result<()> {
        let modules = Modules::read(kernel)?;
        let base = format!("lib/modules/{}", kernel.release);
        let mut dependencies = BTreeMap::new();
        let more = MORE_MODULES
            .iter()
            .filter_map(|name| modules.load_order(name).ok());
        let mut boot = Vec::new();
        for name in BOOT_MODULES {
            boot.push(modules.load_order(name)?);
        }
        for order in boot.iter().cloned().chain(more) {
            for module in order {
                let mut needs = modules.load_order(&module)?;
                needs.pop();
                dependencies.insert(module, needs);
            }
        }
        let mut listing = String::new();
        for (module, needs) in &dependencies {
            let plain = uncompressed(module);
            let needs: Vec<&str> = needs.iter().rev().map(|need| uncompressed(need)).collect();
            listing.push_str(&format!("{plain}: {}\n", needs.join(" ")));
            self.put(
                &format!("{base}/{plain}"),
                Entry::Bytes(modules.content(module)?, DATA),
            );
        }
        self.put(
            &format!("{base}/modules.dep"),
            Entry::Bytes(listing.into(), DATA),
        );
        let mut seen = BTreeSet::new();
        let order: String = boot
            .iter()
            .flatten()
            .filter(|module| seen.insert((*module).clone()))
            .map(|module| format!("/{base}/{}\n", uncompressed(module)))
            .collect();
        self.put("etc/modules", Entry::Bytes(order.into(), DATA));
        Ok(())
    }

    /// Of names and contents.
    fn hash(&self) -> Result<String> {
        let mut hash = blake3::Hasher::new();
        for (path, entry) in &self.entries {
            hash.update(path.as_bytes());
            match entry {
                Entry::Copy(file, _) | Entry::Stripped(file) => {
                    let source = std::fs::File::open(file)
                        .with_context(|| format!("opening {}", file.display()))?;
                    hash.update(b"\0file\0").update_reader(source)?;
                }
                Entry::Bytes(bytes, _) => {
                    hash.update(b"\0bytes\0").update(bytes);
                }
                Entry::Link(to) => {
                    hash.update(b"\0link\0").update(to.as_bytes());
                }
                Entry::Directory | Entry::Device(..) => {
                    hash.update(b"\0");
                }
            }
        }
        Ok(hash.finalize().to_hex().as_str().chars().take(24).collect())
    }

    /// Writes the archive; it appears under its name only when it is whole.
    fn write(&self, path: &Path) -> Result<()> {
        let dir = path.parent().context("expected a path with a directory")?;
        let mut file = tempfile::NamedTempFile::new_in(dir)?;
        let mut out = std::io::BufWriter::with_capacity(1 << 20, file.as_file_mut());
        let strip = tool("strip")?;
        for (number, (name, entry)) in self.entries.iter().enumerate() {
            let (mode, content) = match entry {
                Entry::Copy(from, mode) => (*mode, read(from)?),
                Entry::Stripped(from) => {
                    let to = tempfile::NamedTempFile::new_in(dir)?;
                    run(Command::new(&strip).arg("-o").arg(to.path()).arg(from))?;
                    (PROGRAM, read(to.path())?)
                }
                Entry::Bytes(bytes, mode) => (*mode, bytes.clone()),
                Entry::Link(to) => (SYMLINK, to.clone().into_bytes()),
                Entry::Directory => (DIRECTORY, Vec::new()),
                Entry::Device(..) => (CHARACTER_DEVICE, Vec::new()),
            };
            let mut header = cpio::newc::Builder::new(name)
                .ino(u32::try_from(number + 1)?)
                .nlink(1)
                .mode(mode);
            if let Entry::Device(major, minor) = entry {
                header = header.rdev_major(*major).rdev_minor(*minor);
            }
            let mut writer = header.write(out, u32::try_from(content.len())?);
            writer.write_all(&content)?;
            out = writer.finish()?;
        }
        cpio::newc::trailer(&mut out)?.flush()?;
        drop(out);
        file.persist(path)?;
        Ok(())
    }
}

fn uncompressed(module: &str) -> &str {
    [".xz", ".zst", ".gz"]
        .iter()
        .find_map(|ending| module.strip_suffix(ending))
        .unwrap_or(module)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("reading {}", path.display()))
}

/// Keeps only the newest images, so that a day of building does not fill the disk.
fn forget_old(dir: &Path, keep: usize) -> Result<()> {
    let mut images = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        images.push((entry.metadata()?.modified()?, entry.path()));
    }
    images.sort();
    let old = images.len().saturating_sub(keep);
    for (_, path) in images.into_iter().take(old) {
        // Another build may have removed it first.
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}
