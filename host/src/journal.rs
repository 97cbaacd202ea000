//! The journal of balloons: their sizes before the first change.
//!
//! It is synced before a balloon is changed, and replaced by renaming: so it is always complete. It has one checksummed line
//! a VM, for at most [`MAX_VMS`] VMs. Entries of another boot, or of an ended QEMU process, do not count.

use justitia_common::checksum::crc32;
use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::thread::ScopedJoinHandle;

use justitia_common::regular_file::{self, LockFile};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::discover::{Process, runs};
use crate::monitor::{Monitor, MonitorError, STATISTICS_EVERY};

/// The directory of the journal and of the status socket.
pub const DEFAULT_DIRECTORY: &str = "/run/justitia/host";
/// The most VMs of one host: each has a thread.
pub const MAX_VMS: usize = 512;

/// Balloons that are restored at the same time: each of libvirt's takes a process.
const AT_ONCE: usize = 16;
/// The longest file that is read, bytes: a line has two paths of at most 4 KiB.
const MAX_BYTES: u64 = 16 << 20;
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// A changed balloon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The ID of the boot.
    boot: String,
    /// Its QEMU process.
    pub process: Process,
    /// The VM's name.
    pub name: String,
    /// Its monitor.
    pub monitor: Monitor,
    /// The bytes that it left to the guest before; `None` while only its statistics interval is changed.
    pub balloon: Option<u64>,
    /// Its device, and the interval of its statistics before, seconds.
    pub statistics: Option<(String, u64)>,
}

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// Which.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Another process holds the lock.
    #[error(
        "{0}: another `justitia host run` or `reset` has it: expected one at a time; stop the other one first"
    )]
    Locked(PathBuf),
    /// A line has another checksum or format.
    #[error(
        "the journal of balloons {path} is corrupt at line {line}: nothing was changed. Set the balloons of its VMs by hand (QMP \
         `balloon`), then remove it"
    )]
    Corrupt {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
    },
}

/// The result of restoring an entry.
#[derive(Debug)]
pub enum Outcome {
    /// The balloon is restored.
    Restored,
    /// The VM ended, or its balloon was unplugged: its guest has all memory of the balloon.
    Gone,
    /// The balloon is not restored, and its entry stays.
    Failed(MonitorError),
}

/// The journal. It is locked while this value lives.
#[derive(Debug)]
pub struct Journal {
    directory: PathBuf,
    entries: Vec<Entry>,
    boot: String,
    _lock: LockFile,
}

impl Entry {
    /// Restores the balloon, if its VM runs.
    fn outcome(&self) -> Outcome {
        if !runs(self.process) {
            return Outcome::Gone;
        }
        match self.restore() {
            Ok(()) => Outcome::Restored,
            Err(MonitorError::NoBalloon(_)) => Outcome::Gone,
            Err(_) if !runs(self.process) => Outcome::Gone,
            Err(error) => Outcome::Failed(error),
        }
    }

    fn restore(&self) -> Result<(), MonitorError> {
        let mut session = self.monitor.session()?;
        if let Some(balloon) = self.balloon {
            let actual = match session.actual() {
                Ok(actual) => actual,
                // The guest reports the size of its balloon: it may report an impossible one.
                Err(MonitorError::Foreign { .. }) => 0,
                Err(error) => return Err(error),
            };
            // A larger size stays: its operator raised it, memory was plugged in, or its guest emptied it. Setting it
            // replaces the target, which would apply at the guest's next boot.
            session.set_balloon(balloon.max(actual))?;
        }
        // Another writer's interval stays.
        if let Some((device, interval)) = &self.statistics
            && session.interval(device)? == STATISTICS_EVERY
        {
            session.set_interval(device, *interval)?;
        }
        Ok(())
    }
}

impl Journal {
    /// Opens the journal in this directory, and reads the entries of this boot. Creates the directory for its owner alone.
    ///
    /// # Errors
    /// If it is locked, corrupt, or cannot be read.
    pub fn open(directory: &Path) -> Result<Self, JournalError> {
        let io = |path: &Path, source| JournalError::Io {
            path: path.to_owned(),
            source,
        };
        let mut builder = std::fs::DirBuilder::new();
        let made = builder.recursive(true).mode(0o700).create(directory);
        made.map_err(|e| io(directory, e))?;
        let path = directory.join("lock");
        let lock = LockFile::take(&path).map_err(|e| match e.kind() {
            std::io::ErrorKind::WouldBlock => JournalError::Locked(directory.to_owned()),
            _ => io(&path, e),
        })?;
        let boot = std::fs::read_to_string(BOOT_ID).map_err(|e| io(Path::new(BOOT_ID), e))?;
        let boot = boot.trim().to_owned();
        let path = directory.join("balloons");
        let text = match regular_file::read(&path, MAX_BYTES) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(io(&path, e)),
        };
        let mut entries = Vec::new();
        for (index, line) in text.split_inclusive(|byte| *byte == b'\n').enumerate() {
            let corrupt = || JournalError::Corrupt {
                path: path.clone(),
                line: index + 1,
            };
            entries.push(parse(line).ok_or_else(corrupt)?);
        }
        entries.retain(|entry: &Entry| entry.boot == boot);
        Ok(Self {
            directory: directory.to_owned(),
            entries,
            boot,
            _lock: lock,
        })
    }

    /// The changed balloons.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Gives the entries up and returns them: they stay in the file, and this process restores none.
    pub(crate) fn leave(&mut self) -> Vec<Entry> {
        std::mem::take(&mut self.entries)
    }

    /// Notes a balloon's size, or the interval of its statistics, before the first change. Returns once the entry is on disk.
    /// Values that are noted already stay.
    ///
    /// # Errors
    /// If the entry may not be on disk: then the balloon must not be changed.
    pub fn add(
        &mut self,
        process: Process,
        name: &str,
        monitor: &Monitor,
        balloon: Option<u64>,
        statistics: Option<(String, u64)>,
    ) -> Result<(), JournalError> {
        if let Some(entry) = self.entries.iter().find(|one| one.process == process) {
            let noted = entry.balloon.or(balloon);
            return self.set_balloon(process, noted);
        }
        self.entries.push(Entry {
            boot: self.boot.clone(),
            process,
            name: name.to_owned(),
            monitor: monitor.clone(),
            balloon,
            statistics,
        });
        let written = self.write();
        if written.is_err() {
            self.entries.pop();
        }
        written
    }

    /// Notes that the balloon of this process has its original size again. Later changes are another program's.
    ///
    /// # Errors
    /// If the journal cannot be written: then the balloon would be restored again.
    pub fn settle(&mut self, process: Process) -> Result<(), JournalError> {
        self.set_balloon(process, None)
    }

    fn set_balloon(&mut self, process: Process, balloon: Option<u64>) -> Result<(), JournalError> {
        let noted = |one: &Entry| one.process == process && one.balloon != balloon;
        let Some(index) = self.entries.iter().position(noted) else {
            return Ok(());
        };
        let before = std::mem::replace(&mut self.entries[index].balloon, balloon);
        let written = self.write();
        if written.is_err() {
            self.entries[index].balloon = before;
        }
        written
    }

    /// Restores the changed balloons of these processes, `AT_ONCE` at a time: a monitor that hangs delays few others. Returns
    /// the results.
    ///
    /// # Errors
    /// If the journal cannot be written. That is harmless: the balloons are restored again later.
    pub fn restore(
        &mut self,
        which: impl Fn(Process) -> bool,
    ) -> Result<Vec<(Entry, Outcome)>, JournalError> {
        let entries = self.entries.iter().filter(|entry| which(entry.process));
        let entries: Vec<&Entry> = entries.collect();
        let outcomes: Vec<(Entry, Outcome)> = entries.chunks(AT_ONCE).flat_map(outcomes).collect();
        let stays = |outcome: &Outcome| matches!(outcome, Outcome::Failed(_));
        let done = outcomes.iter().filter(|(_, outcome)| !stays(outcome));
        let done: BTreeSet<Process> = done.map(|(entry, _)| entry.process).collect();
        if !done.is_empty() {
            self.entries.retain(|entry| !done.contains(&entry.process));
            self.write()?;
        }
        Ok(outcomes)
    }

    /// Restores all, and returns the results.
    ///
    /// # Errors
    /// As [`Journal::restore`].
    pub fn restore_all(&mut self) -> Result<Vec<(Entry, Outcome)>, JournalError> {
        self.restore(|_| true)
    }

    fn write(&self) -> Result<(), JournalError> {
        let path = self.directory.join("balloons");
        let done = if self.entries.is_empty() {
            match std::fs::remove_file(&path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
                _ => Ok(()),
            }
        } else {
            let temporary = self.directory.join("balloons.new");
            let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY;
            let text: String = self.entries.iter().map(render).collect();
            regular_file::open(&temporary, flags).and_then(|mut file| {
                file.write_all(text.as_bytes())?;
                file.sync_data()?;
                std::fs::rename(&temporary, &path)
            })
        };
        done.map_err(|source| JournalError::Io { path, source })
    }
}

fn render(entry: &Entry) -> String {
    // Numbers and texts always serialize. A path that is no text cannot have been found.
    let json = serde_json::to_string(entry).unwrap_or_default();
    format!("{:08x} {json}\n", crc32(json.as_bytes()))
}

fn parse(line: &[u8]) -> Option<Entry> {
    let line = std::str::from_utf8(line.strip_suffix(b"\n")?).ok()?;
    let (sum, json) = line.split_once(' ')?;
    let intact = sum == format!("{:08x}", crc32(json.as_bytes()));
    intact.then(|| serde_json::from_str(json).ok())?
}

/// Restores these at the same time.
fn outcomes(entries: &[&Entry]) -> Vec<(Entry, Outcome)> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = entries
            .iter()
            .map(|entry| {
                let thread = std::thread::Builder::new().name("restore".into());
                (*entry, thread.spawn_scoped(scope, || entry.outcome()))
            })
            .collect();
        let ended = threads.into_iter().map(|(entry, thread)| {
            let outcome = match thread.map(ScopedJoinHandle::join) {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(panic)) => std::panic::resume_unwind(panic),
                // No thread can be started.
                Err(_) => entry.outcome(),
            };
            (entry.clone(), outcome)
        });
        ended.collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::Socket;
    use std::os::unix::fs::PermissionsExt;

    const OTHER: Process = Process {
        pid: 1,
        start: u64::MAX,
    };

    fn add(journal: &mut Journal, process: Process, balloon: u64) {
        let monitor = Monitor::Socket(Socket::trusted("/nowhere".into()));
        journal
            .add(
                process,
                "vm",
                &monitor,
                Some(balloon),
                Some(("/machine/b".into(), 0)),
            )
            .unwrap();
    }

    #[test]
    fn what_was_before_survives_and_is_the_first_that_was_noted() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(directory.path()).unwrap();
        assert!(matches!(
            Journal::open(directory.path()),
            Err(JournalError::Locked(_))
        ));
        add(&mut journal, OTHER, 7);
        add(&mut journal, OTHER, 9);
        drop(journal);
        assert!(!directory.path().join("lock").exists());
        let path = directory.path().join("balloons");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let mut journal = Journal::open(directory.path()).unwrap();
        assert_eq!(journal.entries().len(), 1);
        assert_eq!(journal.entries()[0].balloon, Some(7));
        // Its process ended, or it never was: another one of the same PID runs.
        let outcomes = journal.restore_all().unwrap();
        assert!(matches!(outcomes[..], [(_, Outcome::Gone)]));
        assert!(!path.exists());
    }

    /// Another writer may change a balloon of which only the statistics are changed, or that was settled.
    #[test]
    fn a_balloon_is_noted_while_it_is_ours() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(directory.path()).unwrap();
        let monitor = Monitor::Socket(Socket::trusted("/nowhere".into()));
        let noted = |journal: &Journal| {
            let text = std::fs::read_to_string(directory.path().join("balloons")).unwrap();
            assert_eq!(parse(text.as_bytes()), journal.entries().first().cloned());
            journal.entries()[0].balloon
        };
        let statistics = Some(("/machine/b".to_owned(), 0));
        for (balloon, expected) in [
            (None, None),
            (Some(7), Some(7)),
            (Some(9), Some(7)),
            (None, Some(7)),
        ] {
            let done = journal.add(OTHER, "vm", &monitor, balloon, statistics.clone());
            assert!(done.is_ok());
            assert_eq!(noted(&journal), expected);
        }
        journal.settle(OTHER).unwrap();
        assert_eq!(noted(&journal), None);
        let done = journal.add(OTHER, "vm", &monitor, Some(9), None);
        assert!(done.is_ok());
        assert_eq!(noted(&journal), Some(9), "what it is by now");
    }

    #[test]
    fn a_corrupt_line_is_not_guessed_at_and_another_boot_says_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(directory.path()).unwrap();
        journal.boot = "another".into();
        add(&mut journal, OTHER, 7);
        drop(journal);
        let mut journal = Journal::open(directory.path()).unwrap();
        assert!(journal.entries().is_empty());
        add(&mut journal, OTHER, 7);
        drop(journal);
        let path = directory.path().join("balloons");
        let mut text = std::fs::read(&path).unwrap();
        text[20] ^= 1;
        std::fs::write(&path, text).unwrap();
        let corrupt = Journal::open(directory.path()).unwrap_err();
        assert!(
            matches!(corrupt, JournalError::Corrupt { line: 1, .. }),
            "{corrupt}"
        );
    }

    /// A monitor answers once all are connected.
    #[test]
    fn a_monitor_that_does_not_answer_holds_up_no_other() {
        use std::io::{BufRead, BufReader};
        use std::process::{Command, Stdio};
        let directory = tempfile::tempdir().unwrap();
        let mut journal = Journal::open(directory.path()).unwrap();
        let all = std::sync::Arc::new(std::sync::Barrier::new(3));
        let vms: Vec<_> = (0..3)
            .map(|number| {
                let path = directory.path().join(format!("{number}.qmp"));
                let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
                let all = all.clone();
                std::thread::spawn(move || {
                    let (mut client, _) = listener.accept().unwrap();
                    all.wait();
                    writeln!(client, "{{\"QMP\":{{}}}}").unwrap();
                    for _ in BufReader::new(client.try_clone().unwrap()).lines() {
                        writeln!(client, "{{\"return\":{{\"actual\":7}}}}").unwrap();
                    }
                });
                // It ends with its standard input.
                let mut command = Command::new("cat");
                let vm = command.stdin(Stdio::piped()).spawn().unwrap();
                let (pid, monitor) = (vm.id(), Monitor::Socket(Socket::trusted(path)));
                let start = crate::discover::started(pid).unwrap();
                let process = Process { pid, start };
                journal.add(process, "vm", &monitor, Some(7), None).unwrap();
                (vm, process)
            })
            .collect();
        let outcomes = journal.restore_all().unwrap();
        for (mut vm, process) in vms {
            drop(vm.stdin.take());
            vm.wait().unwrap();
            let outcome = outcomes.iter().find(|(entry, _)| entry.process == process);
            assert!(
                matches!(outcome, Some((_, Outcome::Restored))),
                "{outcome:?}"
            );
        }
        assert!(journal.entries().is_empty());
    }

    /// Restores a balloon noted as 7. Its monitor answers `answer`. Returns the outcome, and the commands with their values.
    fn restored(answer: String) -> (Outcome, Vec<(String, Option<u64>)>) {
        use std::io::{BufRead, BufReader};
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("qmp");
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let told = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            writeln!(client, "{{\"QMP\":{{}}}}").unwrap();
            let mut told = Vec::new();
            for line in BufReader::new(client.try_clone().unwrap()).lines() {
                let request: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
                let command = request["execute"].as_str().unwrap().to_owned();
                match command.contains("balloon") {
                    true => writeln!(client, "{answer}").unwrap(),
                    false => writeln!(client, "{{\"return\":{{}}}}").unwrap(),
                }
                told.push((command, request["arguments"]["value"].as_u64()));
            }
            told
        });
        let pid = std::process::id();
        let start = crate::discover::started(pid).unwrap();
        let monitor = Monitor::Socket(Socket::trusted(path));
        let mut journal = Journal::open(directory.path()).unwrap();
        journal
            .add(Process { pid, start }, "vm", &monitor, Some(7), None)
            .unwrap();
        let (_, outcome) = journal.restore_all().unwrap().remove(0);
        (outcome, told.join().unwrap())
    }

    #[test]
    fn a_balloon_that_was_raised_beyond_what_it_was_stays() {
        for (actual, expected) in [(5, 7), (7, 7), (9, 9), (-4096, 7)] {
            let (outcome, told) = restored(format!("{{\"return\":{{\"actual\":{actual}}}}}"));
            assert!(matches!(outcome, Outcome::Restored), "{outcome:?}");
            let set = told.iter().filter(|(command, _)| command == "balloon");
            let set: Vec<u64> = set.filter_map(|(_, value)| *value).collect();
            assert_eq!(set, [expected], "{actual}");
        }
    }

    #[test]
    fn a_balloon_that_was_unplugged_is_gone() {
        let error = r#"{"error":{"class":"DeviceNotActive","desc":"No balloon device has been activated"}}"#;
        let (outcome, told) = restored(error.to_owned());
        assert!(matches!(outcome, Outcome::Gone), "{outcome:?} {told:?}");
    }

    #[test]
    fn what_cannot_be_restored_stays() {
        let directory = tempfile::tempdir().unwrap();
        let own = std::process::id();
        let process = Process {
            pid: own,
            start: crate::discover::started(own).unwrap(),
        };
        let mut journal = Journal::open(directory.path()).unwrap();
        add(&mut journal, process, 7);
        let outcomes = journal.restore_all().unwrap();
        assert!(matches!(outcomes[..], [(_, Outcome::Failed(_))]));
        assert_eq!(journal.entries().len(), 1);
    }
}
