//! Files of runtimes and of systemd, read with care.

use std::cell::Cell;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Dir, Mode, OFlags, ResolveFlags, fstat, openat2};
use rustix::io::Errno;

/// The longest file that is read, bytes.
pub const MAX_FILE: u64 = 1 << 20;
/// The most entries of a directory that are listed.
const MAX_ENTRIES: usize = 4096;

/// Whose files are believed, beside those of root and of this process's own user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Nobody's.
    Root,
    /// Those of this user. No mount is entered then: a user can mount a file system that never answers.
    User(u32),
}

/// A directory that is trusted: everything above it belongs to root, and links there are followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    /// Its path, from `/` on.
    pub path: PathBuf,
    /// Whose files in it are believed.
    pub owner: Owner,
}

impl Base {
    /// A directory of root.
    pub(crate) fn root(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            owner: Owner::Root,
        }
    }
}

/// Reads files below a root directory; `/`, but in tests.
#[derive(Debug)]
pub(crate) struct Files {
    root: PathBuf,
    errors: Cell<u64>,
}

/// A file's content and its state, by which a change is seen.
pub(crate) struct Content {
    /// What it says.
    pub bytes: Vec<u8>,
    /// Device, inode, change time and size.
    pub state: State,
}

/// What changes with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State([i64; 5]);

impl Files {
    pub(crate) fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            errors: Cell::new(0),
        }
    }

    /// How many files were there and could not be used.
    pub(crate) fn errors(&self) -> u64 {
        self.errors.get()
    }

    /// A file that was read is not what it should be.
    pub(crate) fn note_error(&self) {
        self.errors.set(self.errors.get() + 1);
    }

    /// The file `name`, a relative path, below `base`; `None` if it is not there, or must not be used.
    pub(crate) fn read(&self, base: &Base, name: &str) -> Option<Content> {
        let file = self.counted(self.open(base, name, OFlags::NONBLOCK | OFlags::NOCTTY))?;
        let read = content(File::from(file), base.owner);
        self.counted(read)
    }

    /// The same, parsed; `None` also if it says nothing that `parse` understands.
    pub(crate) fn parse<T>(
        &self,
        base: &Base,
        name: &str,
        parse: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Option<T> {
        let content = self.read(base, name)?;
        let parsed = parse(&content.bytes);
        if parsed.is_none() {
            self.note_error();
        }
        parsed
    }

    /// The state of a file, without reading it.
    pub(crate) fn state(&self, base: &Base, name: &str) -> Option<State> {
        let file = self.open(base, name, OFlags::PATH).ok()?;
        fstat(&file).ok().map(|stat| state(&stat))
    }

    /// The names in a directory below `base`, sorted.
    pub(crate) fn list(&self, base: &Base, name: &str) -> Vec<String> {
        let directory = self.counted(self.open(base, name, OFlags::DIRECTORY));
        let mut names: Vec<String> = directory
            .and_then(|directory| Dir::read_from(directory).ok())
            .into_iter()
            .flatten()
            .flatten()
            .take(MAX_ENTRIES)
            .filter_map(|entry| Some(entry.file_name().to_str().ok()?.to_owned()))
            .collect();
        names.sort();
        names
    }

    /// Opens what is `name` below `base`, without following a link and without leaving `base`.
    fn open(&self, base: &Base, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let path = self
            .root
            .join(base.path.strip_prefix("/").unwrap_or(&base.path));
        let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let base_fd = rustix::fs::openat(CWD, &path, directory, Mode::empty())?;
        // Who can write there could put any file there.
        let owned = fstat(&base_fd)?;
        if !is_trusted(owned.st_uid, owned.st_mode, Owner::Root) {
            return Err(Errno::PERM);
        }
        let mut resolve =
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        if base.owner != Owner::Root {
            resolve |= ResolveFlags::NO_XDEV;
        }
        let name = if name.is_empty() { "." } else { name };
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        openat2(base_fd.as_fd(), name, flags, Mode::empty(), resolve)
    }

    /// Counts an error, unless it says that there is no such file.
    fn counted<T>(&self, result: Result<T, Errno>) -> Option<T> {
        match result {
            Ok(found) => Some(found),
            Err(Errno::NOENT | Errno::NOTDIR) => None,
            Err(_) => {
                self.note_error();
                None
            }
        }
    }
}

fn content(file: File, owner: Owner) -> Result<Content, Errno> {
    let stat = fstat(&file)?;
    let found = file.metadata().map_err(|_| Errno::IO)?;
    if !found.is_file() || !is_trusted(found.uid(), found.mode(), owner) {
        return Err(Errno::PERM);
    }
    if found.len() > MAX_FILE {
        return Err(Errno::FBIG);
    }
    let mut bytes = Vec::new();
    // The size that is announced need not be the one that is read.
    let read = file.take(MAX_FILE + 1).read_to_end(&mut bytes);
    let length = read.map_err(|_| Errno::IO)?;
    if u64::try_from(length).is_ok_and(|length| length > MAX_FILE) {
        return Err(Errno::FBIG);
    }
    let state = state(&stat);
    Ok(Content { bytes, state })
}

fn state(stat: &rustix::fs::Stat) -> State {
    let number = |n: u64| n.cast_signed();
    State([
        number(stat.st_dev),
        number(stat.st_ino),
        stat.st_ctime,
        i64::try_from(stat.st_ctime_nsec).unwrap_or(0),
        stat.st_size,
    ])
}

/// Whether nobody but root, this process's user and `owner` could have written it.
fn is_trusted(uid: u32, mode: u32, owner: Owner) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let is_owner = match owner {
        Owner::Root => false,
        Owner::User(user) => uid == user,
    };
    (uid == 0 || uid == own || is_owner) && mode & 0o022 == 0
}
