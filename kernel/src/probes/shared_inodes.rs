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

use super::{SharedInode, SharedUse};
use crate::PAGE_SIZE;
use crate::cgroup::CgroupId;

/// An entry of the map `shared_uses`.
pub(super) struct UseEntry {
    device: u32,
    inode: u64,
    generation: u32,
    cached: u64,
    mapped: bool,
    used: SharedUse,
}

impl UseEntry {
    /// Decodes a `struct use_key` and a `struct usage`.
    pub(super) fn decode(
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
pub(super) fn by_file(entries: Vec<UseEntry>, most: usize) -> Vec<SharedInode> {
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
