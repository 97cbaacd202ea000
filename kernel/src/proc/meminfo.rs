//! `/proc/meminfo` (proc_meminfo(5)).

use crate::parse::{self, ParseError, Parsed};

/// Memory of the whole machine, in bytes.
///
/// `mem_total`, `mem_free` and `mem_available` must be there; of the rest, a missing line is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the kernel's own names, explained in its documentation"
)]
pub struct Meminfo {
    pub mem_total: u64,
    pub mem_free: u64,
    pub mem_available: u64,
    pub buffers: u64,
    pub cached: u64,
    pub active_anon: u64,
    pub inactive_anon: u64,
    pub active_file: u64,
    pub inactive_file: u64,
    pub unevictable: u64,
    pub dirty: u64,
    pub writeback: u64,
    pub mapped: u64,
    pub shmem: u64,
    pub slab_reclaimable: u64,
    pub swap_total: u64,
    pub swap_free: u64,
}

impl Meminfo {
    /// Reads `MemTotal:   1008084 kB` and so on; unknown lines are passed over.
    ///
    /// # Errors
    /// When a required line is missing or a known one is no number of kB that a `u64` of bytes
    /// holds.
    pub fn parse(text: &[u8]) -> Parsed<Self> {
        let mut info = Self::default();
        let mut required = 0_u8;
        for (number, line) in parse::lines(text) {
            let Some((key, value)) = parse::cut(line, b':') else {
                return Err(ParseError::new(number, "`Name: NUMBER kB`", line));
            };
            let field = match key {
                b"MemTotal" => {
                    required |= 1;
                    &mut info.mem_total
                }
                b"MemFree" => {
                    required |= 2;
                    &mut info.mem_free
                }
                b"MemAvailable" => {
                    required |= 4;
                    &mut info.mem_available
                }
                b"Buffers" => &mut info.buffers,
                b"Cached" => &mut info.cached,
                b"Active(anon)" => &mut info.active_anon,
                b"Inactive(anon)" => &mut info.inactive_anon,
                b"Active(file)" => &mut info.active_file,
                b"Inactive(file)" => &mut info.inactive_file,
                b"Unevictable" => &mut info.unevictable,
                b"Dirty" => &mut info.dirty,
                b"Writeback" => &mut info.writeback,
                b"Mapped" => &mut info.mapped,
                b"Shmem" => &mut info.shmem,
                b"SReclaimable" => &mut info.slab_reclaimable,
                b"SwapTotal" => &mut info.swap_total,
                b"SwapFree" => &mut info.swap_free,
                _ => continue,
            };
            *field = kilobytes(value)
                .ok_or_else(|| ParseError::new(number, "`Name: NUMBER kB`", line))?;
        }
        if required == 7 {
            Ok(info)
        } else {
            const REQUIRED: &str = "MemTotal, MemFree and MemAvailable";
            Err(ParseError::new(1, REQUIRED, text))
        }
    }
}

fn kilobytes(value: &[u8]) -> Option<u64> {
    let mut words = parse::words(value);
    let number = parse::number(words.next()?)?;
    (words.next()? == b"kB" && words.next().is_none())
        .then(|| number.checked_mul(1024))
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_from_kilobytes() {
        let info = Meminfo::parse(
            b"MemTotal:  10 kB\nMemFree:  4 kB\nMemAvailable: 6 kB\nHugePages_Total:       0\nActive(file):   2 kB\n",
        )
        .unwrap();
        assert_eq!((info.mem_total, info.mem_free), (10_240, 4_096));
        assert_eq!((info.active_file, info.swap_total), (2_048, 0));
    }

    #[test]
    fn wrong_lines_are_refused() {
        let rest = "MemFree: 4 kB\nMemAvailable: 6 kB\n";
        for bad in [
            "",
            "MemTotal 1 kB\n",
            "MemTotal: 1\n",
            "MemTotal: 1 MB\n",
            "MemTotal: -1 kB\n",
            "MemTotal: 18446744073709551615 kB\n",
            "MemTotal: 1 kB kB\n",
        ] {
            let text = format!("{rest}{bad}");
            assert!(Meminfo::parse(text.as_bytes()).is_err(), "{bad}");
        }
    }
}
