//! The log of dm-log-writes (`drivers/md/dm-log-writes.c`): everything that has reached the disk, in its order.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

const MAGIC: u64 = 0x006a_7366_7773_6872;
const DISCARD: u64 = 1 << 2;
const MARK: u64 = 1 << 3;

/// Something that has reached the disk.
pub(crate) enum Entry {
    /// These bytes, at this one.
    Write { at: u64, content: Vec<u8> },
    /// A mark that was set in the log.
    Mark(String),
    /// A flush, or a discard.
    Other,
}

/// The log.
pub(crate) struct Log {
    file: File,
    left: u64,
    sector: u64,
    /// Where the next entry is.
    at: u64,
}

fn words(bytes: &[u8]) -> Vec<u64> {
    let words = bytes.chunks_exact(8);
    words
        .map(|w| u64::from_le_bytes(w.try_into().unwrap()))
        .collect()
}

impl Log {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = File::open(path)?;
        let mut head = [0; 32];
        file.read_exact_at(&mut head, 0)?;
        let words = words(&head);
        assert_eq!(words[0], MAGIC, "{words:x?}");
        let sector = words[3] & 0xffff_ffff;
        Ok(Self {
            file,
            left: words[2],
            sector,
            at: sector,
        })
    }

    pub(crate) fn next(&mut self) -> Option<Entry> {
        self.left = self.left.checked_sub(1)?;
        let mut head = [0; 32];
        self.file.read_exact_at(&mut head, self.at).unwrap();
        let [sector, sectors, flags, length] = words(&head)[..] else {
            return None;
        };
        let inline = self.at + 32;
        self.at += self.sector;
        if flags & MARK != 0 {
            let mut name = vec![0; usize::try_from(length).unwrap()];
            self.file.read_exact_at(&mut name, inline).unwrap();
            let name = String::from_utf8(name).unwrap();
            return Some(Entry::Mark(name.trim_end_matches('\0').to_owned()));
        }
        if flags & DISCARD != 0 || sectors == 0 {
            return Some(Entry::Other);
        }
        let mut content = vec![0; usize::try_from(sectors * self.sector).unwrap()];
        self.file.read_exact_at(&mut content, self.at).unwrap();
        self.at += sectors * self.sector;
        let at = sector * self.sector;
        Some(Entry::Write { at, content })
    }
}
