//! The answer area, which is read from the port.
//!
//! Its first page: magic (8 bytes), version (u16), answers (u16), rows of the pool table (u32), the host's start (u64), the
//! highest sequence number (u64), the sequence number of the last GET_STATS (u64), messages handled (u64), malformed writes
//! (u64), messages replayed (u64), offered blocks by verdict (16 × u64), offered blocks with an unknown pool (u64), the highest
//! version of messages (u64), missed and hit blocks and their read times (4 × u64); from byte 1024 on 48 answers of 64 bytes. The
//! pool table follows the page.

use crate::puts::answer::{ANSWER, Answer, PLACES, Tally};
use crate::puts::command::Store;
use crate::puts::header::{array, set, u16_at, u32_at, u64_at};
use crate::puts::name::Name;
use crate::puts::{AREA_VERSION, MAX_ANSWERS, MAX_POOLS, PAGE, PORT_SIZE};

const MAGIC: [u8; 8] = *b"JUSTANSW";

/// Where the answers begin; they end at [`PAGE`].
const ANSWERS: usize = 1024;

/// Blocks of the VM's disks that were read, and the sum of their read times. Both grow, but may go back when a pool is gone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadTime {
    /// Blocks; 0: unknown.
    pub blocks: u64,
    /// Nanoseconds.
    pub ns: u64,
}

/// The area's header: figures of the whole port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AreaHeader {
    /// The id of this start of the host's daemon: when it changes, pools and the known blocks are gone.
    pub daemon_start_id: u64,
    /// The highest sequence number that was handled.
    pub sequence: u64,
    /// The sequence number of the GET_STATS from which the pool table's figures are; 0 before the first.
    pub stats_sequence: u64,
    /// Messages handled.
    pub messages: u64,
    /// Malformed writes and messages.
    pub malformed: u64,
    /// Messages that were handled before, or were too old.
    pub replayed: u64,
    /// Offered blocks, by verdict.
    pub verdicts: Tally,
    /// Offered blocks with an unknown pool number: they belong to the default pool.
    pub unknown_pool: u64,
    /// The highest version of messages that the host understands. A host that does not say has 0, which means 1.
    pub max_message_version: u64,
    /// Disk reads of blocks that the cache lacked, as of that GET_STATS.
    pub missed: ReadTime,
    /// Reads that the cache answered, as of that GET_STATS: a sample of them.
    pub hit: ReadTime,
}

/// Writes an area.
#[derive(Debug)]
pub struct AreaWriter<'a>(&'a mut [u8; PORT_SIZE]);

impl<'a> AreaWriter<'a> {
    /// Clears `area` and begins it.
    pub fn new(area: &'a mut [u8; PORT_SIZE]) -> Self {
        area.fill(0);
        set(area, 0, MAGIC);
        set(area, 8, AREA_VERSION.to_le_bytes());
        Self(area)
    }

    /// Writes into an area that was written before.
    pub const fn again(area: &'a mut [u8; PORT_SIZE]) -> Self {
        Self(area)
    }

    /// Writes the header.
    pub fn header(&mut self, header: &AreaHeader) {
        let words = [
            header.daemon_start_id,
            header.sequence,
            header.stats_sequence,
            header.messages,
            header.malformed,
            header.replayed,
        ];
        let counts = header.verdicts.counts().iter().copied();
        let words = words
            .into_iter()
            .chain(counts)
            .chain([header.unknown_pool, header.max_message_version])
            .chain(
                [header.missed, header.hit]
                    .into_iter()
                    .flat_map(|of| [of.blocks, of.ns]),
            );
        for (at, word) in (16..).step_by(8).zip(words) {
            set(self.0, at, word.to_le_bytes());
        }
    }

    /// Writes the answers, newest first; at most [`MAX_ANSWERS`].
    pub fn answers<'b>(&mut self, answers: impl Iterator<Item = &'b Answer>) {
        let mut count = 0_u16;
        let places = self.0.get_mut(ANSWERS..PAGE).unwrap_or_default();
        let (places, _) = places.as_chunks_mut::<ANSWER>();
        for (place, answer) in places.iter_mut().zip(answers) {
            answer.encode(place);
            count = count.saturating_add(1);
        }
        set(self.0, 10, count.to_le_bytes());
    }

    /// Writes the pool table; at most [`MAX_POOLS`] rows.
    pub fn pools(&mut self, rows: impl Iterator<Item = PoolRow>) {
        let mut count = 0_u32;
        let places = self.0.get_mut(PAGE..).unwrap_or_default();
        let (places, _) = places.as_chunks_mut::<ROW>();
        for (place, row) in places.iter_mut().zip(rows.take(MAX_POOLS)) {
            row.encode(place);
            count = count.saturating_add(1);
        }
        set(self.0, 12, count.to_le_bytes());
    }
}

/// An area that a guest has read, the whole port or its beginning.
#[derive(Clone, Copy, Debug)]
pub struct Area<'a>(&'a [u8]);

impl<'a> Area<'a> {
    /// `None` when it is no area of this version, or shorter than its first page.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Option<Self> {
        bytes.first_chunk::<PAGE>()?;
        let known = array(bytes, 0)? == MAGIC && u16_at(bytes, 8)? == AREA_VERSION;
        known.then_some(Self(bytes))
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> AreaHeader {
        let word = |at| u64_at(self.0, at).unwrap_or(0);
        let mut counts = [0; PLACES];
        for (at, count) in (64..).step_by(8).zip(&mut counts) {
            *count = word(at);
        }
        AreaHeader {
            daemon_start_id: word(16),
            sequence: word(24),
            stats_sequence: word(32),
            messages: word(40),
            malformed: word(48),
            replayed: word(56),
            verdicts: Tally::from_counts(counts),
            unknown_pool: word(192),
            max_message_version: word(200),
            missed: ReadTime {
                blocks: word(208),
                ns: word(216),
            },
            hit: ReadTime {
                blocks: word(224),
                ns: word(232),
            },
        }
    }

    /// The answers, newest first. Answers that this version does not understand are left out.
    pub fn answers(&self) -> impl Iterator<Item = Answer> + use<'a> {
        let count = usize::from(u16_at(self.0, 10).unwrap_or(0));
        let places = self.0.get(ANSWERS..PAGE).unwrap_or_default();
        let (places, _) = places.as_chunks::<ANSWER>();
        let places = places.iter().take(count.min(MAX_ANSWERS));
        places.filter_map(Answer::decode)
    }

    /// The answer to a message, while the area has it.
    #[must_use]
    pub fn answer(&self, sequence: u64) -> Option<Answer> {
        self.answers().find(|answer| answer.sequence == sequence)
    }

    /// The pool table, as far as it was read. Rows that this version does not understand are left out.
    pub fn pools(&self) -> impl Iterator<Item = PoolRow> + use<'a> {
        let count = u32_at(self.0, 12).unwrap_or(0);
        let count = usize::try_from(count).unwrap_or(MAX_POOLS);
        let (places, _) = self.0.get(PAGE..).unwrap_or_default().as_chunks::<ROW>();
        let places = places.iter().take(count.min(MAX_POOLS));
        places.filter_map(PoolRow::decode)
    }
}

// The pool table: one row a pool.
//
// 256 bytes: number (u32), weight (u32), store (u8), length of the name (u8), flags (u16: bit 0 created over the port,
// bit 1 says what was taken), 0 (u32), then u64 each: entitlement, memory, SSD (bytes), lookups, hits, insertions,
// insertions dropped, evictions, invalidations, blocks offered, blocks accepted; the weight on the SSD of a pool in
// both stores (u32), 0 (u32), blocks taken (u64); 0; at byte 192 the name (64 bytes).

/// Bytes of a row.
pub(crate) const ROW: usize = 256;

const CREATED_OVER_THE_PORT: u16 = 1;
const SAYS_TAKEN: u16 = 2;

/// A pool of the VM, as the host sees it. The figures are as of the GET_STATS that the area's header names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolRow {
    /// Its number; 0 is the pool of blocks that belong to no container.
    pub number: u32,
    /// Its name, cut to 64 bytes.
    pub name: Name,
    /// Its weight among the VM's pools in its store.
    pub weight: u32,
    /// Where its new blocks go.
    pub store: Store,
    /// Its weight on the SSD, if it is in both stores; otherwise 0.
    pub ssd_weight: u32,
    /// Whether it was created over the port. The others are the host's, and cannot be destroyed over the port.
    pub created_over_port: bool,
    /// Its entitlement, bytes.
    pub entitlement_bytes: u64,
    /// The bytes that it holds in memory.
    pub memory_bytes: u64,
    /// The bytes that it holds on the SSD.
    pub ssd_bytes: u64,
    /// Blocks looked up.
    pub gets: u64,
    /// Of these, blocks found.
    pub hits: u64,
    /// Blocks inserted, by a put or by a miss.
    pub insertions: u64,
    /// Blocks that could not be inserted.
    pub insertions_dropped: u64,
    /// Blocks evicted.
    pub evictions: u64,
    /// Blocks removed by writes.
    pub invalidations: u64,
    /// Blocks offered for it over the port.
    pub offered: u64,
    /// Of these, blocks accepted.
    pub accepted: u64,
    /// Its blocks that reads of any pool took out of it (exclusive mode); `None` if the host does not say.
    pub taken: Option<u64>,
}

impl PoolRow {
    /// A pool that holds nothing.
    #[must_use]
    pub const fn new(number: u32, name: Name) -> Self {
        Self {
            number,
            name,
            weight: 0,
            store: Store::Memory,
            ssd_weight: 0,
            created_over_port: false,
            entitlement_bytes: 0,
            memory_bytes: 0,
            ssd_bytes: 0,
            gets: 0,
            hits: 0,
            insertions: 0,
            insertions_dropped: 0,
            evictions: 0,
            invalidations: 0,
            offered: 0,
            accepted: 0,
            taken: None,
        }
    }

    pub(crate) fn encode(&self, bytes: &mut [u8; ROW]) {
        bytes.fill(0);
        let (name, len) = self.name.encode();
        set(bytes, 0, self.number.to_le_bytes());
        set(bytes, 4, self.weight.to_le_bytes());
        set(bytes, 8, [self.store as u8, len]);
        let flag = |bit: u16, on: bool| if on { bit } else { 0 };
        let flags = flag(CREATED_OVER_THE_PORT, self.created_over_port)
            | flag(SAYS_TAKEN, self.taken.is_some());
        set(bytes, 10, flags.to_le_bytes());
        let figures = [
            self.entitlement_bytes,
            self.memory_bytes,
            self.ssd_bytes,
            self.gets,
            self.hits,
            self.insertions,
            self.insertions_dropped,
            self.evictions,
            self.invalidations,
            self.offered,
            self.accepted,
        ];
        for (at, figure) in (16..).step_by(8).zip(figures) {
            set(bytes, at, figure.to_le_bytes());
        }
        set(bytes, 104, self.ssd_weight.to_le_bytes());
        set(bytes, 112, self.taken.unwrap_or(0).to_le_bytes());
        set(bytes, 192, name);
    }

    /// `None` when the name or the store is invalid.
    pub(crate) fn decode(bytes: &[u8; ROW]) -> Option<Self> {
        let [store, len] = array(bytes, 8)?;
        let flags = u16_at(bytes, 10)?;
        let taken = u64_at(bytes, 112)?;
        let figure = |n: usize| u64_at(bytes, n.checked_mul(8)?.checked_add(16)?);
        Some(Self {
            number: u32_at(bytes, 0)?,
            name: Name::decode(array(bytes, 192)?, len)?,
            weight: u32_at(bytes, 4)?,
            store: Store::from_number(store)?,
            ssd_weight: u32_at(bytes, 104)?,
            created_over_port: flags & CREATED_OVER_THE_PORT != 0,
            entitlement_bytes: figure(0)?,
            memory_bytes: figure(1)?,
            ssd_bytes: figure(2)?,
            gets: figure(3)?,
            hits: figure(4)?,
            insertions: figure(5)?,
            insertions_dropped: figure(6)?,
            evictions: figure(7)?,
            invalidations: figure(8)?,
            offered: figure(9)?,
            accepted: figure(10)?,
            taken: (flags & SAYS_TAKEN != 0).then_some(taken),
        })
    }
}
