//! The results of a message and of its blocks.

use crate::puts::header::{set, u16_at, u32_at, u64_at};

// Answers: the result of a message.
//
// 64 bytes: sequence (u64), kind (u16), status (u16), pool (u32), accepted blocks as bits (u32), blocks (u32), blocks by
// verdict (16 × u16), 0 (8 bytes).

/// Bytes of an answer.
pub(crate) const ANSWER: usize = 64;

/// The result of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The message's sequence number.
    pub sequence: u64,
    /// The number of its kind.
    pub kind: u16,
    /// The result.
    pub status: Status,
    /// The pool that was created; for a put the pool of its blocks.
    pub pool: u32,
    /// Of a put: bit n is set if block n was accepted.
    pub accepted: u32,
    /// Of a put: its blocks by verdict. Of MIGRATE: `Accepted` counts the blocks that changed their pool.
    pub verdicts: Tally,
}

impl Answer {
    /// An answer without blocks.
    #[must_use]
    pub fn new(sequence: u64, kind: u16, status: Status) -> Self {
        Self {
            sequence,
            kind,
            status,
            pool: 0,
            accepted: 0,
            verdicts: Tally::default(),
        }
    }

    /// Counts block `at` of a put.
    pub fn record(&mut self, at: usize, verdict: Verdict) {
        self.verdicts.add(verdict, 1);
        let bit = u32::try_from(at).ok().and_then(|at| 1_u32.checked_shl(at));
        if let (Verdict::Accepted, Some(bit)) = (verdict, bit) {
            self.accepted |= bit;
        }
    }

    pub(crate) fn encode(&self, bytes: &mut [u8; ANSWER]) {
        bytes.fill(0);
        set(bytes, 0, self.sequence.to_le_bytes());
        set(bytes, 8, self.kind.to_le_bytes());
        set(bytes, 10, (self.status as u16).to_le_bytes());
        set(bytes, 12, self.pool.to_le_bytes());
        set(bytes, 16, self.accepted.to_le_bytes());
        let total = u32::try_from(self.verdicts.total()).unwrap_or(u32::MAX);
        set(bytes, 20, total.to_le_bytes());
        for (at, count) in (24..).step_by(2).zip(self.verdicts.counts()) {
            let count = u16::try_from(*count).unwrap_or(u16::MAX);
            set(bytes, at, count.to_le_bytes());
        }
    }

    /// `None` when this version does not have the status.
    pub(crate) fn decode(bytes: &[u8; ANSWER]) -> Option<Self> {
        let mut counts = [0; PLACES];
        for (at, count) in (24..).step_by(2).zip(&mut counts) {
            *count = u64::from(u16_at(bytes, at)?);
        }
        Some(Self {
            sequence: u64_at(bytes, 0)?,
            kind: u16_at(bytes, 8)?,
            status: Status::from_number(u16_at(bytes, 10)?)?,
            pool: u32_at(bytes, 12)?,
            accepted: u32_at(bytes, 16)?,
            verdicts: Tally::from_counts(counts),
        })
    }
}

// The results of offered blocks.

/// The result of an offered block. The numbers are the protocol's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// It is in the cache now.
    Accepted = 0,
    /// The cache holds it already.
    Held = 1,
    /// The host does not know the block's content. This VM has not read or written the whole block since the host's start; or the
    /// block was changed or accepted since; or it was dropped from the residency table.
    Unknown = 2,
    /// The content is not that of the disk: stale, encrypted, forged, or another block's.
    Mismatch = 3,
    /// A write to the block or near it was under way.
    Raced = 4,
    /// The pool's store has no room.
    NoRoom = 5,
    /// It is no whole block of the disk.
    OutOfRange = 6,
    /// No cached disk of this VM has the serial.
    NoDisk = 7,
    /// The message was handled before, or is too old.
    Replayed = 8,
}

impl Verdict {
    /// All, by number.
    pub const ALL: [Self; 9] = [
        Self::Accepted,
        Self::Held,
        Self::Unknown,
        Self::Mismatch,
        Self::Raced,
        Self::NoRoom,
        Self::OutOfRange,
        Self::NoDisk,
        Self::Replayed,
    ];

    /// Its name in statistics and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Accepted => "accepted",
            Self::Held => "held",
            Self::Unknown => "unknown",
            Self::Mismatch => "mismatch",
            Self::Raced => "raced",
            Self::NoRoom => "no_room",
            Self::OutOfRange => "out_of_range",
            Self::NoDisk => "no_disk",
            Self::Replayed => "replayed",
        }
    }
}

/// Places for counts by verdict. Those without a verdict are 0, for later versions.
pub(crate) const PLACES: usize = 16;

/// Counts of blocks, by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally([u64; PLACES]);

impl Tally {
    /// Counts blocks.
    pub fn add(&mut self, verdict: Verdict, blocks: u64) {
        if let Some(count) = self.0.get_mut(verdict as usize) {
            *count = count.saturating_add(blocks);
        }
    }

    /// Adds the counts of another tally.
    pub fn add_all(&mut self, other: &Self) {
        for (count, more) in self.0.iter_mut().zip(other.0) {
            *count = count.saturating_add(more);
        }
    }

    /// Blocks with this verdict.
    #[must_use]
    pub fn of(&self, verdict: Verdict) -> u64 {
        self.0.get(verdict as usize).copied().unwrap_or(0)
    }

    /// Blocks with any verdict.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().fold(0, |sum, n| sum.saturating_add(*n))
    }

    pub(crate) const fn counts(&self) -> &[u64; PLACES] {
        &self.0
    }

    pub(crate) const fn from_counts(counts: [u64; PLACES]) -> Self {
        Self(counts)
    }
}

// The results of messages.

/// The result of a message. The numbers are the protocol's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Status {
    /// Handled; a put's blocks have verdicts of their own.
    Done = 0,
    /// The message is malformed.
    Malformed = 1,
    /// The host does not know its version.
    Version = 2,
    /// Too many commands lately: try again later.
    Busy = 3,
    /// The VM has no pool of that number.
    NoPool = 4,
    /// The VM has a pool of that name.
    PoolExists = 5,
    /// The VM has the most pools allowed.
    TooManyPools = 6,
    /// The weight is not from 1 to 10000.
    Weight = 7,
    /// The VM's guest may not choose the SSD store.
    Store = 8,
    /// The pool is the host's: it was not created over the port.
    NotYours = 9,
    /// No cached disk of this VM has the serial.
    NoDisk = 10,
    /// MIGRATE of more blocks than one message may name.
    TooLong = 11,
    /// The host cannot do it now.
    Failed = 12,
}

impl Status {
    /// All, by number.
    pub const ALL: [Self; 13] = [
        Self::Done,
        Self::Malformed,
        Self::Version,
        Self::Busy,
        Self::NoPool,
        Self::PoolExists,
        Self::TooManyPools,
        Self::Weight,
        Self::Store,
        Self::NotYours,
        Self::NoDisk,
        Self::TooLong,
        Self::Failed,
    ];

    /// The status of this number; `None` when this version has none.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}
