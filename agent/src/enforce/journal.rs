//! The journal behind the ledger: what was written where, on disk before it is written there.
//!
//! One line per write, `crc32 json`, appended before the knob is written (write-ahead) and synced. So
//! after a crash at any moment, every knob that may hold a value of ours is named, with the value that
//! stood before.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use justitia_kernel::knob::Knob;
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::regular;

/// The kernel's name for this boot: cgroup ids mean nothing in another one.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The most that is kept of a journal in memory, bytes: 10,000 cgroups with the longest paths need half of it. The file
/// may be longer: it is read line by line.
const MOST_KEPT: usize = 64 << 20;
/// The longest line that is read, bytes. The longest path that the kernel opens, escaped, needs a third of it.
const LONGEST_LINE: u64 = 64 << 10;
/// A journal shorter than this is not rewritten for its length, bytes.
const SHORT: u64 = 4 << 20;

/// One write to one knob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The cgroup's id.
    pub cgroup: u64,
    /// Its path below the cgroup2 mount; bytes outside printable ASCII and `\` as `\xNN`.
    pub path: String,
    /// Which knob.
    pub knob: Knob,
    /// What stood there before our first write.
    pub before: String,
    /// What we are about to write.
    pub ours: String,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Boot(String),
    Write(Entry),
    /// The knob is no longer ours: given back, or yielded.
    Done {
        cgroup: u64,
        knob: Knob,
    },
}

/// Why the journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file could not be read or written.
    #[error("the ledger {path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A line is not what was written.
    #[error(
        "the ledger {path} is damaged at line {line}: expected {expected}, found {found:?}. Nothing was \
         changed. `justitia reset --damaged` gives back every knob whose entry is intact and that still holds \
         our value, lists them, and puts the file aside"
    )]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Its first bad line, from 1.
        line: usize,
        /// What a good line has.
        expected: &'static str,
        /// The beginning of what stands there.
        found: String,
    },
}

/// What a journal says.
#[derive(Debug, Default)]
pub struct Contents {
    /// Every write that was not done with, in order. A knob appears once a write.
    pub entries: Vec<Entry>,
    /// The first damage, if any; lines after it were still read where they were intact.
    pub damage: Option<JournalError>,
    /// How many lines are damaged; an empty file lacks one.
    pub damaged: usize,
}

impl Contents {
    /// Notes that a line is damaged.
    fn damaged(&mut self, path: &Path, line: usize, expected: &'static str, found: &[u8]) {
        self.damaged += 1;
        self.damage.get_or_insert_with(|| JournalError::Damaged {
            path: path.to_owned(),
            line,
            expected,
            found: String::from_utf8_lossy(&found[..found.len().min(60)]).into_owned(),
        });
    }
}

/// An append-only file of writes.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    /// How long it is, bytes: nobody else writes it.
    length: u64,
    /// How long it was after the last compaction, bytes.
    compacted: u64,
    /// Lines since the last compaction.
    lines: usize,
}

impl Journal {
    /// Reads what an earlier agent left at `path`. No file, or one of another boot, says nothing.
    ///
    /// # Errors
    /// If the file cannot be read. Damage is part of the contents: the caller decides.
    pub fn read(path: &Path) -> Result<Contents, JournalError> {
        match regular::open(path, OFlags::RDONLY) {
            Ok(file) => parse(path, BufReader::new(file), &boot_id()).map_err(|e| io(path, e)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Contents::default()),
            Err(e) => Err(io(path, e)),
        }
    }

    /// Starts a new journal at `path`, holding `entries`. The old file, if any, is replaced whole: at every
    /// moment either the old or the new one is there.
    ///
    /// # Errors
    /// If the directory or the file cannot be written.
    pub fn create(path: &Path, entries: &[Entry]) -> Result<Self, JournalError> {
        let fresh = path.with_extension("new");
        let _ = std::fs::remove_file(&fresh);
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::APPEND | OFlags::WRONLY;
        let mut file = regular::open(&fresh, flags).map_err(|e| io(&fresh, e))?;
        let mut text = render(&Line::Boot(boot_id()));
        for entry in entries {
            text.push_str(&render(&Line::Write(entry.clone())));
        }
        file.write_all(text.as_bytes())
            .and_then(|()| file.sync_data())
            .and_then(|()| std::fs::rename(&fresh, path))
            .map_err(|e| io(path, e))?;
        Ok(Self {
            path: path.to_owned(),
            file,
            length: to_length(&text),
            compacted: to_length(&text),
            lines: entries.len(),
        })
    }

    /// Says that `entry` is about to be written. Returns once that is on disk.
    ///
    /// # Errors
    /// If it could not be made sure; then the knob must not be written.
    pub fn about_to_write(&mut self, entry: &Entry) -> Result<(), JournalError> {
        self.append(&Line::Write(entry.clone()))
    }

    /// Says that a knob is no longer ours.
    ///
    /// # Errors
    /// If the file cannot be written. Harmless: the next start finds a foreign value there and leaves it.
    pub fn done(&mut self, cgroup: u64, knob: Knob) -> Result<(), JournalError> {
        self.append(&Line::Done { cgroup, knob })
    }

    /// Whether most of it is outdated, by lines or by bytes, when so many knobs are held: time to make it anew.
    #[must_use]
    pub fn is_outdated(&self, held: usize) -> bool {
        self.lines >= 1024 + 4 * held || self.length >= SHORT + 2 * self.compacted
    }

    /// Removes the file: nothing is held any more.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn remove(self) -> Result<(), JournalError> {
        std::fs::remove_file(&self.path).map_err(|e| io(&self.path, e))
    }

    fn append(&mut self, line: &Line) -> Result<(), JournalError> {
        let line = render(line);
        let written = self
            .file
            .write_all(line.as_bytes())
            .and_then(|()| self.file.sync_data());
        if let Err(e) = written {
            // Half a line would read as damage later: cut it off (as on a full file system).
            let _ = self.file.set_len(self.length);
            return Err(io(&self.path, e));
        }
        self.length += to_length(&line);
        self.lines += 1;
        Ok(())
    }
}

fn to_length(text: &str) -> u64 {
    text.len() as u64
}

fn io(path: &Path, source: std::io::Error) -> JournalError {
    JournalError::Io {
        path: path.to_owned(),
        source,
    }
}

fn boot_id() -> String {
    std::fs::read_to_string(BOOT_ID)
        .unwrap_or_default()
        .trim()
        .to_owned()
}

fn render(line: &Line) -> String {
    // A struct of strings and numbers always serialises.
    let json = serde_json::to_string(line).unwrap_or_default();
    format!("{} {json}\n", checksum(&json))
}

fn checksum(json: &str) -> String {
    format!("{:08x}", crc32fast::hash(json.as_bytes()))
}

fn parse(path: &Path, mut text: impl BufRead, boot: &str) -> std::io::Result<Contents> {
    let mut contents = Contents::default();
    let mut buffer = Vec::new();
    next_line(&mut text, &mut buffer)?;
    match read_line(&buffer) {
        Ok(Line::Boot(id)) if id == boot => {}
        // Another boot's cgroups are gone, and their knobs with them.
        Ok(Line::Boot(_)) => return Ok(contents),
        _ if buffer.is_empty() => contents.damaged(path, 1, "the boot's id", b""),
        Ok(_) => contents.damaged(path, 1, "the boot's id", &buffer),
        Err(expected) => contents.damaged(path, 1, expected, &buffer),
    }
    let mut kept = Kept::default();
    for number in 2.. {
        if !next_line(&mut text, &mut buffer)? {
            break;
        }
        let taken = match read_line(&buffer) {
            Ok(Line::Write(entry)) => kept.write(number, entry),
            Ok(Line::Done { cgroup, knob }) => {
                kept.done(cgroup, knob);
                Ok(())
            }
            Ok(Line::Boot(_)) => Err("a write"),
            Err(expected) => Err(expected),
        };
        if let Err(expected) = taken {
            contents.damaged(path, number, expected, &buffer);
        }
    }
    contents.entries = kept.writes.into_values().collect();
    Ok(contents)
}

/// Reads the next line into `line`, of one that is too long the beginning. Says whether there was one.
fn next_line(text: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<bool> {
    line.clear();
    let read = text.take(LONGEST_LINE).read_until(b'\n', line)?;
    if line.len() as u64 == LONGEST_LINE && !line.ends_with(b"\n") {
        text.skip_until(b'\n')?;
    }
    Ok(read > 0)
}

/// The writes that were not done with.
#[derive(Default)]
struct Kept {
    /// By their lines.
    writes: BTreeMap<usize, Entry>,
    /// Where those of a knob are: to look through all of them for each that is done takes their square.
    places: HashMap<(u64, Knob), Vec<usize>>,
    /// What they take in memory, bytes.
    bytes: usize,
}

impl Kept {
    fn write(&mut self, line: usize, entry: Entry) -> Result<(), &'static str> {
        if self.bytes + size(&entry) > MOST_KEPT {
            return Err("at most 64 MiB of knobs that are held");
        }
        self.bytes += size(&entry);
        let knob = (entry.cgroup, entry.knob);
        self.places.entry(knob).or_default().push(line);
        self.writes.insert(line, entry);
        Ok(())
    }

    fn done(&mut self, cgroup: u64, knob: Knob) {
        for place in self.places.remove(&(cgroup, knob)).unwrap_or_default() {
            self.bytes -= self.writes.remove(&place).as_ref().map_or(0, size);
        }
    }
}

/// What an entry takes in memory, bytes.
fn size(entry: &Entry) -> usize {
    size_of::<Entry>() + entry.path.len() + entry.before.len() + entry.ours.len()
}

fn read_line(line: &[u8]) -> Result<Line, &'static str> {
    let line = line.strip_suffix(b"\n").ok_or("a whole line")?;
    let line = std::str::from_utf8(line).map_err(|_| "text")?;
    let (sum, json) = line.split_once(' ').ok_or("a checksum and an entry")?;
    // As it was written, to the letter: read as a number, `A` would do for `a`, and a changed bit go unnoticed.
    if sum != checksum(json) {
        return Err("an entry that fits its checksum");
    }
    serde_json::from_str(json).map_err(|_| "an entry of this version")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn entry(n: u64) -> Entry {
        Entry {
            cgroup: n,
            path: format!("a/{n}"),
            knob: Knob::MemoryLow,
            before: "0".into(),
            ours: format!("{}", n * 4096),
        }
    }

    fn written(dir: &Path) -> PathBuf {
        let path = dir.join("ledger");
        let mut journal = Journal::create(&path, &[]).unwrap();
        for n in 1..=4 {
            journal.about_to_write(&entry(n)).unwrap();
        }
        journal.done(2, Knob::MemoryLow).unwrap();
        path
    }

    /// Of this boot, with these lines.
    fn journal_of(lines: &[Line]) -> Vec<u8> {
        let lines: String = lines.iter().map(render).collect();
        (render(&Line::Boot(boot_id())) + &lines).into_bytes()
    }

    fn parsed(text: &[u8], boot: &str) -> Contents {
        parse(Path::new("x"), text, boot).unwrap()
    }

    /// One whose path is as long as the kernel opens, of bytes that are escaped.
    fn long(n: u64) -> Entry {
        Entry {
            path: r"\xff".repeat(4090),
            ..entry(n)
        }
    }

    #[test]
    fn a_long_journal_is_made_anew_by_its_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger");
        let held: Vec<Entry> = (1..=50).map(long).collect();
        let mut journal = Journal::create(&path, &[]).unwrap();
        let (mut anew, mut longest) = (0, 0);
        for n in 0..2000 {
            journal.about_to_write(&held[n % held.len()]).unwrap();
            longest = longest.max(std::fs::metadata(&path).unwrap().len());
            if journal.is_outdated(held.len()) {
                journal = Journal::create(&path, &held).unwrap();
                anew += 1;
            }
        }
        // 40 MiB were written.
        assert!(longest < 8 << 20, "{longest} bytes");
        assert!((5..20).contains(&anew), "{anew} times");
    }

    #[test]
    fn a_journal_of_any_length_is_read() {
        let mut block = String::new();
        for n in 1..=40 {
            block.push_str(&render(&Line::Write(long(n))));
        }
        for cgroup in 2..=40 {
            let knob = Knob::MemoryLow;
            block.push_str(&render(&Line::Done { cgroup, knob }));
        }
        let mut text = journal_of(&[]);
        while text.len() <= 65 << 20 {
            text.extend(block.as_bytes());
        }
        let contents = parsed(&text, &boot_id());
        assert!(contents.damage.is_none(), "{:?}", contents.damage);
        assert!(contents.entries.len() > 50);
        assert!(contents.entries.iter().all(|e| *e == long(1)));
    }

    #[test]
    fn what_does_not_fit_into_memory_is_damage_and_the_rest_is_read() {
        let mut text = journal_of(&[Line::Write(entry(7))]);
        text.extend(vec![b'x'; 3 << 20]);
        text.push(b'\n');
        let count = MOST_KEPT / size(&long(1)) + 10;
        text.extend(render(&Line::Write(long(1))).repeat(count).into_bytes());
        let contents = parsed(&text, &boot_id());
        assert_eq!(contents.entries[0], entry(7));
        let kept: usize = contents.entries.iter().map(size).sum();
        assert!(kept <= MOST_KEPT && kept > MOST_KEPT * 9 / 10, "{kept}");
        let said = contents.damage.unwrap().to_string();
        assert!(said.contains("at line 3: expected a whole line"), "{said}");
        assert_eq!(contents.damaged, 2 + count - contents.entries.len());
    }

    #[test]
    fn says_what_was_written_and_not_done() {
        let dir = tempfile::tempdir().unwrap();
        let contents = Journal::read(&written(dir.path())).unwrap();
        assert!(contents.damage.is_none());
        assert_eq!(contents.entries, [entry(1), entry(3), entry(4)]);
        assert!(
            Journal::read(&dir.path().join("none"))
                .unwrap()
                .entries
                .is_empty()
        );
    }

    #[test]
    fn what_is_done_leaves_the_others_in_their_order() {
        let done = |cgroup| Line::Done {
            cgroup,
            knob: Knob::MemoryLow,
        };
        let again = Entry {
            ours: "1".into(),
            ..entry(2)
        };
        let other = Entry {
            knob: Knob::MemoryHigh,
            ..entry(2)
        };
        let mut lines = [2, 5, 2, 1].map(|n| Line::Write(entry(n))).to_vec();
        lines.extend([Line::Write(other.clone()), done(2), done(7), done(2)]);
        lines.extend([Line::Write(again.clone()), Line::Write(entry(3)), done(1)]);
        let contents = parsed(&journal_of(&lines), &boot_id());
        assert_eq!(contents.entries, [entry(5), other, again, entry(3)]);
    }

    #[test]
    fn another_boot_says_nothing() {
        let text = render(&Line::Boot("other".into())) + &render(&Line::Write(entry(1)));
        let contents = parsed(text.as_bytes(), "this");
        assert!(contents.entries.is_empty() && contents.damage.is_none());
    }

    #[test]
    fn a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join("ledger")).unwrap();
        let error = Journal::read(&dir.path().join("ledger")).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("/ledger: expected a regular file, found a symbolic link: see who"),
            "{error}"
        );
    }

    #[test]
    fn a_pipe_in_the_ledgers_place_holds_up_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ledger");
        rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || tell.send(Journal::read(&path).map_err(|e| e.to_string())));
        let read = told.recv_timeout(std::time::Duration::from_secs(20));
        let error = read.expect("an answer").unwrap_err();
        assert!(
            error.contains("/ledger: expected a regular file, found a pipe: see who"),
            "{error}"
        );
    }

    #[test]
    fn a_checksum_in_capitals_is_damage() {
        // One of them has a letter in it.
        let capitals = (1..50).find_map(|n| {
            let line = render(&Line::Write(entry(n)));
            let (sum, rest) = line.split_once(' ')?;
            let upper = sum.to_uppercase();
            (upper != sum).then(|| format!("{upper} {rest}"))
        });
        let text = render(&Line::Boot("x".into())) + &capitals.unwrap();
        let contents = parsed(text.as_bytes(), "x");
        assert!(contents.entries.is_empty() && contents.damage.is_some());
    }

    proptest! {
        /// However the file is cut or changed, either the damage is noticed, or what is read is what a
        /// prefix of the writes says. (A cut at the end of a line is a crash before the next write.)
        #[test]
        fn damage_is_noticed(cut in 0usize..900, flip in proptest::option::of((0usize..900, 1u8..=255))) {
            let dir = tempfile::tempdir().unwrap();
            let text = std::fs::read(written(dir.path())).unwrap();
            let mut bad = text[..cut.min(text.len())].to_vec();
            if let Some((at, bits)) = flip && at < bad.len() {
                bad[at] ^= bits;
            }
            let contents = parsed(&bad, &boot_id());
            if contents.damage.is_none() {
                prop_assert!(text.starts_with(&bad) && bad.ends_with(b"\n"));
            }
            prop_assert_eq!(contents.damaged > 0, contents.damage.is_some());
            for e in &contents.entries {
                prop_assert_eq!(e, &entry(e.cgroup));
            }
        }
    }
}
