//! The write-ahead journal of the knob store.
//!
//! It has one line for each write of a knob: `crc32 json`. The line is appended and synced before the knob is written. So after
//! a crash at any moment, the journal names each knob that may hold our value, with its original value.
//!
//! The file and two of its fields keep the names of the first release (`ledger`, `before`, `ours`): an agent killed before an
//! upgrade or a downgrade may have left a journal to the other version. A newer version may add kinds of lines and of knobs. An
//! older one keeps intact lines that it does not know. The format of the first line stays.

#![deny(clippy::indexing_slicing)]

use justitia_common::checksum::crc32;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use justitia_common::regular_file;
use justitia_kernel::knob::Knob;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;

/// The name of the file in the state directory.
pub const FILE_NAME: &str = "ledger";

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file could not be read or written.
    #[error("the knob journal {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The file's fault or the system's error.
        source: std::io::Error,
    },
    /// The id of this boot could not be read. It tells whether a journal is of this boot.
    #[error("the id of this boot, {path}: {source}; without it the knob journal is not used")]
    Boot {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A line is corrupt.
    #[error(
        "the knob journal {path} is corrupt at line {line}: expected {expected}, found {found:?}. Nothing was \
         changed. `justitia reset --salvage` restores each knob whose entry is intact and that still holds the \
         agent's value, lists them, and moves the file aside"
    )]
    Corrupt {
        /// Which file.
        path: PathBuf,
        /// Its first corrupt line, from 1.
        line: usize,
        /// The expected form of the line.
        expected: &'static str,
        /// The beginning of the line.
        found: String,
    },
}

impl JournalError {
    pub(super) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io {
            path: path.to_owned(),
            source,
        }
    }
}

// Lines.

/// The kernel's id of this boot: cgroup ids are not valid in another one.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// One write to one knob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JournalEntry {
    /// The cgroup's id.
    pub cgroup: u64,
    /// Its path below the cgroup2 mount; bytes outside printable ASCII and `\` as `\xNN`.
    pub path: String,
    /// The knob.
    pub knob: Knob,
    /// The value before our first write.
    #[serde(rename = "before")]
    pub original: String,
    /// The value that is about to be written.
    #[serde(rename = "ours")]
    pub applied: String,
}

impl JournalEntry {
    /// The memory of the entry, bytes.
    pub(super) const fn size(&self) -> usize {
        size_of::<Self>() + self.path.len() + self.original.len() + self.applied.len()
    }
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    /// The first line: the boot in which the journal was written.
    Boot(String),
    /// A knob is about to be written.
    Write(JournalEntry),
    /// The knob is no longer ours: it was restored, or is external.
    Done { cgroup: u64, knob: Knob },
    /// A record of a newer version, intact: its JSON.
    #[serde(skip)]
    Unknown(String),
}

/// The kernel's id of this boot.
///
/// # Errors
/// If it cannot be read. Without it a journal cannot be matched to this boot.
pub fn boot_id() -> Result<String, JournalError> {
    match std::fs::read_to_string(BOOT_ID) {
        Ok(id) => Ok(id.trim().to_owned()),
        Err(source) => Err(JournalError::Boot {
            path: BOOT_ID.into(),
            source,
        }),
    }
}

pub(super) fn render(line: &Line) -> String {
    let json = match line {
        Line::Unknown(json) => json.clone(),
        // A struct of strings and numbers always serializes.
        line => serde_json::to_string(line).unwrap_or_default(),
    };
    format!("{} {json}\n", checksum(&json))
}

fn checksum(json: &str) -> String {
    format!("{:08x}", crc32(json.as_bytes()))
}

/// Parses a line. The error is the expected form.
pub(super) fn parse_line(line: &[u8]) -> Result<Line, &'static str> {
    let line = line.strip_suffix(b"\n").ok_or("a whole line")?;
    let line = std::str::from_utf8(line).map_err(|_| "text")?;
    let (sum, json) = line.split_once(' ').ok_or("a checksum and an entry")?;
    // Compared as text: as numbers `A` would equal `a`, and a changed bit go unnoticed.
    if sum != checksum(json) {
        return Err("an entry that matches its checksum");
    }
    if let Ok(line) = serde_json::from_str(json) {
        return Ok(line);
    }
    let object: Result<serde_json::Map<_, _>, _> = serde_json::from_str(json);
    object
        .map(|_| Line::Unknown(json.to_owned()))
        .map_err(|_| "an entry in JSON")
}

// Reading.

/// The limit for the memory of a journal's entries, bytes: 10,000 cgroups with the longest paths need half of it. The file may
/// be longer.
pub(super) const MAX_ENTRY_BYTES: usize = 64 << 20;
/// The limit for a line, bytes. The longest path that the kernel opens, escaped, needs a third of it.
const MAX_LINE: u64 = 64 << 10;

/// The content of a journal.
#[derive(Debug, Default)]
pub struct Contents {
    /// Writes without a `Done`, in order; one entry for each write of a knob.
    pub entries: Vec<JournalEntry>,
    /// Intact records of a newer version, in order.
    pub unknown: Vec<String>,
    /// The first corrupt line, if any. Intact lines after it were read.
    pub corruption: Option<JournalError>,
    /// The number of corrupt lines; an empty file counts as one.
    pub corrupt_lines: usize,
}

impl Contents {
    /// Records a corrupt line.
    fn add_corrupt(&mut self, path: &Path, line: usize, expected: &'static str, found: &[u8]) {
        self.corrupt_lines += 1;
        self.corruption
            .get_or_insert_with(|| JournalError::Corrupt {
                path: path.to_owned(),
                line,
                expected,
                found: String::from_utf8_lossy(found.get(..60).unwrap_or(found)).into_owned(),
            });
    }
}

/// Parses the journal of the boot `boot`; that of another boot has no entries.
pub(super) fn parse(path: &Path, mut text: impl BufRead, boot: &str) -> std::io::Result<Contents> {
    let mut contents = Contents::default();
    let mut buffer = Vec::new();
    next_line(&mut text, &mut buffer)?;
    match parse_line(&buffer) {
        Ok(Line::Boot(id)) if id == boot => {}
        // The cgroups and knobs of another boot do not exist any more.
        Ok(Line::Boot(_)) => return Ok(contents),
        _ if buffer.is_empty() => contents.add_corrupt(path, 1, "the boot's id", b""),
        Ok(_) => contents.add_corrupt(path, 1, "the boot's id", &buffer),
        Err(expected) => contents.add_corrupt(path, 1, expected, &buffer),
    }
    let mut open = OpenWrites::default();
    for number in 2.. {
        if !next_line(&mut text, &mut buffer)? {
            break;
        }
        // The agent was killed while it wrote this line. Knobs are written only after their line, so this one was not.
        if !buffer.ends_with(b"\n") && text.fill_buf()?.is_empty() {
            tracing::info!(path = %path.display(), "the last line of the knob journal is incomplete: its knob was not written");
            break;
        }
        let added = match parse_line(&buffer) {
            Ok(Line::Write(entry)) => open.add(number, entry),
            Ok(Line::Done { cgroup, knob }) => {
                open.remove(cgroup, knob);
                Ok(())
            }
            Ok(Line::Unknown(record)) => open.add_unknown(record),
            Ok(Line::Boot(_)) => Err("a write"),
            Err(expected) => Err(expected),
        };
        if let Err(expected) = added {
            contents.add_corrupt(path, number, expected, &buffer);
        }
    }
    contents.entries = open.entries.into_values().collect();
    contents.unknown = open.unknown;
    Ok(contents)
}

/// Reads the next line into `line`, or the beginning of one that is too long. Returns whether there was one.
fn next_line(text: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<bool> {
    line.clear();
    let read = text.take(MAX_LINE).read_until(b'\n', line)?;
    if line.len() as u64 == MAX_LINE && !line.ends_with(b"\n") {
        text.skip_until(b'\n')?;
    }
    Ok(read > 0)
}

/// The writes without a `Done`.
#[derive(Default)]
struct OpenWrites {
    /// By line number.
    entries: BTreeMap<usize, JournalEntry>,
    /// The line numbers of each knob. Searching all entries for each `Done` would take quadratic time.
    lines: HashMap<(u64, Knob), Vec<usize>>,
    /// Records that this version does not know.
    unknown: Vec<String>,
    /// The memory of the entries and those records, bytes.
    bytes: usize,
}

impl OpenWrites {
    fn add(&mut self, line: usize, entry: JournalEntry) -> Result<(), &'static str> {
        self.reserve(entry.size())?;
        let knob = (entry.cgroup, entry.knob);
        self.lines.entry(knob).or_default().push(line);
        self.entries.insert(line, entry);
        Ok(())
    }

    fn add_unknown(&mut self, record: String) -> Result<(), &'static str> {
        self.reserve(size_of::<String>() + record.len())?;
        self.unknown.push(record);
        Ok(())
    }

    const fn reserve(&mut self, bytes: usize) -> Result<(), &'static str> {
        if self.bytes + bytes > MAX_ENTRY_BYTES {
            return Err("at most 64 MiB of knobs that are not restored");
        }
        self.bytes += bytes;
        Ok(())
    }

    fn remove(&mut self, cgroup: u64, knob: Knob) {
        for line in self.lines.remove(&(cgroup, knob)).unwrap_or_default() {
            self.bytes -= self
                .entries
                .remove(&line)
                .as_ref()
                .map_or(0, JournalEntry::size);
        }
    }
}

// Writing.

/// A journal shorter than this is not compacted for its length, bytes.
const MIN_COMPACTION_LENGTH: u64 = 4 << 20;
/// A journal of fewer lines is not compacted for their number.
const MIN_COMPACTION_LINES: usize = 1024;

/// An append-only file of writes.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    /// Its length, bytes. No other process writes it.
    length: u64,
    /// Its length after the last compaction, bytes.
    compacted_length: u64,
    /// Lines since the last compaction.
    lines: usize,
}

impl Journal {
    /// Reads the journal that an earlier agent left at `path`. A missing file, or one of another boot, has no entries.
    ///
    /// # Errors
    /// If the file, or the id of this boot, cannot be read.
    pub fn read(path: &Path) -> Result<Contents, JournalError> {
        match regular_file::open(path, OFlags::RDONLY) {
            Ok(file) => {
                let boot = boot_id()?;
                parse(path, BufReader::new(file), &boot).map_err(|e| JournalError::io(path, e))
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Contents::default()),
            Err(e) => Err(JournalError::io(path, e)),
        }
    }

    /// Starts a new journal at `path` with `entries`, and with `unknown` records of a newer version as they were read. It
    /// replaces an old file by renaming: at each moment either the old file or the new one is there.
    ///
    /// # Errors
    /// If the directory or the file cannot be written, or the id of this boot cannot be read.
    pub fn create(
        path: &Path,
        entries: &[JournalEntry],
        unknown: &[String],
    ) -> Result<Self, JournalError> {
        let mut text = render(&Line::Boot(boot_id()?));
        let temporary = path.with_extension("new");
        let _ = std::fs::remove_file(&temporary);
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::APPEND | OFlags::WRONLY;
        let mut file =
            regular_file::open(&temporary, flags).map_err(|e| JournalError::io(&temporary, e))?;
        for entry in entries {
            text.push_str(&render(&Line::Write(entry.clone())));
        }
        for record in unknown {
            text.push_str(&render(&Line::Unknown(record.clone())));
        }
        file.write_all(text.as_bytes())
            .and_then(|()| file.sync_data())
            .and_then(|()| std::fs::rename(&temporary, path))
            .map_err(|e| JournalError::io(path, e))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            length: length(&text),
            compacted_length: length(&text),
            lines: 0,
        })
    }

    /// Records that `entry` is about to be written. Returns once that is on disk.
    ///
    /// # Errors
    /// If the line is not certainly on disk; then the knob must not be written.
    pub fn append_write(&mut self, entry: &JournalEntry) -> Result<(), JournalError> {
        self.append(&Line::Write(entry.clone()))
    }

    /// Records that a knob is no longer ours.
    ///
    /// # Errors
    /// If the file cannot be written. That is harmless: the next start finds another value there and leaves it.
    pub fn append_done(&mut self, cgroup: u64, knob: Knob) -> Result<(), JournalError> {
        self.append(&Line::Done { cgroup, knob })
    }

    /// Whether most of it is outdated, by lines or by bytes, with `owned` knobs owned.
    #[must_use]
    pub const fn needs_compaction(&self, owned: usize) -> bool {
        self.lines >= MIN_COMPACTION_LINES + 4 * owned
            || self.length >= MIN_COMPACTION_LENGTH + 2 * self.compacted_length
    }

    /// Removes the file, when no knob is owned any more.
    ///
    /// # Errors
    /// If the file cannot be removed.
    pub fn remove(self) -> Result<(), JournalError> {
        std::fs::remove_file(&self.path).map_err(|e| JournalError::io(&self.path, e))
    }

    fn append(&mut self, line: &Line) -> Result<(), JournalError> {
        let line = render(line);
        let written = self
            .file
            .write_all(line.as_bytes())
            .and_then(|()| self.file.sync_data());
        if let Err(e) = written {
            // A partial line, as on a full file system, would later count as corrupt: truncate it.
            let _ = self.file.set_len(self.length);
            return Err(JournalError::io(&self.path, e));
        }
        self.length += length(&line);
        self.lines += 1;
        Ok(())
    }
}

fn length(text: &str) -> u64 {
    text.len() as u64
}
