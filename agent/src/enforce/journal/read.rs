//! Reads a journal, line by line.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, Read};
use std::path::Path;

use justitia_kernel::knob::Knob;

use super::error::JournalError;
use super::format::{JournalEntry, Line, parse_line};

/// The most memory that the entries of a journal may take, bytes: 10,000 cgroups with the longest paths need half of it.
/// The file may be longer.
pub(super) const MAX_ENTRY_BYTES: usize = 64 << 20;
/// The longest line that is read, bytes. The longest path that the kernel opens, escaped, needs a third of it.
const MAX_LINE: u64 = 64 << 10;

/// What a journal says.
#[derive(Debug, Default)]
pub struct Contents {
    /// Each write that is not done, in order. A knob appears once for each write.
    pub entries: Vec<JournalEntry>,
    /// Records that are intact and that this version does not know, in order: those of a newer version.
    pub unknown: Vec<String>,
    /// The first corrupt line, if any. Intact lines after it were read.
    pub corruption: Option<JournalError>,
    /// How many lines are corrupt; an empty file lacks one.
    pub corrupt_lines: usize,
}

impl Contents {
    /// Notes that a line is corrupt.
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
        // The cgroups of another boot do not exist any more, nor do their knobs.
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

/// Reads the next line into `line`; of a line that is too long, its beginning. Says whether there was one.
fn next_line(text: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<bool> {
    line.clear();
    let read = text.take(MAX_LINE).read_until(b'\n', line)?;
    if line.len() as u64 == MAX_LINE && !line.ends_with(b"\n") {
        text.skip_until(b'\n')?;
    }
    Ok(read > 0)
}

/// The writes that are not done.
#[derive(Default)]
struct OpenWrites {
    /// By line number.
    entries: BTreeMap<usize, JournalEntry>,
    /// The line numbers of each knob. To search all entries for each knob that is done would take quadratic time.
    lines: HashMap<(u64, Knob), Vec<usize>>,
    /// Records that this version does not know.
    unknown: Vec<String>,
    /// The memory that the entries and those records take, bytes.
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
