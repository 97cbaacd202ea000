//! The ledger: every knob that is written goes through it, and comes back as it was.
//!
//! It remembers on disk what stood before the first write (see [`journal`](super::journal)), notices a
//! foreign writer and yields that knob for good, and gives everything back at the end, or at the next
//! start. What cannot be given back at once is tried again until it is ([`Ledger::retry`]).

mod lock;
mod reapply;
mod reset;
mod restore;

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use justitia_kernel::cgroup::{Cgroup, CgroupFs, CgroupId};
use justitia_kernel::knob::{Knob, read_raw, write_raw};

use self::lock::lock;
use self::reapply::Rewrites;
use self::restore::{give_back, of_one_knob, put_back};
use super::journal::{Entry, Journal, JournalError};
use crate::escape;

pub use self::reset::{Damage, Reset, lapse, reset};
pub use self::restore::log_returned;

/// A journal that could not be rewritten is tried again after so long.
const COMPACT_AGAIN: Duration = Duration::from_secs(1);

/// Whose knob, and which.
type Key = (CgroupId, Knob);

/// A knob that the ledger has written.
#[derive(Debug)]
struct Held {
    cgroup: Cgroup,
    before: String,
    ours: String,
    /// It is to be given back, which has failed so far.
    releasing: bool,
}

impl Held {
    /// As the journal says it.
    fn entry(&self, (id, knob): Key) -> Entry {
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
    /// What stood there before us, or the kernel's default, had been written over ours, as systemd does at
    /// `daemon-reload`; ours stands there again.
    Reapplied {
        /// What was found.
        found: String,
    },
    /// The cgroup is gone, or has no such knob any more.
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

impl LedgerError {
    /// Whether the ledger can be read, but does not say what was written to it. Trying again does not help then.
    #[must_use]
    pub const fn is_damage(&self) -> bool {
        matches!(self, Self::Journal(JournalError::Damaged { .. }))
    }
}

/// Every knob that the agent holds.
#[derive(Debug)]
pub struct Ledger {
    fs: CgroupFs,
    journal: Option<Journal>,
    path: PathBuf,
    held: HashMap<Key, Held>,
    /// What an earlier agent left and could not be given back yet: all its writes of a knob, in order.
    pending: HashMap<Key, Vec<Entry>>,
    yielded: HashMap<Key, String>,
    rewrites: HashMap<Key, Rewrites>,
    /// Why the journal cannot be written, since it could not be the last time.
    trouble: Option<String>,
    /// The journal is not rewritten before: the last time it could not be.
    compact_again: Option<Instant>,
    /// Holds the lock that keeps a second agent out.
    _lock: File,
}

impl Ledger {
    /// Opens the ledger in `state` (made if missing, readable by its owner only), and first gives back
    /// whatever an agent that was killed has left. What fails of that stays in the ledger, for [`Ledger::retry`].
    ///
    /// # Errors
    /// If another agent runs, or the journal cannot be read, written or trusted.
    pub fn open(fs: &CgroupFs, state: &Path) -> Result<(Self, Vec<Returned>), LedgerError> {
        let lock = lock(state)?;
        let path = state.join("ledger");
        let contents = Journal::read(&path)?;
        if let Some(damage) = contents.damage {
            return Err(damage.into());
        }
        let (returned, failed) = give_back(fs, contents.entries);
        let journal = Journal::create(&path, &failed)?;
        let ledger = Self {
            fs: fs.clone(),
            journal: Some(journal),
            path,
            held: HashMap::new(),
            pending: of_one_knob(failed),
            yielded: HashMap::new(),
            rewrites: HashMap::new(),
            trouble: None,
            compact_again: None,
            _lock: lock,
        };
        Ok((ledger, returned))
    }

    /// Writes `value` to a knob, unless someone else has written it since we did. The first write remembers
    /// what stood there. Returns once the value stands in the kernel, and on disk before that.
    ///
    /// # Errors
    /// If the journal or the knob cannot be written. Then what stood there before our first write stands there
    /// again, or will as soon as the kernel takes it ([`Ledger::retry`]). A knob that the kernel refuses to have
    /// written is left alone from then on ([`Ledger::may_write`]); any other may be tried again.
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
        let written = self.try_set(cgroup, knob, value);
        if let Err(error) = &written {
            self.release(key.0, knob);
            if let LedgerError::Kernel(error) = error
                && restore::is_refusal(error)
            {
                self.yielded.insert(key, String::new());
            }
        }
        written
    }

    fn try_set(
        &mut self,
        cgroup: &Cgroup,
        knob: Knob,
        value: &str,
    ) -> Result<Written, LedgerError> {
        let key = (cgroup.id(), knob);
        if self.pending.contains_key(&key) {
            self.retry();
            if self.pending.contains_key(&key) {
                return Ok(Written::Gone);
            }
        }
        let found = match read_raw(cgroup, knob) {
            Ok(found) => found,
            // Where the controller was taken away from the cgroup, its values went with it.
            Err(e) if e.is_gone() || e.is_missing() => return Ok(self.forget(key)),
            Err(e) => return Err(e.into()),
        };
        let before = match self.held.get_mut(&key) {
            Some(held) if held.ours == found => {
                held.releasing = false;
                if found == value {
                    return Ok(Written::Already);
                }
                held.before.clone()
            }
            Some(held) => {
                let ours = held.ours.clone();
                if !self.may_reapply(key, &found) {
                    self.give_up(key, &found);
                    return Ok(Written::Yielded { ours, found });
                }
                self.forget(key);
                found.clone()
            }
            None => found.clone(),
        };
        if found == value {
            return Ok(Written::Already);
        }
        let Some(journal) = &mut self.journal else {
            return Ok(Written::Gone);
        };
        let held = Held {
            cgroup: cgroup.clone(),
            before,
            ours: value.to_owned(),
            releasing: false,
        };
        let noted = journal.about_to_write(&held.entry(key));
        self.note_trouble(&noted);
        noted?;
        match write_raw(cgroup, knob, value) {
            Ok(()) => {
                self.held.insert(key, held);
                self.compact();
                Ok(Written::Yes)
            }
            Err(e) if e.is_gone() => Ok(self.forget(key)),
            Err(e) => {
                if !self.held.contains_key(&key) {
                    self.journal_done(key);
                }
                Err(e.into())
            }
        }
    }

    /// Gives one knob back now: what stood there before stands there again, unless someone else has written
    /// it since. `None` if we do not hold it, or its cgroup is gone; if the kernel refuses, we go on holding
    /// it, and [`Ledger::retry`] goes on trying.
    pub fn release(&mut self, id: CgroupId, knob: Knob) -> Option<Back> {
        let key = (id, knob);
        let held = self.held.get_mut(&key)?;
        let back = put_back(&held.cgroup, knob, &held.before, &[&held.ours]);
        match &back {
            Back::Restored => {
                self.forget(key);
            }
            // The default was put there by somebody: it need not be put back, and it is no decision.
            Back::Foreign { found } if knob.is_default(found) => {
                self.forget(key);
            }
            Back::Foreign { found } => self.give_up(key, found),
            Back::Gone => {
                self.forget(key);
                return None;
            }
            Back::Failed { error } => {
                if !std::mem::replace(&mut held.releasing, true) {
                    tracing::warn!(cgroup = id.0, %knob, error, "could not be given back yet; it is tried again");
                }
            }
        }
        Some(back)
    }

    /// As [`Ledger::release`]; says how it came back, and which knob that was.
    fn give_back_held(&mut self, key: Key) -> Option<Returned> {
        let entry = self.held.get(&key)?.entry(key);
        let back = self.release(key.0, key.1).unwrap_or(Back::Gone);
        Some(restore::told(&entry, back))
    }

    /// Tries again to give back what could not be given back so far, of this agent and of an earlier one. Returns
    /// what was.
    pub fn retry(&mut self) -> Vec<Returned> {
        let mut returned = Vec::new();
        let late: Vec<Key> = self
            .held
            .iter()
            .filter(|(_, h)| h.releasing)
            .map(|(key, _)| *key)
            .collect();
        for key in late {
            returned.extend(self.give_back_held(key));
        }
        if !self.pending.is_empty() {
            let entries = self
                .pending
                .drain()
                .flat_map(|(_, entries)| entries)
                .collect();
            let (tried, failed) = give_back(&self.fs, entries);
            self.pending = of_one_knob(failed);
            returned.extend(tried);
            self.compact_now();
        }
        returned.retain(|one| !matches!(one.back, Back::Failed { .. }));
        returned
    }

    /// Looks whether someone else has written a knob of ours. A value that someone has decided on is yielded to; one
    /// that was only applied again is written over, see [`Written::Reapplied`]. `None` if ours stands there.
    ///
    /// # Errors
    /// If ours cannot be written again: it is not held any more then, as after [`Ledger::set`].
    pub fn audit(&mut self, id: CgroupId, knob: Knob) -> Result<Option<Written>, LedgerError> {
        let key = (id, knob);
        let Some(held) = self.held.get(&key).filter(|held| !held.releasing) else {
            return Ok(None);
        };
        let Ok(found) = read_raw(&held.cgroup, knob) else {
            return Ok(None);
        };
        if found == held.ours {
            return Ok(None);
        }
        let (cgroup, ours) = (held.cgroup.clone(), held.ours.clone());
        let written = self.set(&cgroup, knob, &ours)?;
        Ok(Some(match written {
            Written::Yes | Written::Already => Written::Reapplied { found },
            other => other,
        }))
    }

    /// Whether `found` is no decision of anybody's, and ours may be written over it once more.
    fn may_reapply(&mut self, key: Key, found: &str) -> bool {
        let before = self.held.get(&key).map(|held| held.before.as_str());
        (before == Some(found) || key.1.is_default(found))
            && self.rewrites.entry(key).or_default().allow(Instant::now())
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

    /// The knobs held now, those of an earlier agent that could not be given back yet included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len() + self.pending.len()
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Why nothing can be written at the moment, if so: what cannot be noted is not written.
    #[must_use]
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// The knobs yielded to others, and the values found there.
    pub fn yielded(&self) -> impl Iterator<Item = (CgroupId, Knob, &str)> {
        self.yielded
            .iter()
            .map(|((id, knob), found)| (*id, *knob, found.as_str()))
    }

    /// Leaves a knob to someone else, as when a value of theirs stands there from the beginning. One that we hold is
    /// given back first.
    pub fn leave(&mut self, id: CgroupId, knob: Knob, found: &str) {
        self.release(id, knob);
        self.yielded.insert((id, knob), found.to_owned());
    }

    /// Forgets that a knob was left to others, in every cgroup, as when the device that it is for is gone, and with it the values
    /// that stood there.
    pub fn forget_yields(&mut self, knob: Knob) {
        self.yielded.retain(|(_, left), _| *left != knob);
        self.rewrites.retain(|(_, left), _| *left != knob);
    }

    /// Gives back what is held of a cgroup that is gone, or that is no tenant any more though it lives, and forgets it.
    pub fn cgroup_gone(&mut self, id: CgroupId) {
        let of_it = self.held.keys().filter(|(held, _)| *held == id);
        for (id, knob) in of_it.copied().collect::<Vec<Key>>() {
            self.release(id, knob);
        }
        self.yielded.retain(|(held, _), _| *held != id);
        self.rewrites.retain(|(held, _), _| *held != id);
    }

    /// Gives every knob back, and forgets it. Knobs that could not be given back are still held, for another call,
    /// and stay in the journal for the next start.
    pub fn restore(&mut self) -> Vec<Returned> {
        let mut returned = Vec::new();
        for key in self.held.keys().copied().collect::<Vec<Key>>() {
            returned.extend(self.give_back_held(key));
        }
        returned.extend(self.retry());
        if !self.is_empty() {
            return returned;
        }
        if let Some(Err(error)) = self.journal.take().map(Journal::remove) {
            tracing::warn!(%error, "the ledger was not removed; its knobs are back all the same");
        }
        returned
    }

    fn forget(&mut self, key: Key) -> Written {
        if self.held.remove(&key).is_some() {
            self.journal_done(key);
        }
        Written::Gone
    }

    fn give_up(&mut self, key: Key, found: &str) {
        self.yielded.insert(key, found.to_owned());
        self.forget(key);
    }

    fn journal_done(&mut self, (id, knob): Key) {
        if let Some(journal) = &mut self.journal
            && let Err(error) = journal.done(id.0, knob)
        {
            // The next start finds there what stood before, or someone else's value, and leaves it.
            tracing::debug!(%error, "could not note that a knob is done with");
        }
    }

    /// Remembers whether the journal takes what is to be noted, and says so when that changes.
    fn note_trouble(&mut self, noted: &Result<(), JournalError>) {
        match (noted, &self.trouble) {
            (Err(error), None) => {
                tracing::error!(%error, "what cannot be noted is not written: knobs that should move go back instead");
            }
            (Ok(()), Some(_)) => tracing::info!("the ledger can be written again"),
            _ => {}
        }
        self.trouble = noted.as_ref().err().map(ToString::to_string);
    }

    /// Rewrites the journal once most of its lines are outdated.
    fn compact(&mut self) {
        let rests = self.compact_again.is_some_and(|at| Instant::now() < at);
        let outdated = |journal: &Journal| journal.is_outdated(self.held.len());
        if !rests && self.journal.as_ref().is_some_and(outdated) {
            self.compact_now();
        }
    }

    /// Rewrites the journal. Where that fails the old one goes on: it says the same, at greater length.
    fn compact_now(&mut self) {
        if self.journal.is_none() {
            return;
        }
        let (held, pending) = (self.held.iter(), self.pending.values().flatten());
        let held = held.map(|(key, held)| held.entry(*key));
        let entries: Vec<Entry> = held.chain(pending.cloned()).collect();
        match Journal::create(&self.path, &entries) {
            Ok(journal) => {
                self.journal = Some(journal);
                self.compact_again = None;
            }
            Err(error) => {
                tracing::debug!(%error, "the ledger could not be rewritten; it grows until it can");
                self.compact_again = Some(Instant::now() + COMPACT_AGAIN);
            }
        }
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
