//! A block of a store, as it is saved.

use crate::block::Key;

/// Bytes of a record.
pub(super) const RECORD_BYTES: usize = 24;

/// Records that are saved, checked and taken together: 3 MiB, whole pages.
pub(crate) const RECORDS: usize = 1 << 17;

/// A block of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    /// Its disk's number, and its own.
    pub(crate) key: Key,
    /// Of its content and its key. On the SSD the low half, and above it the stamp.
    pub(crate) sum: u64,
    /// Its slot in the store.
    pub(crate) slot: u32,
    /// Of the pools in the head, which one it belongs to.
    pub(crate) pool: u32,
    /// Which of its pool's lists it is in: 0 or 1.
    pub(crate) list: usize,
    /// How often it was used, at most 3.
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

    /// The records in these bytes; what is left of the last one is ignored.
    pub(super) fn decode(bytes: &[u8]) -> Vec<Record> {
        let whole = bytes.chunks_exact(RECORD_BYTES);
        whole.filter_map(Record::decode).collect()
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
