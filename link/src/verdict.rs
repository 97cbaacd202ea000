//! What becomes of a block that is offered.

/// What became of an offered block. The numbers are the protocol's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// It is in the cache now.
    Accepted = 0,
    /// The cache holds it already.
    Held = 1,
    /// The host does not know the block's content: never read or written as a whole by this VM since the host's start,
    /// changed since, accepted since, or dropped from the residency table.
    Unknown = 2,
    /// The content is not that of the disk: stale, encrypted, forged, or another block's.
    Mismatch = 3,
    /// A write to the block or near it was under way.
    Raced = 4,
    /// The pool's store has no room.
    NoRoom = 5,
    /// No whole block of the disk.
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

/// Places for numbers by verdict; those without a verdict are 0, for later versions.
pub(crate) const PLACES: usize = 16;

/// Numbers of blocks, by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally([u64; PLACES]);

impl Tally {
    /// Counts blocks.
    pub fn add(&mut self, verdict: Verdict, blocks: u64) {
        if let Some(count) = self.0.get_mut(verdict as usize) {
            *count = count.saturating_add(blocks);
        }
    }

    /// Counts what another has counted.
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

    /// Blocks with any.
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
