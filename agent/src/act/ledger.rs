//! The ledger: every knob that is written goes through it, and comes back as it was.
//!
//! It remembers on disk what stood before the first write (see [`journal`](super::journal)), notices a
//! foreign writer and yields that knob for good, and gives everything back at the end, or at the next
//! start.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use justitia_kernel::cgroup::{Cgroup, CgroupFs, CgroupId};
use justitia_kernel::knob::{Knob, read_raw, write_raw};
use rustix::fs::{FlockOperation, OFlags, flock};

use super::journal::{Entry, Journal, JournalError};
use crate::{escape, regular};

/// A knob that the ledger has written.
#[derive(Debug)]
struct Held {
    cgroup: Cgroup,
    before: String,
    ours: String,
}

impl Held {
    /// As the journal says it.
    fn entry(&self, (id, knob): (CgroupId, Knob)) -> Entry {
        Entry {
            cgroup: id.0,
            path: escape::encode(self.cgroup.path().as_os_str()),
            knob,
            before: self.before.clone(),
            ours: self.ours.clone(),
        }
    }
}

/// What became of a wish to write a knob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// It stands there now.
    Yes,
    /// It stood there already.
    Already,
    /// Someone else has written the knob since; it is theirs, now and later.
    Yielded {
        /// What we had left there.
        ours: String,
        /// What was found.
        found: String,
    },
    /// The cgroup is gone.
    Gone,
}

/// How a knob came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Back {
    /// It holds again what stood there before.
    Restored,
    /// It holds someone else's value, which was left.
    Foreign {
        /// That value.
        found: String,
    },
    /// Its cgroup is gone.
    Gone,
    /// The kernel refused.
    Failed {
        /// Its words.
        error: String,
    },
}

/// A knob, and how it came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Returned {
    /// The cgroup's path below the mount, escaped.
    pub path: String,
    /// Which knob.
    pub knob: Knob,
    /// The value that stood there before the agent came.
    pub before: String,
    /// How it came back.
    pub back: Back,
}

/// Why the ledger cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// The state directory cannot be used.
    #[error("the state directory {path}: {source}")]
    State {
        /// Which directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file in it that keeps a second agent out cannot be used.
    #[error("the lock {path}: {source}")]
    Lock {
        /// Which file.
        path: PathBuf,
        /// What was found there, or what the system said.
        source: std::io::Error,
    },
    /// Another agent holds it.
    #[error("another agent is running with the state directory {0}; stop it first")]
    Busy(PathBuf),
    /// The journal is unreadable or damaged.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The kernel's side.
    #[error(transparent)]
    Kernel(#[from] justitia_kernel::Error),
}

/// Every knob that the agent holds.
#[derive(Debug)]
pub struct Ledger {
    journal: Option<Journal>,
    path: PathBuf,
    held: HashMap<(CgroupId, Knob), Held>,
    yielded: HashMap<(CgroupId, Knob), String>,
    /// Holds the lock that keeps a second agent out.
    _lock: File,
}

impl Ledger {
    /// Opens the ledger in `state` (made if missing, readable by its owner only), and first gives back
    /// whatever an agent that was killed has left.
    ///
    /// # Errors
    /// If another agent runs, or the journal cannot be read, written or trusted. Nothing was changed then.
    pub fn open(fs: &CgroupFs, state: &Path) -> Result<(Self, Vec<Returned>), LedgerError> {
        let lock = lock(state)?;
        let path = state.join("ledger");
        let contents = Journal::read(&path)?;
        if let Some(damage) = contents.damage {
            return Err(damage.into());
        }
        let (returned, failed) = give_back(fs, &contents.entries);
        let journal = Journal::create(&path, &failed)?;
        let ledger = Self {
            journal: Some(journal),
            path,
            held: HashMap::new(),
            yielded: HashMap::new(),
            _lock: lock,
        };
        Ok((ledger, returned))
    }

    /// Writes `value` to a knob, unless someone else has written it since we did. The first write remembers
    /// what stood there. Returns once the value stands in the kernel, and on disk before that.
    ///
    /// # Errors
    /// If the journal or the knob cannot be written; the knob is unchanged then.
    pub fn set(
        &mut self,
        cgroup: &Cgroup,
        knob: Knob,
        value: &str,
    ) -> Result<Written, LedgerError> {
        let key = (cgroup.id(), knob);
        if let Some(found) = self.yielded.get(&key) {
            return Ok(Written::Yielded {
                ours: String::new(),
                found: found.clone(),
            });
        }
        let found = match read_raw(cgroup, knob) {
            Ok(found) => found,
            Err(e) if e.is_gone() => return Ok(self.forget(key)),
            Err(e) => return Err(e.into()),
        };
        let before = match self.held.get(&key) {
            Some(held) if held.ours != found => {
                let ours = held.ours.clone();
                self.give_up(key, &found);
                return Ok(Written::Yielded { ours, found });
            }
            Some(held) if held.ours == value => return Ok(Written::Already),
            Some(held) => held.before.clone(),
            None if found == value => return Ok(Written::Already),
            None => found,
        };
        let entry = Entry {
            cgroup: key.0.0,
            path: escape::encode(cgroup.path().as_os_str()),
            knob,
            before: before.clone(),
            ours: value.to_owned(),
        };
        let Some(journal) = &mut self.journal else {
            return Ok(Written::Gone);
        };
        journal.about_to_write(&entry)?;
        match write_raw(cgroup, knob, value) {
            Ok(()) => {
                let held = Held {
                    cgroup: cgroup.clone(),
                    before,
                    ours: value.to_owned(),
                };
                self.held.insert(key, held);
                self.compact()?;
                Ok(Written::Yes)
            }
            Err(e) if e.is_gone() => Ok(self.forget(key)),
            Err(e) => Err(e.into()),
        }
    }

    /// Gives one knob back now: what stood there before stands there again, unless someone else has written
    /// it since. `None` if we do not hold it, or its cgroup is gone; if the kernel refuses, we go on holding
    /// it.
    pub fn release(&mut self, id: CgroupId, knob: Knob) -> Option<Back> {
        let key = (id, knob);
        let held = self.held.get(&key)?;
        let back = put_back(&held.cgroup, knob, &held.before, &[&held.ours]);
        match &back {
            Back::Restored => {
                self.forget(key);
            }
            Back::Foreign { found } => self.give_up(key, found),
            Back::Gone => {
                self.forget(key);
                return None;
            }
            Back::Failed { error } => {
                tracing::warn!(cgroup = id.0, %knob, error, "could not be given back yet");
            }
        }
        Some(back)
    }

    /// Looks whether someone else has written a knob of ours; if so, yields it and says what was found.
    pub fn audit(&mut self, id: CgroupId, knob: Knob) -> Option<Written> {
        let held = self.held.get(&(id, knob))?;
        let found = read_raw(&held.cgroup, knob).ok()?;
        if found == held.ours {
            return None;
        }
        let ours = held.ours.clone();
        self.give_up((id, knob), &found);
        Some(Written::Yielded { ours, found })
    }

    /// Whether the knob may be written: nobody else has taken it.
    #[must_use]
    pub fn may_write(&self, id: CgroupId, knob: Knob) -> bool {
        !self.yielded.contains_key(&(id, knob))
    }

    /// What we have left in a knob.
    #[must_use]
    pub fn ours(&self, id: CgroupId, knob: Knob) -> Option<&str> {
        self.held.get(&(id, knob)).map(|h| h.ours.as_str())
    }

    /// What stood in a knob before our first write.
    #[must_use]
    pub fn before(&self, id: CgroupId, knob: Knob) -> Option<&str> {
        self.held.get(&(id, knob)).map(|h| h.before.as_str())
    }

    /// The knobs held: whose, which, what stood there before, what we have left there.
    pub fn held(&self) -> impl Iterator<Item = (CgroupId, Knob, &str, &str)> {
        self.held
            .iter()
            .map(|((id, knob), h)| (*id, *knob, h.before.as_str(), h.ours.as_str()))
    }

    /// The knobs held now.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The knobs yielded to others, and the values found there.
    pub fn yielded(&self) -> impl Iterator<Item = (CgroupId, Knob, &str)> {
        self.yielded
            .iter()
            .map(|((id, knob), found)| (*id, *knob, found.as_str()))
    }

    /// Leaves a knob to someone else, as when a value of theirs stands there from the beginning.
    pub fn leave(&mut self, id: CgroupId, knob: Knob, found: &str) {
        self.yielded.insert((id, knob), found.to_owned());
    }

    /// Forgets a cgroup that is gone.
    pub fn cgroup_gone(&mut self, id: CgroupId) {
        let knobs: Vec<Knob> = self
            .held
            .keys()
            .filter(|(held, _)| *held == id)
            .map(|(_, knob)| *knob)
            .collect();
        for knob in knobs {
            self.forget((id, knob));
        }
        self.yielded.retain(|(held, _), _| *held != id);
    }

    /// Gives every knob back, and forgets it. Knobs that the kernel refused stay in the journal for the next
    /// start.
    pub fn restore(&mut self) -> Vec<Returned> {
        let mut returned = Vec::new();
        let mut failed = Vec::new();
        for ((id, knob), held) in self.held.drain() {
            let entry = held.entry((id, knob));
            let back = put_back(&held.cgroup, knob, &entry.before, &[&entry.ours]);
            returned.push(told(&entry, back.clone()));
            if matches!(back, Back::Failed { .. }) {
                failed.push(entry);
            }
        }
        let closed = match self.journal.take() {
            Some(journal) if failed.is_empty() => journal.remove(),
            Some(_) => Journal::create(&self.path, &failed).map(|_| ()),
            None => Ok(()),
        };
        if let Err(error) = closed {
            tracing::warn!(%error, "the ledger was not closed; its knobs are back all the same");
        }
        returned
    }

    fn forget(&mut self, key: (CgroupId, Knob)) -> Written {
        if self.held.remove(&key).is_some() {
            self.journal_done(key);
        }
        Written::Gone
    }

    fn give_up(&mut self, key: (CgroupId, Knob), found: &str) {
        self.held.remove(&key);
        self.yielded.insert(key, found.to_owned());
        self.journal_done(key);
    }

    fn journal_done(&mut self, (id, knob): (CgroupId, Knob)) {
        if let Some(journal) = &mut self.journal
            && let Err(error) = journal.done(id.0, knob)
        {
            tracing::debug!(%error, "could not note that a knob is done with");
        }
    }

    /// Rewrites the journal once most of its lines are outdated.
    fn compact(&mut self) -> Result<(), JournalError> {
        if self
            .journal
            .as_ref()
            .is_none_or(|j| j.lines() < 1024 + 4 * self.held.len())
        {
            return Ok(());
        }
        let entries: Vec<Entry> = self
            .held
            .iter()
            .map(|(key, held)| held.entry(*key))
            .collect();
        self.journal = Some(Journal::create(&self.path, &entries)?);
        Ok(())
    }
}

impl Drop for Ledger {
    /// Fail open: whatever ends the agent, a panic included, the knobs go back.
    fn drop(&mut self) {
        if self.journal.is_some() {
            self.restore();
        }
    }
}

/// What [`reset`] has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reset {
    /// The knobs that the ledger named, and how each came back.
    pub returned: Vec<Returned>,
    /// What could not be read of it.
    pub damage: Option<Damage>,
}

/// What a damaged ledger has lost: knobs that only these lines named may hold our values still.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// How many lines could not be read, at least 1.
    pub lines: usize,
    /// Where the file is now.
    pub aside: PathBuf,
}

/// Gives back what a killed agent has left, without starting one. With `damaged`, does what can be done for a
/// damaged ledger: intact entries whose knob still holds our value; the file is put aside as
/// `ledger.damaged`.
///
/// # Errors
/// If an agent runs, or the ledger cannot be read, or is damaged and `damaged` was not asked for.
pub fn reset(fs: &CgroupFs, state: &Path, damaged: bool) -> Result<Reset, LedgerError> {
    let mut done = Reset::default();
    if !state.exists() {
        return Ok(done);
    }
    let _lock = lock(state)?;
    let path = state.join("ledger");
    let contents = Journal::read(&path)?;
    let state_error = |source| LedgerError::State {
        path: state.to_owned(),
        source,
    };
    if let Some(damage) = contents.damage {
        if !damaged {
            return Err(damage.into());
        }
        let aside = state.join("ledger.damaged");
        std::fs::rename(&path, &aside).map_err(state_error)?;
        done.damage = Some(Damage {
            lines: contents.damaged,
            aside,
        });
    }
    let (returned, failed) = give_back(fs, &contents.entries);
    done.returned = returned;
    if failed.is_empty() {
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(state_error(e)),
            _ => {}
        }
    } else {
        Journal::create(&path, &failed)?;
    }
    Ok(done)
}

/// Gives back what throttles (`io.max`, `memory.high`), and when the kernel writes back, by the journal in `state`,
/// while its agent still holds it but cannot act. The journal stays as it is: the agent, or the next start, goes by
/// it. Lines that are damaged are passed over.
///
/// # Errors
/// If the journal cannot be read.
pub fn lapse(fs: &CgroupFs, state: &Path) -> Result<Vec<Returned>, LedgerError> {
    let mut entries = Journal::read(&state.join("ledger"))?.entries;
    entries.retain(|e| {
        matches!(
            e.knob,
            Knob::IoMax(_) | Knob::MemoryHigh | Knob::DirtyBackground
        )
    });
    Ok(give_back(fs, &entries).0)
}

fn lock(state: &Path) -> Result<File, LedgerError> {
    use std::os::unix::fs::DirBuilderExt;
    let error = |source| LedgerError::State {
        path: state.to_owned(),
        source,
    };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(state)
        .map_err(error)?;
    owned(state).map_err(error)?;
    let path = state.join("lock");
    // What it may hold is not ours to cut off.
    let opened = regular::open(&path, OFlags::RDWR | OFlags::CREATE);
    let file = opened.map_err(|source| LedgerError::Lock { path, source })?;
    match flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(LedgerError::Busy(state.to_owned())),
        Err(e) => Err(error(e.into())),
    }
}

/// Whoever may write the directory could have files outside it written over, or say which knobs are to be put back.
fn owned(state: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let found = std::fs::metadata(state)?;
    let ours = rustix::process::geteuid().as_raw();
    if [0, ours].contains(&found.uid()) && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(std::io::Error::other(format!(
        "expected a directory that only its owner, root, may write, found one of the user {} with mode {:03o}: \
         change that, or name another as `state` in the configuration",
        found.uid(),
        found.mode() & 0o777
    )))
}

/// Gives back the knobs of a journal; also returns the entries that are still to be given back.
fn give_back(fs: &CgroupFs, entries: &[Entry]) -> (Vec<Returned>, Vec<Entry>) {
    // A knob appears once a write. A crash between the journal and the knob leaves an older value of ours
    // there, or none: all of them are ours.
    let mut knobs: HashMap<(u64, Knob), Vec<&Entry>> = HashMap::new();
    for entry in entries {
        knobs
            .entry((entry.cgroup, entry.knob))
            .or_default()
            .push(entry);
    }
    let mut returned = Vec::new();
    let mut failed = Vec::new();
    for writes in knobs.into_values() {
        let (first, last) = (writes[0], writes[writes.len() - 1]);
        let ours: Vec<&str> = writes.iter().map(|w| w.ours.as_str()).collect();
        let back = find(fs, first).map_or(Back::Gone, |(cgroup, knob)| {
            put_back(&cgroup, knob, &first.before, &ours)
        });
        if matches!(back, Back::Failed { .. }) {
            failed.push(Entry {
                before: first.before.clone(),
                ..last.clone()
            });
        }
        returned.push(told(first, back));
    }
    (returned, failed)
}

/// The knob of an entry, if its cgroup still lives: the same id, not just the same path.
fn find(fs: &CgroupFs, entry: &Entry) -> Option<(Cgroup, Knob)> {
    let path = escape::decode(&entry.path)?;
    let cgroup = Cgroup::open_at(fs, Path::new(&path)).ok()?;
    (cgroup.id().0 == entry.cgroup).then_some((cgroup, entry.knob))
}

fn put_back(cgroup: &Cgroup, knob: Knob, before: &str, ours: &[&str]) -> Back {
    let done = read_raw(cgroup, knob).and_then(|found| {
        if found == before {
            return Ok(Back::Restored);
        }
        if !ours.contains(&found.as_str()) {
            return Ok(Back::Foreign { found });
        }
        write_raw(cgroup, knob, before).map(|()| Back::Restored)
    });
    done.unwrap_or_else(|e| {
        if e.is_gone() {
            Back::Gone
        } else {
            Back::Failed {
                error: e.to_string(),
            }
        }
    })
}

fn told(entry: &Entry, back: Back) -> Returned {
    Returned {
        path: entry.path.clone(),
        knob: entry.knob,
        before: entry.before.clone(),
        back,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `lock` says where something else than a lock stands; it must not take for ever.
    fn refused(state: &Path) -> String {
        let state = state.to_owned();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || tell.send(lock(&state).map_err(|e| e.to_string())));
        let locked = told.recv_timeout(std::time::Duration::from_secs(20));
        locked.expect("an answer").unwrap_err()
    }

    #[test]
    fn neither_a_pipe_nor_a_link_is_taken_for_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let (state, precious) = (dir.path().join("state"), dir.path().join("precious"));
        drop(lock(&state).unwrap());
        let path = state.join("lock");

        std::fs::remove_file(&path).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
        let error = refused(&state);
        assert_eq!(
            error,
            format!(
                "the lock {}: expected a regular file, found a pipe: see who has put it there, and remove it",
                path.display()
            )
        );

        std::fs::remove_file(&path).unwrap();
        std::fs::write(&precious, "1").unwrap();
        std::os::unix::fs::symlink(&precious, &path).unwrap();
        let error = refused(&state);
        assert!(error.contains("found a symbolic link"), "{error}");
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "1");
    }

    #[test]
    fn a_lock_keeps_what_it_holds() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        std::fs::write(&path, "1").unwrap();
        let held = lock(dir.path()).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "1");
        assert!(matches!(lock(dir.path()), Err(LedgerError::Busy(_))));
        drop(held);
    }
}
