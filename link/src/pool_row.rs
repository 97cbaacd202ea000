//! The pool table: one row a pool.
//!
//! 256 bytes: number (u32), weight (u32), store (u8), length of the name (u8), flags (u16: bit 0 created over the port,
//! bit 1 says what was taken), 0 (u32), then u64 each: entitlement, memory, SSD (bytes), lookups, hits, insertions,
//! insertions dropped, evictions, invalidations, blocks offered, blocks accepted; the weight on the SSD of a pool in
//! both stores (u32), 0 (u32), blocks taken (u64); 0; at byte 192 the name (64 bytes).

use crate::command::Store;
use crate::fields::{array, set, u16_at, u32_at, u64_at};
use crate::name::Name;

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
    /// Was it created over the port? The others are the host's, and cannot be destroyed over it.
    pub created_over_port: bool,
    /// What it is entitled to, bytes.
    pub entitlement_bytes: u64,
    /// What it holds in memory, bytes.
    pub memory_bytes: u64,
    /// What it holds on the SSD, bytes.
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
    /// Of the blocks that it held, those that a read took out of it (exclusive mode), whichever pool the read was for;
    /// `None` of a host that does not say.
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

    /// `None` when the name or the store is none.
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
