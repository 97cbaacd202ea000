//! Files of the memory controller (Documentation/admin-guide/cgroup-v2.rst, "Memory").

use crate::parse::{self, ParseError, Parsed};

/// A memory limit or protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Limit {
    /// A number of bytes. The kernel rounds down to whole pages when it is written.
    Bytes(u64),
    /// No limit; of a protection: everything.
    Max,
}

impl Limit {
    /// Reads `max` or a number of bytes.
    ///
    /// # Errors
    /// On anything else.
    pub fn parse(text: &[u8]) -> Parsed<Self> {
        const EXPECTED: &str = "`max` or a number of bytes";
        match parse::only_line(text, EXPECTED)? {
            b"max" => Ok(Self::Max),
            line => parse::number(line)
                .map(Self::Bytes)
                .ok_or_else(|| ParseError::new(1, EXPECTED, line)),
        }
    }
}

/// As the kernel takes it.
impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bytes(bytes) => bytes.fmt(f),
            Self::Max => f.write_str("max"),
        }
    }
}

/// `memory.stat`: what the cgroup and its descendants use. Amounts in bytes, `pgsteal` and `workingset_*` in events (pages)
/// since the cgroup was made.
///
/// The keys `anon`, `file` and the two file LRU lists must be there: a missing one is an error rather than a zero. The
/// rest is then 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the kernel's own names, explained in its documentation"
)]
pub struct MemoryStat {
    pub anon: u64,
    pub file: u64,
    pub file_mapped: u64,
    pub file_dirty: u64,
    pub file_writeback: u64,
    pub inactive_anon: u64,
    pub active_anon: u64,
    pub inactive_file: u64,
    pub active_file: u64,
    pub slab_reclaimable: u64,
    pub workingset_refault_anon: u64,
    pub workingset_refault_file: u64,
    /// Pages freed by reclaim.
    pub pgsteal: u64,
}

impl MemoryStat {
    /// Bytes of file pages on the LRU lists: what reclaim can work on. (`file` counts shmem as well.)
    #[must_use]
    pub const fn file_lru(&self) -> u64 {
        self.inactive_file.saturating_add(self.active_file)
    }

    /// Bytes of anonymous memory on the LRU lists, shared memory among them: what may be swapped out.
    #[must_use]
    pub const fn anon_lru(&self) -> u64 {
        self.inactive_anon.saturating_add(self.active_anon)
    }

    /// Reads the flat-keyed file in one pass; lines of unknown keys are passed over unread.
    ///
    /// # Errors
    /// When a required key is missing, or the value of a known one is no number.
    pub fn parse(text: &[u8]) -> Parsed<Self> {
        const REQUIRED: &str = "the keys anon, file, inactive_file and active_file";
        let mut stat = Self::default();
        let mut required = 0_u8;
        for line in parse::keyed(text) {
            let line = line?;
            let field = match line.key {
                b"anon" => {
                    required |= 1;
                    &mut stat.anon
                }
                b"file" => {
                    required |= 2;
                    &mut stat.file
                }
                b"inactive_file" => {
                    required |= 4;
                    &mut stat.inactive_file
                }
                b"active_file" => {
                    required |= 8;
                    &mut stat.active_file
                }
                b"file_mapped" => &mut stat.file_mapped,
                b"file_dirty" => &mut stat.file_dirty,
                b"file_writeback" => &mut stat.file_writeback,
                b"inactive_anon" => &mut stat.inactive_anon,
                b"active_anon" => &mut stat.active_anon,
                b"slab_reclaimable" => &mut stat.slab_reclaimable,
                b"workingset_refault_anon" => &mut stat.workingset_refault_anon,
                b"workingset_refault_file" => &mut stat.workingset_refault_file,
                b"pgsteal" => &mut stat.pgsteal,
                _ => continue,
            };
            *field = line.value()?;
        }
        if required == 15 {
            Ok(stat)
        } else {
            Err(ParseError::new(1, REQUIRED, text))
        }
    }
}

/// `memory.events`: how often each thing happened in the cgroup and its descendants. A missing key
/// is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryEvents {
    /// Throttled and sent to reclaim by `memory.high`.
    pub high: u64,
    /// About to go over `memory.max`.
    pub max: u64,
}

impl MemoryEvents {
    /// Reads the flat-keyed file; unknown keys are passed over.
    ///
    /// # Errors
    /// When the value of a known key is no number, or no known key is there.
    pub fn parse(text: &[u8]) -> Parsed<Self> {
        let mut events = Self::default();
        let mut found = false;
        for line in parse::keyed(text) {
            let line = line?;
            let field = match line.key {
                b"high" => &mut events.high,
                b"max" => &mut events.max,
                _ => continue,
            };
            *field = line.value()?;
            found = true;
        }
        if found {
            Ok(events)
        } else {
            Err(ParseError::new(1, "the keys high and max", text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits() {
        assert_eq!(Limit::parse(b"max\n"), Ok(Limit::Max));
        assert_eq!(Limit::parse(b"4096\n"), Ok(Limit::Bytes(4096)));
        assert_eq!(Limit::Max.to_string(), "max");
        assert_eq!(Limit::Bytes(7).to_string(), "7");
        assert!(Limit::Bytes(u64::MAX - 1) < Limit::Max);
        for bad in ["", "maximum", "-1", "1 2", "0x10", "max\nmax"] {
            assert!(Limit::parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn smallest_stat() {
        let stat =
            MemoryStat::parse(b"anon 1\nfile 2\nnew_key what ever\ninactive_file 3\nactive_file 4")
                .unwrap();
        assert_eq!((stat.anon, stat.file), (1, 2));
        assert_eq!((stat.inactive_file, stat.active_file), (3, 4));
        assert_eq!(stat.file_lru(), 7);
        assert_eq!(stat.file_mapped, 0);
    }

    #[test]
    fn a_missing_required_key_is_no_zero() {
        let error = MemoryStat::parse(b"anon 1\nfile 2\ninactive_file 3\n").unwrap_err();
        assert!(error.expected.contains("active_file"));
        assert!(MemoryStat::parse(b"").is_err());
    }

    #[test]
    fn wrong_values_name_their_line() {
        let error = MemoryStat::parse(b"anon 1\nfile -2\n").unwrap_err();
        assert_eq!((error.line, error.found.as_str()), (2, "file -2"));
        assert!(MemoryStat::parse(b"anon\n").is_err());
    }

    #[test]
    fn events() {
        let events =
            MemoryEvents::parse(b"low 1\nhigh 2\nmax 3\noom 4\noom_kill 5\noom_group_kill 6\n")
                .unwrap();
        assert_eq!(events, MemoryEvents { high: 2, max: 3 });
        assert!(MemoryEvents::parse(b"high x\n").is_err());
        assert!(MemoryEvents::parse(b"").is_err());
    }
}
