use justitia_common::checksum::crc32;
use std::path::{Path, PathBuf};

use justitia_kernel::knob::Knob;
use proptest::prelude::*;

use super::{Contents, Journal, JournalEntry, Line, MAX_ENTRY_BYTES, boot_id, parse, render};

fn entry(n: u64) -> JournalEntry {
    JournalEntry {
        cgroup: n,
        path: format!("a/{n}"),
        knob: Knob::MemoryLow,
        original: "0".into(),
        applied: format!("{}", n * 4096),
    }
}

fn written(dir: &Path) -> PathBuf {
    let path = dir.join("ledger");
    let mut journal = Journal::create(&path, &[], &[]).unwrap();
    for n in 1..=4 {
        journal.append_write(&entry(n)).unwrap();
    }
    journal.append_done(2, Knob::MemoryLow).unwrap();
    path
}

/// A journal of this boot with these lines.
fn journal_of(lines: &[Line]) -> Vec<u8> {
    let lines: String = lines.iter().map(render).collect();
    (render(&Line::Boot(boot_id().unwrap())) + &lines).into_bytes()
}

fn parsed(text: &[u8], boot: &str) -> Contents {
    parse(Path::new("x"), text, boot).unwrap()
}

/// An entry with the longest path that the kernel opens, of bytes that are escaped.
fn long(n: u64) -> JournalEntry {
    JournalEntry {
        path: r"\xff".repeat(4090),
        ..entry(n)
    }
}

#[test]
fn a_long_journal_is_compacted_by_its_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger");
    let owned: Vec<JournalEntry> = (1..=50).map(long).collect();
    let mut journal = Journal::create(&path, &[], &[]).unwrap();
    let (mut compactions, mut longest) = (0, 0);
    for n in 0..2000 {
        journal.append_write(&owned[n % owned.len()]).unwrap();
        longest = longest.max(std::fs::metadata(&path).unwrap().len());
        if journal.needs_compaction(owned.len()) {
            journal = Journal::create(&path, &owned, &[]).unwrap();
            compactions += 1;
        }
    }
    // 40 MiB were written.
    assert!(longest < 8 << 20, "{longest} bytes");
    assert!((5..20).contains(&compactions), "{compactions} times");
}

/// As where what an earlier agent has left cannot be restored: none of it is owned.
#[test]
fn what_a_compaction_keeps_does_not_ask_for_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let kept: Vec<JournalEntry> = (1..=5000).map(entry).collect();
    let mut journal = Journal::create(&dir.path().join("ledger"), &kept, &[]).unwrap();
    journal.append_write(&entry(1)).unwrap();
    assert!(!journal.needs_compaction(1));
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
    let contents = parsed(&text, &boot_id().unwrap());
    assert!(contents.corruption.is_none(), "{:?}", contents.corruption);
    assert!(contents.entries.len() > 50);
    assert!(contents.entries.iter().all(|e| *e == long(1)));
}

#[test]
fn entries_beyond_the_memory_limit_are_corrupt_and_the_others_are_read() {
    let mut text = journal_of(&[Line::Write(entry(7))]);
    text.extend(vec![b'x'; 3 << 20]);
    text.push(b'\n');
    let count = MAX_ENTRY_BYTES / long(1).size() + 10;
    text.extend(render(&Line::Write(long(1))).repeat(count).into_bytes());
    let contents = parsed(&text, &boot_id().unwrap());
    assert_eq!(contents.entries[0], entry(7));
    let kept: usize = contents.entries.iter().map(JournalEntry::size).sum();
    assert!(
        kept <= MAX_ENTRY_BYTES && kept > MAX_ENTRY_BYTES * 9 / 10,
        "{kept}"
    );
    let said = contents.corruption.unwrap().to_string();
    assert!(said.contains("at line 3: expected a whole line"), "{said}");
    assert_eq!(contents.corrupt_lines, 2 + count - contents.entries.len());
}

/// The kernel looks for a fatal signal before each page of a write, so that half a line may stay.
#[test]
fn a_line_that_was_not_finished_was_not_acted_on() {
    let half = render(&Line::Write(entry(8)));
    for cut in 1..half.len() {
        let mut text = journal_of(&[Line::Write(entry(7))]);
        text.extend(&half.as_bytes()[..cut]);
        let contents = parsed(&text, &boot_id().unwrap());
        assert_eq!(contents.entries, [entry(7)]);
        assert!(contents.corruption.is_none(), "{:?}", contents.corruption);
    }
}

#[test]
fn writes_that_are_not_done_are_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let contents = Journal::read(&written(dir.path())).unwrap();
    assert!(contents.corruption.is_none());
    assert_eq!(contents.entries, [entry(1), entry(3), entry(4)]);
    assert!(
        Journal::read(&dir.path().join("none"))
            .unwrap()
            .entries
            .is_empty()
    );
}

#[test]
fn a_done_line_removes_the_knobs_writes_and_keeps_the_order_of_the_others() {
    let done = |cgroup| Line::Done {
        cgroup,
        knob: Knob::MemoryLow,
    };
    let again = JournalEntry {
        applied: "1".into(),
        ..entry(2)
    };
    let other = JournalEntry {
        knob: Knob::MemoryHigh,
        ..entry(2)
    };
    let mut lines = [2, 5, 2, 1].map(|n| Line::Write(entry(n))).to_vec();
    lines.extend([Line::Write(other.clone()), done(2), done(7), done(2)]);
    lines.extend([Line::Write(again.clone()), Line::Write(entry(3)), done(1)]);
    let contents = parsed(&journal_of(&lines), &boot_id().unwrap());
    assert_eq!(contents.entries, [entry(5), other, again, entry(3)]);
}

/// An upgrade or a downgrade may follow a crash: the lines of the first release must be written and read for good.
#[test]
fn the_format_on_disk_is_that_of_the_first_release() {
    let json =
        r#"{"write":{"cgroup":7,"path":"a/7","knob":"memory-low","before":"0","ours":"28672"}}"#;
    let line = format!("{:08x} {json}\n", crc32(json.as_bytes()));
    assert_eq!(render(&Line::Write(entry(7))), line);
    let done = r#"{"done":{"cgroup":7,"knob":"memory-low"}}"#;
    let knob = Knob::MemoryLow;
    assert!(render(&Line::Done { cgroup: 7, knob }).ends_with(&format!(" {done}\n")));
    assert_eq!(crate::knobs::journal::FILE_NAME, "ledger");
}

#[test]
fn the_journal_of_another_boot_has_no_entries() {
    let text = render(&Line::Boot("other".into())) + &render(&Line::Write(entry(1)));
    let contents = parsed(text.as_bytes(), "this");
    assert!(contents.entries.is_empty() && contents.corruption.is_none());
}

#[test]
fn a_symbolic_link_is_not_followed() {
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
fn a_pipe_in_the_journals_place_is_refused_without_blocking() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ledger");
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let read = Journal::read(&path).map_err(|e| e.to_string());
        tell.send(read).is_ok()
    });
    let read = told.recv_timeout(std::time::Duration::from_secs(20));
    let error = read.expect("an answer").unwrap_err();
    assert!(
        error.contains("/ledger: expected a regular file, found a pipe: see who"),
        "{error}"
    );
}

#[test]
fn a_checksum_in_capitals_is_corrupt() {
    // One of them has a letter in it.
    let capitals = (1..50).find_map(|n| {
        let line = render(&Line::Write(entry(n)));
        let (sum, rest) = line.split_once(' ')?;
        let upper = sum.to_uppercase();
        (upper != sum).then(|| format!("{upper} {rest}"))
    });
    let text = render(&Line::Boot("x".into())) + &capitals.unwrap();
    let contents = parsed(text.as_bytes(), "x");
    assert!(contents.entries.is_empty() && contents.corruption.is_some());
}

proptest! {
    /// However the file is cut or changed, either the corruption is noticed, or what is read is what a
    /// prefix of the writes says. (A cut at the end of a line is a crash before the next write, one within a line a crash before it was
    /// complete.)
    #[test]
    fn a_cut_or_changed_file_is_noticed(cut in 0usize..900, flip in proptest::option::of((0usize..900, 1u8..=255))) {
        let dir = tempfile::tempdir().unwrap();
        let text = std::fs::read(written(dir.path())).unwrap();
        let mut bad = text[..cut.min(text.len())].to_vec();
        if let Some((at, bits)) = flip && at < bad.len() {
            bad[at] ^= bits;
        }
        let contents = parsed(&bad, &boot_id().unwrap());
        if contents.corruption.is_none() {
            let end = bad.iter().rposition(|byte| *byte == b'\n');
            prop_assert!(text.starts_with(&bad[..=end.unwrap()]));
        }
        prop_assert_eq!(contents.corrupt_lines > 0, contents.corruption.is_some());
        for e in &contents.entries {
            prop_assert_eq!(e, &entry(e.cgroup));
        }
    }
}
