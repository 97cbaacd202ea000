//! The device of the SSD store: a file or a block device, accessed with direct I/O.

use super::transfer::{self, Overdue};
use super::write_buffer::BlocksRead;
use crate::backing::take_locks;
use crate::config::SsdConfig;
use crate::warm::{PAGE_BYTES, Preamble};
use justitia_common::regular_file::{self, directory_of};
use justitia_guest_protocol::puts::{AlignedBuf, PAGE};
use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom, fallocate};
use rustix::io::Errno;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The longest wait for an answer of a device that is being closed: a queue of writes may precede it.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

/// A device for the SSD store. Offsets are multiples of the block size, buffers are page-aligned.
pub trait Device: Send + Sync {
    /// Reads the blocks at these offsets in one batch, and waits at most `patience`. A late read writes into memory that has no
    /// other user.
    ///
    /// # Errors
    /// When the reads have not ended by then. The result has the errors of single blocks.
    fn read(&self, offsets: &[u64], patience: Duration) -> Result<BlocksRead, Overdue>;
    /// Writes in one batch. Returns a result for each.
    fn write(&self, requests: &[(u64, &[u8])]) -> Vec<io::Result<()>>;
    /// Discards the content. A hint.
    ///
    /// # Errors
    /// Errors of the device.
    fn discard(&self, off: u64, len: u64) -> io::Result<()>;
    /// Grows the device to this many bytes. Returns the number of bytes that it has room for.
    ///
    /// # Errors
    /// Errors of the device.
    fn grow(&self, len: u64) -> io::Result<u64>;
    /// The file or device itself, if it can be left to the next daemon.
    fn file(&self) -> Option<&FileDevice> {
        None
    }
}

/// A file or a block device, opened for this process alone. If it carries the mark of an SSD store, dropping this unlinks the
/// file, or discards the blocks on the device, so that they cannot be read any more.
pub struct FileDevice {
    pub(super) file: Arc<File>,
    pub(super) path: PathBuf,
    pub(super) regular: bool,
    /// This process has created the file.
    pub(super) made: bool,
    /// The mark was written.
    pub(super) marked: bool,
    /// Bytes of blocks that may have been written.
    pub(super) len: AtomicU64,
    /// The preamble that an earlier daemon has left on it, until it is taken.
    pub(super) left: Mutex<Option<Preamble>>,
    /// It is left to the next daemon.
    pub(super) kept: AtomicBool,
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        if let Err(e) = self.clear() {
            tracing::warn!(
                path = %self.path.display(),
                "blocks of VMs stay readable on the SSD store's device: {e}"
            );
        }
    }
}

impl FileDevice {
    /// Does it answer a read within this time? Other calls have no limit: while the device hangs they do not return, and the
    /// process cannot end.
    pub(crate) fn answers(&self, patience: Duration) -> bool {
        transfer::read(&self.file, vec![0], patience).is_ok()
    }

    /// The usable bytes of blocks, of `len`: all, unless the device has no room for the mark besides.
    fn provide(&self, len: u64) -> io::Result<u64> {
        if self.regular {
            let end = len.saturating_add(MARK_BYTES);
            if self.file.metadata()?.len() < end {
                self.file.set_len(end)?;
            }
            return Ok(len);
        }
        let found = rustix::fs::seek(&self.file, SeekFrom::End(0))?;
        if found < len {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("expected a device of at least {len} bytes, found {found}"),
            ));
        }
        let usable = len.min(found.saturating_sub(MARK_BYTES));
        self.len.fetch_max(usable, Ordering::Relaxed);
        Ok(usable)
    }

    /// Removes the file, or the blocks on a device, if they are ours.
    fn clear(&self) -> io::Result<()> {
        if self.kept.load(Ordering::SeqCst) {
            return Ok(());
        }
        if self.made {
            return self.unlink();
        }
        if !self.marked {
            return Ok(());
        }
        // A late read still has the file. Any further call to the device would then hang.
        if Arc::strong_count(&self.file) > 1 || !self.answers(ANSWER_PATIENCE) {
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                "it does not answer: nothing was removed",
            ));
        }
        if content(&self.file, self.regular)? != Content::Marked {
            return Err(io::Error::other(
                "the store's mark was overwritten: nothing was removed",
            ));
        }
        if self.regular {
            return self.unlink();
        }
        match self.discard(0, self.len.load(Ordering::Relaxed)) {
            // The device does not support discards.
            Err(e) if e.kind() == io::ErrorKind::Unsupported => Ok(()),
            done => done,
        }
    }

    /// Removes the file, if it still has that name.
    fn unlink(&self) -> io::Result<()> {
        let ours = self.file.metadata()?;
        let there = std::fs::symlink_metadata(&self.path)?;
        if (ours.dev(), ours.ino()) == (there.dev(), there.ino()) {
            std::fs::remove_file(&self.path)
        } else {
            self.file.set_len(0)
        }
    }
}

impl Device for FileDevice {
    fn read(&self, offsets: &[u64], patience: Duration) -> Result<BlocksRead, Overdue> {
        let offsets = offsets.iter().map(|off| off + MARK_BYTES).collect();
        transfer::read(&self.file, offsets, patience)
    }

    fn write(&self, requests: &[(u64, &[u8])]) -> Vec<io::Result<()>> {
        let requests = requests
            .iter()
            .map(|(off, bytes)| (off + MARK_BYTES, *bytes));
        transfer::write(&self.file, &requests.collect::<Vec<_>>())
    }

    fn discard(&self, off: u64, len: u64) -> io::Result<()> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.file, flags, off + MARK_BYTES, len)?)
    }

    fn grow(&self, len: u64) -> io::Result<u64> {
        self.provide(len)
    }

    fn file(&self) -> Option<&FileDevice> {
        Some(self)
    }
}

// The mark of an SSD store: its first MiB. A place without the mark is not ours, so it is never deleted, discarded or
// overwritten.
//
// Each page has its number. So a file system, a partition table or a volume that is made on the device later destroys the mark,
// wherever in the first MiB it writes. Behind the mark of the last page is the preamble of the blocks that a daemon has left
// for the next one; writing the mark voids it.

/// Bytes of the mark; blocks lie behind it.
pub(super) const MARK_BYTES: u64 = 1 << 20;

const TEXT: &[u8] = b"SSD store of `justitia cache`: nothing here is of use to anyone else\n";

/// The preamble's offset in the mark: the sector behind that with the number of the last page.
const PREAMBLE: usize = (1 << 20) - PAGE + 512;

/// The places of a device that are sampled, besides its beginning and end, before it counts as empty.
const SAMPLES: u64 = 1024;

/// The content of a file or device that is to become an SSD store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// Nothing: an empty file, or a device that is zero at all sampled places.
    Nothing,
    /// The blocks of an SSD store.
    Marked,
    /// Content that no SSD store has written.
    Foreign,
}

/// Examines the content of `file`.
pub(super) fn content(file: &File, regular: bool) -> io::Result<Content> {
    let size = rustix::fs::seek(file, SeekFrom::End(0))?;
    if size == 0 {
        return Ok(Content::Nothing);
    }
    // A file may be an incomplete mark: its server was killed while it wrote the mark.
    let count = size.min(MARK_BYTES);
    let mut found = AlignedBuf::new(index(MARK_BYTES));
    let end = read(file, &mut found, 0)?;
    let whole = u64::try_from(end).is_ok_and(|end| end >= count);
    let mut expected = mark();
    let preamble = PREAMBLE..index(MARK_BYTES);
    if whole && count == MARK_BYTES {
        expected[preamble.clone()].copy_from_slice(&found[preamble]);
    }
    if whole && found[..end] == expected[..end] && (count == MARK_BYTES || regular) {
        return Ok(Content::Marked);
    }
    let empty = !regular && found.iter().all(|byte| *byte == 0) && is_zero(file, size)?;
    Ok(if empty {
        Content::Nothing
    } else {
        Content::Foreign
    })
}

/// Writes the mark to `file`, durably, before any other write.
pub(super) fn write(file: &File) -> io::Result<()> {
    file.write_all_at(&mark(), 0)?;
    file.sync_data()
}

/// The preamble that a daemon has left on a marked store. `None` when there is none, or it cannot be used.
pub(super) fn left(file: &File) -> io::Result<Option<Preamble>> {
    let mut page = AlignedBuf::new(PAGE);
    let at = MARK_BYTES - PAGE_BYTES;
    if read(file, &mut page, at)? < PAGE {
        return Ok(None);
    }
    let found = &page[PREAMBLE % PAGE..];
    let preamble = Preamble::decode(found);
    if preamble.is_none() && found.iter().any(|byte| *byte != 0) {
        tracing::warn!(
            "the blocks on the SSD store are not used again: another version has left them, or their list is damaged"
        );
    }
    Ok(preamble)
}

/// Writes the preamble of left blocks, durably.
pub(super) fn leave(file: &File, preamble: &Preamble) -> io::Result<()> {
    let mark = mark();
    let mut page = AlignedBuf::new(PAGE);
    page.copy_from_slice(&mark[mark.len() - PAGE..]);
    let bytes = preamble.encode();
    let at = PREAMBLE % PAGE;
    page[at..at + bytes.len()].copy_from_slice(&bytes);
    file.write_all_at(&page, MARK_BYTES - PAGE_BYTES)?;
    file.sync_data()
}

fn mark() -> AlignedBuf {
    let mut mark = AlignedBuf::new(index(MARK_BYTES));
    for (page, number) in mark.chunks_exact_mut(PAGE).zip(0u64..) {
        let text = TEXT.iter().copied().chain(number.to_le_bytes());
        page.iter_mut().zip(text).for_each(|(to, byte)| *to = byte);
    }
    mark
}

/// Is the device zero at its end and at sampled places?
fn is_zero(file: &File, size: u64) -> io::Result<bool> {
    let page = u64::try_from(PAGE).map_err(io::Error::other)?;
    let pages = size / page;
    let mut buf = AlignedBuf::new(PAGE);
    let last = pages.saturating_sub(MARK_BYTES / page)..pages;
    let step = (pages / SAMPLES).max(1);
    for at in (0..pages).step_by(index(step)).chain(last) {
        read(file, &mut buf, at * page)?;
        if buf.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Reads until `buf` is full or the file ends. Returns the number of bytes.
fn read(file: &File, buf: &mut [u8], off: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buf.len() {
        let at = off + u64::try_from(done).map_err(io::Error::other)?;
        match file.read_at(&mut buf[done..], at) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

fn index(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

// Opening a file or a block device as SSD store: a store of ours, or an empty place.

/// The treatment of a file or device with content that no SSD store has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// It is refused.
    Refuse,
    /// It is overwritten.
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
    /// Opens the file or device at `path`, or makes a file there, for `len` bytes of blocks.
    ///
    /// # Errors
    /// If it cannot be opened, is in use, has content that `foreign` does not allow, or is too small.
    pub fn open(path: &Path, len: u64, foreign: Foreign) -> io::Result<Self> {
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
        take_locks(&device.file, false).map_err(io::Error::other)?;
        // The file is locked. From here on an error removes a file that was made.
        device.made = made;
        // Content without the mark was not left by a daemon, whatever it looks like.
        if check(&device.file, foreign)? == Content::Marked {
            // The preamble is valid once: it is voided, durably, before the store is used.
            *device.left.get_mut() = left(&device.file)?;
            // An earlier store on the device may have been larger.
            if !device.regular {
                let end = rustix::fs::seek(&device.file, SeekFrom::End(0))?;
                *device.len.get_mut() = end.saturating_sub(MARK_BYTES);
            }
        }
        write(&device.file)?;
        device.marked = true;
        device.provide(len)?;
        Ok(device)
    }
}

/// Checks that `path` may become an SSD store, or that a file may be made there. Changes nothing.
///
/// # Errors
/// The reason if it may not.
pub(crate) fn check_place(path: &Path, foreign: Foreign) -> io::Result<()> {
    let path = place(path)?;
    match open(&path, OFlags::RDONLY | OFlags::DIRECT) {
        Ok(file) => check(&file, foreign).map(drop),
        Err(Errno::NOENT) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// Resolves `path`, in a directory that no other user writes. A link may only lead to a block device, as in `/dev/disk`.
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
        Ok(found) if !found.is_file() => Ok(path.to_owned()),
        _ => {
            check_is_no_device_name(path)?;
            Ok(path.to_owned())
        }
    }
}

/// Checks that a regular file at `path` would not be below `/dev`: it would be in memory.
fn check_is_no_device_name(path: &Path) -> io::Result<()> {
    let directory = std::fs::canonicalize(directory_of(path))?;
    if directory.starts_with("/dev") && !directory.starts_with("/dev/shm") {
        return Err(invalid(format!(
            "expected a block device, found none at {}: `lsblk` lists them",
            path.display()
        )));
    }
    Ok(())
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

/// Opens the file or device, or makes a file. Returns whether it was made.
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

/// Checks that the file may become an SSD store. Returns its content.
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
    let content = content(file, kind.is_file())?;
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

/// The file contains blocks of all VMs, so other users must not read it.
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
