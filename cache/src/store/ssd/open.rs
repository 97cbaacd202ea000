//! Taking a file or a block device as SSD store: one that is ours, or is nobody's.

use super::device::FileDevice;
use super::mark::{self, Content};
use crate::backing::lock;
use crate::config::SsdConfig;
use justitia_regular_file as regular_file;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// What becomes of a file or a device that holds something that no SSD store has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Foreign {
    /// It is refused.
    Refuse,
    /// It is lost.
    Overwrite,
}

impl Foreign {
    /// As configured.
    pub(crate) const fn of(config: &SsdConfig) -> Self {
        match config.overwrite {
            true => Self::Overwrite,
            false => Self::Refuse,
        }
    }
}

impl FileDevice {
    /// Takes what lies at `path`, or makes a file there, for `len` bytes of blocks.
    pub(crate) fn open(path: &Path, len: u64, foreign: Foreign) -> io::Result<Self> {
        let path = place(path)?;
        let (file, made) = open_or_make(&path)?;
        let mut device = Self {
            regular: file.metadata()?.is_file(),
            file: Arc::new(file),
            path,
            made: false,
            marked: false,
            len: AtomicU64::new(0),
            left: Mutex::default(),
            kept: AtomicBool::new(false),
        };
        lock::take(&device.file, false).map_err(io::Error::other)?;
        // Nobody else has it, and from here on a file that was made is removed again.
        device.made = made;
        // What lies there without the mark was left by nobody, whatever it looks like.
        if check(&device.file, foreign)? == Content::Marked {
            // Valid once: what is read here is void, durably, before anything of the store is used.
            *device.left.get_mut() = mark::left(&device.file)?;
        }
        mark::write(&device.file)?;
        device.marked = true;
        device.provide(len)?;
        Ok(device)
    }
}

/// May what lies at `path` be taken as SSD store, and if nothing does, may a file be made there? Changes nothing.
///
/// # Errors
/// When not, and why.
pub(crate) fn check_place(path: &Path, foreign: Foreign) -> io::Result<()> {
    let path = place(path)?;
    match open(&path, OFlags::RDONLY | OFlags::DIRECT) {
        Ok(file) => check(&file, foreign).map(drop),
        Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// The place that `path` names, in a directory that no other user writes. A link leads to a block device only, as those in
/// `/dev/disk` do.
fn place(path: &Path) -> io::Result<PathBuf> {
    check_directory(path)?;
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() => {
            let target = std::fs::canonicalize(path)?;
            let kind = std::fs::metadata(&target)?.file_type();
            if kind.is_block_device() {
                check_directory(&target)?;
                return Ok(target);
            }
            Err(invalid(format!(
                "expected a regular file or a block device, found a symbolic link to {}: name {} itself",
                regular_file::kind(kind),
                target.display()
            )))
        }
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(path.to_owned()),
    }
}

fn check_directory(path: &Path) -> io::Result<()> {
    let Some((uid, mode)) = regular_file::foreign_directory(path)? else {
        return Ok(());
    };
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "expected a directory that only this user or root may write, found one of the user {uid} with mode {mode:03o}: others could put another file there"
        ),
    ))
}

fn open(path: &Path, flags: OFlags) -> rustix::io::Result<File> {
    let common = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let open = |more: OFlags| {
        let mode = Mode::RUSR | Mode::WUSR;
        rustix::fs::open(path, flags | common | more, mode).map(File::from)
    };
    match open(OFlags::empty()) {
        Err(Errno::INVAL) if flags.contains(OFlags::DIRECT) => {
            tracing::warn!(path = %path.display(), "no direct I/O here: blocks on this SSD store pass the page cache, too");
            let flags = (flags - OFlags::DIRECT) | common;
            rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map(File::from)
        }
        done => done,
    }
}

/// The file or device; and whether it was made.
fn open_or_make(path: &Path) -> io::Result<(File, bool)> {
    let flags = OFlags::RDWR | OFlags::DIRECT;
    let block = std::fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_block_device());
    // A mounted device must not be overwritten.
    let exclusive = if block { OFlags::EXCL } else { OFlags::empty() };
    match open(path, flags | exclusive) {
        Ok(file) => Ok((file, false)),
        Err(Errno::NOENT) if !block => {
            let made = open(path, flags | OFlags::CREATE | OFlags::EXCL)?;
            Ok((made, true))
        }
        Err(e) => Err(e.into()),
    }
}

/// May this be taken? What lies there.
fn check(file: &File, foreign: Foreign) -> io::Result<Content> {
    let found = file.metadata()?;
    let kind = found.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(invalid(format!(
            "expected a regular file or a block device, found {}",
            regular_file::kind(kind)
        )));
    }
    if kind.is_file() {
        check_owner(&found)?;
    }
    let content = mark::content(file, kind.is_file())?;
    if foreign == Foreign::Refuse && content == Content::Foreign {
        return Err(invalid(format!(
            "expected nothing, or an SSD store of Justitia's, found {} with something else in it: choose another place; if what it holds may be lost, say so (`overwrite = true` in [ssd], or `justitia cache set ssd --overwrite`)",
            regular_file::kind(kind)
        )));
    }
    Ok(content)
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

/// Blocks of all VMs go into the file: other users must not read it.
fn check_owner(found: &Metadata) -> io::Result<()> {
    let ours = rustix::process::geteuid().as_raw();
    if found.uid() == ours && found.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "expected a file of the user {ours} with mode 600, found one of the user {} with mode {:03o}: blocks of all VMs would be written into it; name another place, where a file is made",
            found.uid(),
            found.mode() & 0o7777
        ),
    ))
}
