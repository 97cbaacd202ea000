//! The initramfs as an archive: files by path, in cpio's "newc" format.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::host::{run, tool};

const DIRECTORY: u32 = 0o040_755;
const SYMLINK: u32 = 0o120_777;
/// The mode of a program.
pub(super) const PROGRAM: u32 = 0o100_755;
/// The mode of a file that is no program.
pub(super) const DATA: u32 = 0o100_644;
const CHARACTER_DEVICE: u32 = 0o020_600;

/// Something in the archive.
pub(super) enum Entry {
    /// A host's file, with its mode in the guest.
    Copy(PathBuf, u32),
    /// The same, with debugging symbols removed.
    Stripped(PathBuf),
    /// A content, with its mode.
    Bytes(Vec<u8>, u32),
    /// A symbolic link, and where it points.
    Link(String),
    Directory,
    /// A character device.
    Device(u32, u32),
}

/// What goes into the guest, by path without the leading slash.
#[derive(Default)]
pub(super) struct Archive {
    entries: BTreeMap<String, Entry>,
}

impl Archive {
    /// Puts an entry at a path, and the directories above it.
    pub(super) fn put(&mut self, path: &str, entry: Entry) {
        let path = path.trim_start_matches('/');
        // The archive must hold a directory before its content; the order of names does that.
        for (end, _) in path.match_indices('/') {
            let dir = path.get(..end).unwrap_or_default();
            self.entries
                .entry(dir.to_owned())
                .or_insert(Entry::Directory);
        }
        self.entries.insert(path.to_owned(), entry);
    }

    /// The hash of names and contents.
    pub(super) fn hash(&self) -> Result<String> {
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

    /// Writes the archive; it appears under its name only when it is complete.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
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

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("reading {}", path.display()))
}
