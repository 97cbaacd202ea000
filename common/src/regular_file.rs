//! Regular files where a pipe, a device or a link may stand. Opening one of those neither blocks nor leads elsewhere.

use std::fs::{File, FileType};
use std::io::{Error, ErrorKind, Read, Result};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock};

/// Opens the regular file at `path` itself, not where a link leads; with `CREATE`, mode 0600.
///
/// # Errors
/// What was expected, what stands there, and what to do; or what the system said.
pub fn open(path: &Path, flags: OFlags) -> Result<File> {
    // Without NONBLOCK, opening a pipe that has no writer would wait for one.
    let flags = flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let opened = rustix::fs::open(path, flags, Mode::from_raw_mode(0o600)).map(File::from);
    let found = match &opened {
        Ok(file) => file.metadata(),
        // A link or a socket cannot be opened at all: say that, and not that there are too many links.
        Err(_) => std::fs::symlink_metadata(path),
    };
    match found {
        Ok(found) if !found.is_file() => Err(Error::other(format!(
            "expected a regular file, found {}: see who has put it there, and remove it",
            kind(found.file_type())
        ))),
        _ => Ok(opened?),
    }
}

/// A lock that this process has; its file goes with it.
#[derive(Debug)]
pub struct LockFile {
    path: PathBuf,
    _locked: File,
}

impl LockFile {
    /// How often a lock's file may be gone when it was locked.
    const MOST: usize = 100;

    /// Locks the file at `path`, which is made.
    ///
    /// # Errors
    /// [`ErrorKind::WouldBlock`] if another process has it; as [`open`] else.
    pub fn take(path: &Path) -> Result<Self> {
        for _ in 0..Self::MOST {
            let file = open(path, OFlags::RDWR | OFlags::CREATE)?;
            flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            let locked = file.metadata()?;
            let there = std::fs::symlink_metadata(path);
            if there.is_ok_and(|there| (there.dev(), there.ino()) == (locked.dev(), locked.ino())) {
                return Ok(Self {
                    path: path.to_owned(),
                    _locked: file,
                });
            }
        }
        Err(ErrorKind::WouldBlock.into())
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        // While it is locked: a process that waits for it finds that it is gone, and makes another.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Opens the regular file at `path`, or where a link leads, to be read. Neither a pipe nor a device holds this up.
///
/// # Errors
/// What was expected and what stands there, or what the system said.
pub fn follow(path: &Path) -> Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    let found = file.metadata()?;
    if found.is_file() {
        return Ok(file);
    }
    Err(Error::other(format!(
        "expected a regular file, found {}",
        kind(found.file_type())
    )))
}

/// The content of the regular file at `path`, or where a link leads, if it is at most `most` bytes long.
///
/// # Errors
/// As [`follow`], and if there is more.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    let file = follow(path)?;
    let announced = file.metadata()?.len();
    let mut content = Vec::new();
    // The size that is announced need not be the one that is read.
    file.take(most.saturating_add(1))
        .read_to_end(&mut content)?;
    let length = u64::try_from(content.len()).unwrap_or(u64::MAX);
    if length > most {
        return Err(Error::other(format!(
            "expected at most {most} bytes, found {}",
            announced.max(length)
        )));
    }
    Ok(content)
}

/// As [`read`], as text.
///
/// # Errors
/// As [`read`], and if it is no UTF-8.
pub fn read_text(path: &Path, most: u64) -> Result<String> {
    String::from_utf8(read(path, most)?).map_err(Error::other)
}

/// The directory that a file lies in.
#[must_use]
pub fn directory_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// The owner and the mode of the directory of `path`, if others than this user and root may write it, or it is another
/// user's: they could put a file of theirs at `path`.
///
/// # Errors
/// What the system says of the directory.
pub fn foreign_directory(path: &Path) -> Result<Option<(u32, u32)>> {
    let found = std::fs::metadata(directory_of(path))?;
    let ours = rustix::process::geteuid().as_raw();
    let safe = [0, ours].contains(&found.uid()) && found.mode() & 0o022 == 0;
    Ok((!safe).then_some((found.uid(), found.mode() & 0o7777)))
}

/// A kind of file in words: what stands where another was expected.
#[must_use]
pub fn kind(found: FileType) -> &'static str {
    if found.is_file() {
        "a regular file"
    } else if found.is_dir() {
        "a directory"
    } else if found.is_symlink() {
        "a symbolic link"
    } else if found.is_fifo() {
        "a pipe"
    } else if found.is_socket() {
        "a socket"
    } else if found.is_char_device() {
        "a character device"
    } else if found.is_block_device() {
        "a block device"
    } else {
        "something else"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads `path` with this bound, within 20 s.
    fn within(path: &Path, most: u64) -> std::result::Result<Vec<u8>, String> {
        let path = path.to_owned();
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::spawn(move || send.send(read(&path, most).map_err(|e| e.to_string())));
        let read = receive.recv_timeout(std::time::Duration::from_secs(20));
        read.expect("an answer")
    }

    #[test]
    fn a_lock_is_one_process_alone_has_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let lock = LockFile::take(&path).unwrap();
        let other = LockFile::take(&path).unwrap_err();
        assert_eq!(other.kind(), ErrorKind::WouldBlock);
        drop(lock);
        assert!(!path.exists());
        drop(LockFile::take(&path).unwrap());
    }

    #[test]
    fn only_regular_files_of_a_bounded_size_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link, pipe) = (
            dir.path().join("file"),
            dir.path().join("link"),
            dir.path().join("pipe"),
        );
        std::fs::write(&file, "12345").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).unwrap();
        assert_eq!(within(&file, 5).unwrap(), b"12345");
        assert_eq!(within(&link, 9).unwrap(), b"12345");
        let refused = [
            (file.as_path(), "expected at most 4 bytes, found 5"),
            (pipe.as_path(), "found a pipe"),
            (dir.path(), "found a directory"),
            (Path::new("/dev/zero"), "found a character device"),
            // It says that it is empty.
            (
                Path::new("/proc/self/maps"),
                "expected at most 4 bytes, found 5",
            ),
        ];
        for (path, expected) in refused {
            let error = within(path, 4).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
