//! The header of every message, and its fields: little-endian, at fixed offsets.
//!
//! The first page: magic (8 bytes), version (u16), kind (u16), blocks (u32), sequence (u64), pool (u32), 0 (u32), the disk's
//! serial (20), 0 (12), and from byte 64 on the fields of the kind.

use crate::puts::name::Serial;

pub(crate) const MAGIC: [u8; 8] = *b"JUSTPORT";

/// Where the fields of the kind begin.
pub(crate) const BODY: usize = 64;

/// The kind of a message. The numbers are the protocol's; 4.1 names the section of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Blocks that the guest has evicted (2.1).
    Put = 1,
    /// CREATE_CGROUP (4.1).
    Create = 2,
    /// SET_CG_WEIGHT (4.1).
    SetWeight = 3,
    /// MIGRATE_OBJECT (4.1).
    Migrate = 4,
    /// DESTROY_CGROUP (4.1).
    Destroy = 5,
    /// GET_STATS (4.1).
    GetStats = 6,
}

impl Kind {
    const ALL: [Self; 6] = [
        Self::Put,
        Self::Create,
        Self::SetWeight,
        Self::Migrate,
        Self::Destroy,
        Self::GetStats,
    ];

    /// The kind of this number; `None` when this version has none.
    #[must_use]
    pub fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u16 == number)
    }
}

/// A fault of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A version above [`VERSION`](crate::puts::VERSION), or 0.
    Version,
    /// A kind that this version does not have.
    Kind,
    /// No block, or more than [`MAX_BLOCKS`](crate::puts::MAX_BLOCKS); blocks of a command.
    Count,
    /// A length that does not fit the kind and the number of blocks.
    Length,
    /// A field that must be 0 is not.
    Reserved,
    /// An invalid name of a pool.
    Name,
    /// A store that this version does not have.
    Store,
    /// MIGRATE of more than [`MAX_MIGRATE`](crate::puts::MAX_MIGRATE) blocks.
    TooLong,
}

/// The version that every host understands.
const FIRST_VERSION: u16 = 1;

/// Writes the header over a page of zeroes.
pub(crate) fn begin(page: &mut [u8], kind: Kind, sequence: u64, pool: u32, serial: Serial) {
    set(page, 0, MAGIC);
    set(page, 8, FIRST_VERSION.to_le_bytes());
    set(page, 10, (kind as u16).to_le_bytes());
    set(page, 16, sequence.to_le_bytes());
    set(page, 24, pool.to_le_bytes());
    set(page, 32, serial.bytes());
}

/// The bytes of a field; `None` beyond the end.
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk::<N>().copied()
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_le_bytes)
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_le_bytes)
}

/// Writes a field. One beyond the end is left out; no layout has one.
pub(crate) fn set<const N: usize>(bytes: &mut [u8], at: usize, field: [u8; N]) {
    if let Some(place) = bytes.get_mut(at..).and_then(|b| b.first_chunk_mut::<N>()) {
        *place = field;
    }
}
