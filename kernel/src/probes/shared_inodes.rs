//! Files whose pages are charged to one cgroup and used by others, as `bpf/shared.bpf.c` keeps them.
//!
//! A file's cached pages are divided into at most 1,024 parts of `2^shift` pages. One page, chosen at random, represents
//! each part: the probe marks a part when that page is accessed. A part of which a tenth is accessed is marked in a tenth of
//! the cases, so the marked parts times their size estimate the pages accessed. The standard deviation is at most half a
//! part for each part that is accessed partly: at most 2.3 % of what is cached of a file beyond 512 parts, and nothing for a
//! file of up to 4 MiB or for a reader of all of it. Pages that are further apart than 1,024 parts may count less, never
//! more.

use std::cmp::Reverse;
use std::collections::HashMap;

use libbpf_rs::MapCore as _;
use libbpf_rs::{Btf, MapFlags};
use serde::{Deserialize, Serialize};

use super::limits::{Limits, ProbeError};
use super::object::{ObjectSpec, ProbeObject, kernel_types};
use super::probe::{self, Probe, ProbeStatus};
use crate::PAGE_SIZE;
use crate::capabilities::State;
use crate::cgroup::CgroupId;

/// How many entries of the map are read at once.
const BATCH: u32 = 256;
const USES: &str = "shared_uses";
/// The number of uses seen for the first time, whether the map has them or not.
const SEEN: &str = ".data.drops";

/// A file whose cached pages are charged to one cgroup and used by another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedInode {
    /// The filesystem's device, as the kernel numbers it internally (major << 20 | minor).
    pub device: u32,
    /// The inode's number there.
    pub inode: u64,
    /// The inode's generation: another file that gets the same number later has another.
    pub generation: u32,
    /// Whether the file was mapped when it was last used.
    pub mapped: bool,
    /// Bytes of it in the page cache when it was last used.
    pub cached: u64,
    /// Its uses, most bytes first.
    pub uses: Vec<SharedUse>,
}

/// One cgroup's use of pages that are charged to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedUse {
    /// The cgroup whose tasks read the pages.
    pub user: CgroupId,
    /// The cgroup to which they are charged.
    pub charged: CgroupId,
    /// Bytes of the different pages that were read, each counted once: an estimate with a standard deviation of at most
    /// 2.3 % of what is cached.
    pub bytes: u64,
}

/// The probe, attached only while it is read.
#[derive(Debug)]
pub(super) struct SharedInodeProbe {
    max_files: u32,
    status: Vec<ProbeStatus>,
    attached: Option<ProbeObject>,
    /// Uses that were dropped up to the last time that the probe was detached.
    dropped: u64,
}

impl SharedInodeProbe {
    pub(super) fn new(limits: &Limits, types: &Btf<'_>) -> Result<Self, ProbeError> {
        let max_files = limits.max_shared_files;
        Ok(Self {
            max_files,
            status: spec(&[(USES, max_files)]).status(types)?,
            attached: None,
            dropped: 0,
        })
    }

    pub(super) fn status(&self) -> &[ProbeStatus] {
        &self.status
    }

    /// Attaches or detaches the probe. Attached anew, it counts from zero.
    pub(super) fn switch(&mut self, on: bool) -> Result<(), ProbeError> {
        self.dropped = self.dropped().unwrap_or(self.dropped);
        self.attached = None;
        if !on {
            return Ok(());
        }
        let types = kernel_types()?;
        let mut object = ProbeObject::load(&spec(&[(USES, self.max_files)]), &types)?;
        object.attach();
        if let Some(failed) = object.status().iter().find(|one| one.state != State::Yes) {
            self.status = vec![failed.clone()];
            return Err(ProbeError::Unsupported {
                probe: Probe::SharedInodes.title(),
                reason: failed.reason.clone(),
            });
        }
        self.attached = Some(object);
        Ok(())
    }

    /// The `most` files that are used most.
    pub(super) fn files(&self, most: usize) -> Result<Vec<SharedInode>, ProbeError> {
        Ok(by_file(self.entries()?, most))
    }

    /// Uses that were dropped because the map was full.
    pub(super) fn dropped(&self) -> Result<u64, ProbeError> {
        let Some(object) = &self.attached else {
            return Ok(self.dropped);
        };
        let seen = object
            .map(SEEN)?
            .lookup(&0_u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(|error| refused(SEEN, &error))?;
        let seen = seen.and_then(|bytes| words(&bytes).next()).unwrap_or(0);
        let kept = u64::try_from(self.entries()?.len()).unwrap_or(u64::MAX);
        Ok(self.dropped + seen.saturating_sub(kept))
    }

    fn entries(&self) -> Result<Vec<UseEntry>, ProbeError> {
        let Some(object) = &self.attached else {
            return Ok(Vec::new());
        };
        let map = object.map(USES)?;
        let entries = map
            .lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY)
            .map_err(|error| refused(USES, &error))?;
        let decoded = entries
            .filter_map(|(key, value)| UseEntry::decode(&mut words(&key), &mut words(&value)));
        Ok(decoded.collect())
    }
}

const fn spec<'a>(map_sizes: &'a [(&'a str, u32)]) -> ObjectSpec<'a> {
    ObjectSpec {
        object: include_bytes!(concat!(env!("OUT_DIR"), "/shared.bpf.o")),
        programs: probe::SHARED,
        map_sizes,
        config: &[],
    }
}

fn refused(map: &'static str, error: &libbpf_rs::Error) -> ProbeError {
    let reason = error.to_string();
    ProbeError::Map { map, reason }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| u64::from_ne_bytes(*word))
}

/// An entry of the map `shared_uses`.
struct UseEntry {
    device: u32,
    inode: u64,
    generation: u32,
    cached: u64,
    mapped: bool,
    used: SharedUse,
}

impl UseEntry {
    /// Decodes a `struct use_key` and a `struct usage`.
    fn decode(
        key: &mut dyn Iterator<Item = u64>,
        value: &mut dyn Iterator<Item = u64>,
    ) -> Option<Self> {
        let inode = key.next()?;
        let (user, charged) = (CgroupId(key.next()?), CgroupId(key.next()?));
        let device = u32::try_from(key.next()?).ok()?;
        let cached = value.next()? * PAGE_SIZE;
        let generation = u32::try_from(value.next()?).ok()?;
        let mapped = value.next()? != 0;
        let (shift, _seed) = (value.next()?, value.next()?);
        let bytes = pages(shift, value).saturating_mul(PAGE_SIZE).min(cached);
        Some(Self {
            device,
            inode,
            generation,
            cached,
            mapped,
            used: SharedUse {
                user,
                charged,
                bytes,
            },
        })
    }
}

/// The `most` files with the most bytes used, the most used first.
fn by_file(entries: Vec<UseEntry>, most: usize) -> Vec<SharedInode> {
    let mut inodes: HashMap<(u32, u64, u32), SharedInode> = HashMap::new();
    for entry in entries {
        let key = (entry.device, entry.inode, entry.generation);
        let inode = inodes.entry(key).or_insert(SharedInode {
            device: entry.device,
            inode: entry.inode,
            generation: entry.generation,
            mapped: false,
            cached: 0,
            uses: Vec::new(),
        });
        inode.cached = inode.cached.max(entry.cached);
        inode.mapped |= entry.mapped;
        inode.uses.push(entry.used);
    }
    let mut inodes: Vec<_> = inodes.into_values().collect();
    for inode in &mut inodes {
        inode.uses.sort_by_key(|one| Reverse(one.bytes));
    }
    let bytes = |inode: &SharedInode| inode.uses.iter().map(|one| one.bytes).sum::<u64>();
    inodes.sort_by_key(|inode| (Reverse(bytes(inode)), inode.device, inode.inode));
    inodes.truncate(most);
    inodes
}

/// An estimate of how many different pages were accessed.
fn pages(shift: u64, marked: impl Iterator<Item = u64>) -> u64 {
    let parts: u32 = marked.map(u64::count_ones).sum();
    let size = u32::try_from(shift)
        .ok()
        .and_then(|shift| 1_u64.checked_shl(shift))
        .unwrap_or(u64::MAX);
    u64::from(parts).saturating_mul(size)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(inode: u64, user: u64, cached_pages: u64, parts: u64) -> UseEntry {
        let mut key = [inode, user, 1, 8 << 20].into_iter();
        let mut value = [cached_pages, 7, 0, 0, 99, parts].into_iter();
        UseEntry::decode(&mut key, &mut value).unwrap()
    }

    #[test]
    fn marked_parts_times_their_size() {
        assert_eq!(pages(0, [0, 0].into_iter()), 0);
        assert_eq!(pages(0, [u64::MAX, 1].into_iter()), 65);
        assert_eq!(pages(9, [0b101].into_iter()), 1024);
        assert_eq!(pages(64, [1].into_iter()), u64::MAX);
    }

    #[test]
    fn the_most_used_files_come_first_with_their_users() {
        let entries = || {
            vec![
                entry(12, 2, 10, 0b1),
                entry(13, 2, 2, 0b111),
                entry(12, 3, 20, 0b11),
            ]
        };
        let found = by_file(entries(), 9);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].inode, found[0].generation), (12, 7));
        assert_eq!(found[0].cached, 20 * PAGE_SIZE);
        let users: Vec<_> = found[0].uses.iter().map(|one| one.user.0).collect();
        assert_eq!(users, [3, 2]);
        assert_eq!(found[1].uses[0].bytes, 2 * PAGE_SIZE, "no more than cached");
        assert_eq!(by_file(entries(), 1).len(), 1);
        assert!(UseEntry::decode(&mut [1].into_iter(), &mut [1].into_iter()).is_none());
    }
}
