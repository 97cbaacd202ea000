//! What is saved of a store: a preamble, which is written last, a head, and a record of each block.

use super::image::ImageState;
use super::place::{PAGE_BYTES, Place};
use super::record::{RECORD_BYTES, RECORDS, Record, Records};
use serde::{Deserialize, Serialize};
use std::io;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

const MAGIC: u64 = u64::from_le_bytes(*b"jstcwarm");

/// Advances whenever the layout or the meaning of what is saved changes. What another version has saved is dropped.
const VERSION: u64 = 1;

/// The longest head, bytes.
const MAX_HEAD: u64 = 64 << 20;

/// What is saved beside the blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    /// A random number of the end at which it was saved: tells it from what was saved at another one.
    pub(crate) end: [u64; 2],
    /// The disks that blocks are of.
    pub(crate) disks: Vec<SavedDisk>,
    /// The pools that records name.
    pub(crate) pools: Vec<SavedPool>,
}

/// A disk that was cached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SavedDisk {
    /// Its VM.
    pub(crate) vm: String,
    /// Its name.
    pub(crate) name: String,
    /// Its number, which keys have.
    pub(crate) number: u32,
    /// What it was when nothing of it was in flight any more.
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

/// Where a head and its records lie, and what they must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Preamble {
    /// Where the head begins.
    pub(crate) at: u64,
    /// Bytes of the head.
    pub(crate) head: u64,
    /// How many records follow it, from the next page on.
    pub(crate) records: u64,
    /// A checksum of the head and the records.
    pub(crate) sum: u64,
    /// With which blocks and keys are hashed.
    pub(crate) seed: u64,
}

impl Preamble {
    /// Its bytes: eight words, of which the last is a checksum.
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

    /// The preamble in these bytes; `None` when there is none, or one of another version.
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

/// Bytes that a head and so many records take.
pub(crate) fn span(head: &Head, records: u64) -> io::Result<u64> {
    let head = u64::try_from(serde_json::to_vec(head)?.len()).map_err(io::Error::other)?;
    Ok(pages(head) + pages(records * record_bytes()))
}

/// Saves a head and records, which `next` gives in portions of at most [`RECORDS`], from `at` on; an empty portion is the
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
    // All portions but the last are whole pages: they are put together here.
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

/// Reads what was saved, all of which is compared with its checksum before `each` gets a portion of the records.
///
/// # Errors
/// When something cannot be read, or is not what was saved.
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
