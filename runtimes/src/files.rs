//! Files of runtimes and of systemd, read with care.

use std::cell::Cell;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, StatxFlags, fstat, openat, statx};
use rustix::io::Errno;

/// The longest file that is read, bytes.
pub const MAX_FILE: u64 = 1 << 20;
/// The most entries of a directory that are listed.
const MAX_ENTRIES: usize = 4096;

/// Of which user files are believed, beside those of root and of this process's own user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// Of none.
    Root,
    /// Of this user. No mount is entered then: a user can mount a file system that never answers.
    User(u32),
}

/// A directory that is trusted: everything above it belongs to root, and links there are followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Base {
    /// Its path, from `/` on.
    pub path: PathBuf,
    /// Of which user files in it are believed.
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

/// What is in a file's place.
pub(crate) enum Found {
    /// A file that is used.
    Content(Content),
    /// No file.
    Nothing,
    /// Something that must not be used, such as a link.
    Refused,
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
        match self.find(base, name) {
            Found::Content(content) => Some(content),
            Found::Nothing | Found::Refused => None,
        }
    }

    /// The same, and why there is nothing.
    pub(crate) fn find(&self, base: &Base, name: &str) -> Found {
        let file = self.open(base, name, OFlags::NONBLOCK | OFlags::NOCTTY);
        match file.and_then(|file| content(File::from(file), base.owner)) {
            Ok(content) => Found::Content(content),
            Err(Errno::NOENT) => Found::Nothing,
            Err(_) => {
                self.note_error();
                Found::Refused
            }
        }
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

    /// Whether a directory of root is there and is believed.
    ///
    /// # Errors
    /// Why it is not used though it is there.
    pub(crate) fn can_use(&self, base: &Base) -> Result<bool, String> {
        match self.open(base, "", OFlags::DIRECTORY) {
            Ok(_) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(Errno::PERM) => Err("others than root may write it".to_owned()),
            Err(errno) => Err(errno.to_string()),
        }
    }

    /// Where a link in the place of a file of root leads; nothing if something else is there. `None` if nothing is.
    pub(crate) fn link(&self, base: &Base, name: &str) -> Option<PathBuf> {
        let path = base.path.strip_prefix("/").unwrap_or(&base.path);
        let path = self.root.join(path).join(name);
        let found = std::fs::symlink_metadata(&path).ok()?;
        Some(match found.is_symlink() {
            true => std::fs::read_link(path).unwrap_or_default(),
            false => PathBuf::new(),
        })
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
        names.sort_unstable();
        names
    }

    /// Opens what is `name` below `base`, without following a link and without leaving `base`. Name by name: where
    /// `RestrictSUIDSGID=` is on, as in the agent's unit, systemd refuses `openat2`.
    fn open(&self, base: &Base, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);
        let path = base.path.strip_prefix("/").unwrap_or(&base.path);
        let mut at = openat(CWD, self.root.join(path), DIRECTORY, Mode::empty())?;
        // A user who can write the directory could put any file there.
        let owned = fstat(&at)?;
        if !is_trusted(owned.st_uid, owned.st_mode, Owner::Root) {
            return Err(Errno::PERM);
        }
        let mount = match base.owner {
            Owner::Root => None,
            Owner::User(_) => Some(mount_of(&at)?),
        };
        let (above, last) = name.rsplit_once('/').unwrap_or(("", name));
        for part in above.split('/').filter(|_| !above.is_empty()) {
            at = openat(
                &at,
                plain(part)?,
                DIRECTORY | OFlags::NOFOLLOW,
                Mode::empty(),
            )?;
            within(&at, mount)?;
        }
        let flags = flags | OFlags::CLOEXEC;
        if last.is_empty() {
            return openat(&at, ".", flags, Mode::empty());
        }
        let last = plain(last)?;
        if mount.is_none() {
            return openat(&at, last, flags | OFlags::NOFOLLOW, Mode::empty());
        }
        // The file is opened only once it is known on which file system it is.
        let found = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = openat(&at, last, found, Mode::empty())?;
        within(&found, mount)?;
        let link = format!("/proc/self/fd/{}", found.as_raw_fd());
        openat(CWD, link, flags, Mode::empty())
    }

    /// Counts an error, unless it says that there is no such file.
    fn counted<T>(&self, result: Result<T, Errno>) -> Option<T> {
        match result {
            Ok(found) => Some(found),
            Err(Errno::NOENT) => None,
            Err(_) => {
                self.note_error();
                None
            }
        }
    }
}

/// One name, which leads nowhere else.
fn plain(name: &str) -> Result<&str, Errno> {
    let leads = matches!(name, "" | "." | "..") || name.contains('\0');
    if leads { Err(Errno::INVAL) } else { Ok(name) }
}

/// The mount that a file is on, without asking its file system, which may be one that never answers.
fn mount_of(file: &OwnedFd) -> Result<u64, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    statx(file, "", flags, StatxFlags::MNT_ID).map(|stat| stat.stx_mnt_id)
}

/// Refuses what is on another mount than it should be, if that matters.
fn within(file: &OwnedFd, mount: Option<u64>) -> Result<(), Errno> {
    match mount {
        Some(mount) if mount_of(file)? != mount => Err(Errno::XDEV),
        _ => Ok(()),
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

/// Whether only root, this process's user and `owner` could have written it.
fn is_trusted(uid: u32, mode: u32, owner: Owner) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let is_owner = match owner {
        Owner::Root => false,
        Owner::User(user) => uid == user,
    };
    (uid == 0 || uid == own || is_owner) && mode & 0o022 == 0
}
