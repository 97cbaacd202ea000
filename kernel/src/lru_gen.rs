//! Reclaim from the root cgroup alone, by the multi-gen LRU's debugfs interface.
//!
//! `memory.reclaim` of the root works on the whole machine. Where the multi-gen LRU runs,
//! `/sys/kernel/debug/lru_gen` takes an eviction command for one memory cgroup and one node
//! (Documentation/admin-guide/mm/multigen_lru.rst, "Proactive reclaim"), the root's own list included.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::buffer::read_path;
use crate::error::{Error, Operation, Result};

/// The debugfs file of the multi-gen LRU.
pub const PATH: &str = "/sys/kernel/debug/lru_gen";

/// The two youngest generations cannot be evicted (`MIN_NR_GENS` in the kernel).
const YOUNG: u64 = 2;

/// The generations of the root cgroup on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LruGen {
    /// The root's memory cgroup id, as the interface wants it.
    pub memcg: u32,
    /// The memory node.
    pub node: u32,
    /// The number of the youngest generation.
    pub youngest: u64,
    /// The number of the oldest one.
    pub oldest: u64,
    /// File pages in generations that can be evicted now.
    pub evictable_file: u64,
}

/// The parts of the multi-gen LRU that are on, from `sys/kernel/mm/lru_gen/enabled`: it runs where bit 0 is set. `None` if
/// the file holds no such number.
///
/// # Errors
/// If the file cannot be read; missing where the kernel has none.
pub fn enabled(sys: &Path) -> Result<Option<u32>> {
    read_path(&sys.join("kernel/mm/lru_gen/enabled"), |text| {
        let digits = str::from_utf8(text.trim_ascii().strip_prefix(b"0x")?).ok()?;
        u32::from_str_radix(digits, 16).ok()
    })
}

impl LruGen {
    /// Reads the root's generations from the beginning of the file; the root comes first there.
    ///
    /// # Errors
    /// If the file cannot be read (no debugfs, no multi-gen LRU, not root).
    pub fn read_root(path: &Path) -> Result<Vec<Self>> {
        // One page of text holds the root's generations on any plausible number of nodes.
        let mut text = vec![0; 4096];
        let mut file = File::open(path).map_err(|e| io(Operation::Open, path, &e))?;
        let read = file
            .read(&mut text)
            .map_err(|e| io(Operation::Read, path, &e))?;
        text.truncate(read);
        Ok(parse(&String::from_utf8_lossy(&text)))
    }

    /// Evicts up to `pages` clean file pages of the evictable generations, no anonymous ones.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn evict(&self, path: &Path, pages: u64) -> Result<()> {
        let upto = self.youngest.saturating_sub(YOUNG);
        command(
            path,
            &format!("- {} {} {upto} 0 {pages}", self.memcg, self.node),
        )
    }

    /// Starts a new generation, so that pages which are not accessed from now on become evictable.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn age(&self, path: &Path) -> Result<()> {
        command(
            path,
            &format!("+ {} {} {} 0 0", self.memcg, self.node, self.youngest),
        )
    }
}

fn command(path: &Path, text: &str) -> Result<()> {
    let mut file = File::options()
        .write(true)
        .open(path)
        .map_err(|e| io(Operation::Open, path, &e))?;
    file.write_all(text.as_bytes())
        .map_err(|e| io(Operation::Write, path, &e))
}

fn io(operation: Operation, path: &Path, error: &std::io::Error) -> Error {
    let errno = error
        .raw_os_error()
        .map_or(Errno::IO, Errno::from_raw_os_error);
    Error::Io {
        operation,
        path: PathBuf::from(path),
        errno,
    }
}

/// The first memory cgroup of the text, node by node. A line of another format ends it.
#[must_use]
pub fn parse(text: &str) -> Vec<LruGen> {
    let mut found: Vec<LruGen> = Vec::new();
    let mut memcg = None;
    let mut lists: Vec<Vec<(u64, u64)>> = Vec::new();
    for line in text.split_inclusive('\n').filter(|l| l.ends_with('\n')) {
        let mut words = line.split_whitespace();
        match (words.next(), memcg) {
            (Some("memcg"), None) => memcg = words.next().and_then(|id| id.parse::<u32>().ok()),
            (Some("memcg"), Some(_)) => break,
            (Some("node"), Some(memcg)) => {
                let Some(node) = words.next().and_then(|n| n.parse().ok()) else {
                    break;
                };
                found.push(LruGen {
                    memcg,
                    node,
                    youngest: 0,
                    oldest: 0,
                    evictable_file: 0,
                });
                lists.push(Vec::new());
            }
            (Some(seq), Some(_)) => {
                let mut numbers = words.map(str::parse::<u64>);
                let (Ok(seq), Some(list)) = (seq.parse::<u64>(), lists.last_mut()) else {
                    break;
                };
                // seq, age in ms, anonymous pages, file pages; negative counts are in flux
                let file = numbers
                    .nth(2)
                    .and_then(std::result::Result::ok)
                    .unwrap_or(0);
                list.push((seq, file));
            }
            _ => break,
        }
    }
    for (generations, list) in found.iter_mut().zip(&lists) {
        generations.youngest = list.iter().map(|g| g.0).max().unwrap_or(0);
        generations.oldest = list.iter().map(|g| g.0).min().unwrap_or(0);
        generations.evictable_file = list
            .iter()
            .filter(|g| g.0.saturating_add(YOUNG) <= generations.youngest)
            .fold(0, |sum, g| sum.saturating_add(g.1));
    }
    found.retain(|g| g.youngest > 0);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "memcg     1 /\n node     0\n          0      10940        162          0 \n          \
                        1      10940        180       2110 \n          2      10940          5        120 \n          \
                        3      10940          7         99 \nmemcg    18 /init.scope\n node     0\n          0 1 2 3 \n";

    #[test]
    fn the_first_cgroup_is_the_root() {
        let expected = LruGen {
            memcg: 1,
            node: 0,
            youngest: 3,
            oldest: 0,
            evictable_file: 2110,
        };
        assert_eq!(parse(TEXT), [expected]);
    }

    #[test]
    fn other_formats_and_cut_lines_are_ignored() {
        assert!(parse("").is_empty());
        assert!(
            parse("memcg 1 /\n node 0\n  3 1 2").is_empty(),
            "a line that is cut"
        );
        assert!(parse("memcg x /\n node 0\n 3 1 2 3\n").is_empty());
        for cut in 0..TEXT.len() {
            let _ = parse(&TEXT[..cut]);
        }
    }
}
