//! The saved state of a store: a preamble, which is written last, a head, and a record of each block.

use super::image::ImageState;
use crate::block::Key;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

const MAGIC: u64 = u64::from_le_bytes(*b"jstcwarm");

/// Advances whenever the layout or the meaning of the saved state changes. Other versions are dropped.
const VERSION: u64 = 1;

/// The longest head, bytes.
const MAX_HEAD: u64 = 64 << 20;

/// The saved state apart from the blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    /// A random number that identifies the hand-over.
    pub(crate) end: [u64; 2],
    /// The disks of the blocks.
    pub(crate) disks: Vec<SavedDisk>,
    /// The pools of the records.
    pub(crate) pools: Vec<SavedPool>,
}

/// A disk that was cached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedDisk {
    /// Its VM.
    pub(crate) vm: String,
    /// Its name.
    pub(crate) name: String,
    /// Its number in keys.
    pub(crate) number: u32,
    /// The image's state when no request was in flight.
    pub(crate) image: ImageState,
}

/// A pool that has blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedPool {
    /// Its VM.
    pub(crate) vm: String,
    /// Its name.
    pub(crate) name: String,
}

/// The place of a head and its records, and their checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Preamble {
    /// The head's offset.
    pub(crate) at: u64,
    /// Bytes of the head.
    pub(crate) head: u64,
    /// The number of records, which begin on the next page.
    pub(crate) records: u64,
    /// A checksum of the head and the records.
    pub(crate) sum: u64,
    /// The seed of the hashes of blocks and keys.
    pub(crate) seed: u64,
}

impl Preamble {
    /// Its bytes: eight words, the last of which is a checksum.
    pub(crate) fn encode(&self) -> [u8; 64] {
        let words = [
            MAGIC,
            VERSION,
            self.at,
            self.head,
            self.records,
            self.sum,
            self.seed,
        ];
        let mut bytes = [0; 64];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let sum = xxh3_64(&bytes[..56]);
        bytes[56..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// The preamble in these bytes; `None` when there is none, or it is of another version.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; 64] = bytes.first_chunk()?;
        let mut words = [0; 8];
        for (word, from) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(*from.first_chunk()?);
        }
        let [magic, version, at, head, records, sum, seed, check] = words;
        let known = magic == MAGIC && version == VERSION && check == xxh3_64(&bytes[..56]);
        known.then_some(Self {
            at,
            head,
            records,
            sum,
            seed,
        })
    }
}

/// The size of a head and its records, bytes.
pub(crate) fn span(head: &Head, records: u64) -> io::Result<u64> {
    let head = u64::try_from(serde_json::to_vec(head)?.len()).map_err(io::Error::other)?;
    Ok(pages(head) + pages(records * record_bytes()))
}

/// Saves a head and records from `at` on. `next` gives the records in portions of at most [`RECORDS`]; an empty portion is the
/// last. The caller makes them durable, and then writes the preamble.
pub(crate) fn save(
    place: &dyn Place,
    at: u64,
    seed: u64,
    head: &Head,
    mut next: impl FnMut() -> Vec<Record>,
) -> io::Result<Preamble> {
    let mut bytes = serde_json::to_vec(head)?;
    let len = u64::try_from(bytes.len()).map_err(io::Error::other)?;
    if len > MAX_HEAD {
        return Err(invalid("the names of disks and pools take over 64 MiB"));
    }
    let mut sum = Xxh3::new();
    sum.update(&bytes);
    fill_page(&mut bytes)?;
    place.write(&bytes, at)?;
    let (mut to, mut records) = (at + pages(len), 0);
    // All portions but the last are whole pages; they are assembled here.
    let mut portion = Vec::new();
    loop {
        let some = next();
        let last = some.is_empty();
        portion.extend(some);
        while portion.len() >= RECORDS || last && !portion.is_empty() {
            let rest = portion.split_off(portion.len().min(RECORDS));
            let mut bytes = Records::encode(&portion);
            sum.update(&bytes);
            records += u64::try_from(portion.len()).map_err(io::Error::other)?;
            fill_page(&mut bytes)?;
            place.write(&bytes, to)?;
            to += u64::try_from(bytes.len()).map_err(io::Error::other)?;
            portion = rest;
        }
        if last {
            break;
        }
    }
    Ok(Preamble {
        at,
        head: len,
        records,
        sum: sum.digest(),
        seed,
    })
}

/// Loads a saved state. Verifies the checksum of all of it before `each` gets a portion of the records.
///
/// # Errors
/// When it cannot be read, or is damaged.
pub(crate) fn load(
    place: &dyn Place,
    preamble: &Preamble,
    end: u64,
    begin: impl FnOnce(&Head),
    mut each: impl FnMut(&Head, Vec<Record>),
) -> io::Result<()> {
    let len = preamble.records.checked_mul(record_bytes());
    let fits = preamble.head <= MAX_HEAD && preamble.at.is_multiple_of(PAGE_BYTES);
    let len = len.filter(|len| fits && preamble.at.saturating_add(*len) <= end);
    let len = len.ok_or_else(|| invalid("its preamble names a place that does not exist"))?;
    let head_bytes = read(place, preamble.at, preamble.head)?;
    let first = preamble.at + pages(preamble.head);
    let mut sum = Xxh3::new();
    sum.update(&head_bytes);
    for (at, len) in portions(first, len) {
        sum.update(&read(place, at, len)?);
    }
    if sum.digest() != preamble.sum {
        return Err(invalid("its checksum is another"));
    }
    let head: Head = serde_json::from_slice(&head_bytes)?;
    begin(&head);
    for (at, len) in portions(first, len) {
        each(&head, Records::decode(&read(place, at, len)?));
    }
    Ok(())
}

fn portions(first: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    let step = u64::try_from(RECORDS).unwrap_or(1) * record_bytes();
    let count = len.div_ceil(step);
    (0..count).map(move |n| (first + n * step, step.min(len - n * step)))
}

fn read(place: &dyn Place, at: u64, len: u64) -> io::Result<Vec<u8>> {
    let whole = usize::try_from(pages(len)).map_err(io::Error::other)?;
    let mut bytes = vec![0; whole];
    place.read(&mut bytes, at)?;
    bytes.truncate(usize::try_from(len).map_err(io::Error::other)?);
    Ok(bytes)
}

fn fill_page(bytes: &mut Vec<u8>) -> io::Result<()> {
    let page = usize::try_from(PAGE_BYTES).map_err(io::Error::other)?;
    bytes.resize(bytes.len().next_multiple_of(page), 0);
    Ok(())
}

const fn pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE_BYTES)
}

fn record_bytes() -> u64 {
    u64::try_from(RECORD_BYTES).unwrap_or(0)
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

// The saved record of a block.

/// Bytes of a record.
const RECORD_BYTES: usize = 24;

/// The most records in a portion: 3 MiB, whole pages.
pub(crate) const RECORDS: usize = 1 << 17;

/// A block of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// The numbers of its disk and of the block.
    pub(crate) key: Key,
    /// The checksum of its content and its key. On the SSD it has the low half only, and above it the stamp.
    pub(crate) sum: u64,
    /// Its slot in the store.
    pub(crate) slot: u32,
    /// The index of its pool in the head.
    pub(crate) pool: u32,
    /// Its list in the pool's policy: 0 or 1.
    pub(crate) list: usize,
    /// Its use count, at most 3.
    pub(crate) uses: u8,
    /// It was used after it was put.
    pub(crate) reused: bool,
}

const POOL: u32 = (1 << 24) - 1;
const LIST: u32 = 1 << 24;
const REUSED: u32 = 1 << 25;
const USES: u32 = 26;

impl Record {
    fn encode(&self) -> [u8; RECORD_BYTES] {
        let flag = |set, bit| if set { bit } else { 0 };
        let place = self.pool & POOL
            | flag(self.list != 0, LIST)
            | flag(self.reused, REUSED)
            | u32::from(self.uses & 3) << USES;
        let mut bytes = [0; RECORD_BYTES];
        bytes[..8].copy_from_slice(&self.key.raw().to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sum.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.slot.to_le_bytes());
        bytes[20..].copy_from_slice(&place.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (key, rest) = bytes.split_first_chunk()?;
        let (sum, rest) = rest.split_first_chunk()?;
        let (slot, rest) = rest.split_first_chunk()?;
        let place = u32::from_le_bytes(*rest.first_chunk()?);
        Some(Self {
            key: Key::from_raw(u64::from_le_bytes(*key)),
            sum: u64::from_le_bytes(*sum),
            slot: u32::from_le_bytes(*slot),
            pool: place & POOL,
            list: usize::from(place & LIST != 0),
            uses: u8::try_from(place >> USES & 3).unwrap_or(0),
            reused: place & REUSED != 0,
        })
    }
}

/// Records as bytes, a portion at a time.
pub(crate) struct Records;

impl Records {
    /// The bytes of some records.
    pub(super) fn encode(records: &[Record]) -> Vec<u8> {
        records.iter().flat_map(Record::encode).collect()
    }

    /// The records in these bytes; an incomplete last one is ignored.
    pub(super) fn decode(bytes: &[u8]) -> Vec<Record> {
        let whole = bytes.chunks_exact(RECORD_BYTES);
        whole.filter_map(Record::decode).collect()
    }
}

// Results of a restore.

/// The result of restoring a store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Restored {
    /// Blocks that are cached again.
    pub(crate) blocks: u64,
    /// Dropped blocks, by reason.
    pub(crate) dropped: BTreeMap<String, u64>,
}

impl Restored {
    /// Counts dropped blocks.
    pub(crate) fn drop(&mut self, blocks: u64, why: impl Into<String>) {
        if blocks > 0 {
            *self.dropped.entry(why.into()).or_default() += blocks;
        }
    }

    /// Logs the result for `store`.
    pub(crate) fn log(&self, store: &str) {
        if self.blocks > 0 {
            tracing::info!("{} blocks of {store} are cached as before", self.blocks);
        }
        for (why, blocks) in &self.dropped {
            tracing::warn!("{blocks} blocks of {store} are not used again: {why}");
        }
    }
}

// Places of saved states: a memfd, or the SSD store's device.

/// The unit of saved states: direct I/O needs whole pages.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// A place for a saved state. Offsets and lengths are multiples of [`PAGE_BYTES`].
pub(crate) trait Place {
    /// Writes all of `bytes`.
    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()>;
    /// Fills `bytes`.
    fn read(&self, bytes: &mut [u8], at: u64) -> io::Result<()>;
}

/// A memfd, accessed by system calls: truncation then causes an error, not a signal.
pub(crate) struct Memfd<'a>(pub(crate) &'a File);

impl Place for Memfd<'_> {
    fn write(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, at)
    }

    fn read(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.0.read_exact_at(bytes, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_record_comes_back(key: u64, sum: u64, slot: u32, pool in 0_u32..1 << 24, list in 0_usize..2, uses in 0_u8..4, reused: bool) {
            let record = Record { key: Key::from_raw(key), sum, slot, pool, list, uses, reused };
            prop_assert_eq!(Records::decode(&Records::encode(&[record])), [record]);
        }
    }
}
