//! Writes a journal.

use std::fs::File;
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};

use justitia_kernel::knob::Knob;
use rustix::fs::OFlags;

use super::error::JournalError;
use super::format::{JournalEntry, Line, boot_id, render};
use super::read::{Contents, parse};
use justitia_regular_file as regular_file;

/// A journal shorter than this is not compacted for its length, bytes.
const MIN_COMPACTION_LENGTH: u64 = 4 << 20;
/// A journal of fewer lines is not compacted for their number.
const MIN_COMPACTION_LINES: usize = 1024;

/// An append-only file of writes.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    /// Its length, bytes. Nobody else writes it.
    length: u64,
    /// Its length after the last compaction, bytes.
    compacted_length: u64,
    /// Lines since the last compaction.
    lines: usize,
}

impl Journal {
    /// Reads the journal that an earlier agent left at `path`. If the file does not exist or is of another boot, there are
    /// no entries.
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

    /// Starts a new journal at `path` with `entries`, and `unknown` records of a newer version as they were read. It replaces an old file by renaming: at each moment either the old
    /// file or the new one is there.
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
            lines: entries.len() + unknown.len(),
        })
    }

    /// Notes that `entry` is about to be written. Returns once that is on disk.
    ///
    /// # Errors
    /// If it is not certain to be on disk; then the knob must not be written.
    pub fn append_write(&mut self, entry: &JournalEntry) -> Result<(), JournalError> {
        self.append(&Line::Write(entry.clone()))
    }

    /// Notes that a knob is no longer ours.
    ///
    /// # Errors
    /// If the file cannot be written. That is harmless: the next start finds another value there and leaves it.
    pub fn append_done(&mut self, cgroup: u64, knob: Knob) -> Result<(), JournalError> {
        self.append(&Line::Done { cgroup, knob })
    }

    /// Whether most of it is outdated, by lines or by bytes, when `owned` knobs are owned.
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
