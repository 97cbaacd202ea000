//! Answers: what became of a message.
//!
//! 64 bytes: sequence (u64), kind (u16), status (u16), pool (u32), accepted blocks as bits (u32), blocks (u32), blocks by
//! verdict (16 × u16), 0 (8 bytes).

use crate::fields::{set, u16_at, u32_at, u64_at};
use crate::status::Status;
use crate::verdict::{PLACES, Tally, Verdict};

/// Bytes of an answer.
pub(crate) const ANSWER: usize = 64;

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The message's sequence number.
    pub sequence: u64,
    /// The number of its kind.
    pub kind: u16,
    /// What became of it.
    pub status: Status,
    /// The pool that was created; of a put the pool that its blocks belong to.
    pub pool: u32,
    /// Of a put: bit n says that block n was accepted.
    pub accepted: u32,
    /// Of a put: its blocks by verdict. Of MIGRATE: the accepted are those that changed their pool.
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

    /// `None` when the status is none of this version's.
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
