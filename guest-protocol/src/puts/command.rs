//! Commands about the pools of the sender's own VM (the paper, section 4.1).
//!
//! From byte 64 of the page on. CREATE and SET_WEIGHT: weight (u32), store (u8), length of the name (u8), 0 (u16), name
//! (64 bytes; only of CREATE); in version 2 the weight on the SSD besides (u32, at byte 136). MIGRATE: first block
//! (u64), blocks (u64). The pool of SET_WEIGHT, MIGRATE and DESTROY and the disk of MIGRATE stand in the header;
//! elsewhere these are 0.

use crate::puts::header::{BODY, Fault, Kind, begin};
use crate::puts::header::{array, set, u16_at, u32_at, u64_at};
use crate::puts::name::{Name, Serial};
use crate::puts::{MAX_MIGRATE, PAGE, VERSION};

/// The store of a pool: T of the paper's ⟨T, W⟩. The numbers are the protocol's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Store {
    /// Memory.
    #[default]
    Memory = 0,
    /// The SSD.
    Ssd = 1,
}

impl Store {
    /// The store of this number; `None` when this version has none.
    #[must_use]
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Memory),
            1 => Some(Self::Ssd),
            _ => None,
        }
    }
}

/// The place of the weight, in CREATE and SET_WEIGHT.
const WEIGHT: usize = BODY;
/// The place of the store, in the same.
const STORE: usize = WEIGHT + 4;
/// The place of the name's length, in CREATE; two zeroes follow it.
const NAME_LENGTH: usize = STORE + 1;
const ZERO: usize = NAME_LENGTH + 1;
/// The place of the name, in CREATE.
const NAME: usize = ZERO + 2;
/// The place of the weight on the SSD.
const SSD_WEIGHT: usize = NAME + Name::MAX;
/// The place of the first block, in MIGRATE.
const FIRST: usize = BODY;
/// The place of the number of blocks, in MIGRATE.
const BLOCKS: usize = FIRST + 8;

/// No serial.
const NO_DISK: Serial = Serial::from_bytes([0; Serial::MAX]);

/// A command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Make a pool; its number comes in the answer.
    Create {
        /// Its name, unique among the VM's pools.
        name: Name,
        /// Where its blocks go.
        store: Store,
        /// Its weight among the VM's pools in that store, 1 to 10000.
        weight: u32,
        /// Of a pool in memory: its additional weight on the SSD; 0: none.
        ssd_weight: u32,
    },
    /// Change a pool's ⟨store, weight⟩. Of a pool in both stores this changes one weight, or with a weight on the SSD both.
    SetWeight {
        /// The pool's number.
        pool: u32,
        /// Where its new blocks go.
        store: Store,
        /// Its new weight there.
        weight: u32,
        /// As for CREATE.
        ssd_weight: u32,
    },
    /// Move cached blocks to a pool.
    Migrate {
        /// The pool's number.
        pool: u32,
        /// The disk.
        serial: Serial,
        /// The first block.
        first: u64,
        /// The number of blocks, at most [`MAX_MIGRATE`](crate::puts::MAX_MIGRATE).
        blocks: u64,
    },
    /// Remove a pool and its blocks. Its number is never used again.
    Destroy {
        /// The pool's number.
        pool: u32,
    },
    /// Bring the pool table up to date.
    GetStats,
}

impl Command {
    pub(crate) fn decode(
        page: &[u8; PAGE],
        version: u16,
        kind: Kind,
        pool: u32,
        serial: Serial,
    ) -> Result<Self, Fault> {
        let word = |at: usize| u64_at(page, at).ok_or(Fault::Length);
        let has_pool = !matches!(kind, Kind::Create | Kind::GetStats);
        let has_serial = kind == Kind::Migrate;
        if pool != 0 && !has_pool || serial != NO_DISK && !has_serial {
            return Err(Fault::Reserved);
        }
        Ok(match kind {
            Kind::Put => return Err(Fault::Kind),
            Kind::Create => {
                let [len] = array(page, NAME_LENGTH).ok_or(Fault::Length)?;
                let bytes = array(page, NAME).ok_or(Fault::Length)?;
                let name = Name::decode(bytes, len).ok_or(Fault::Name)?;
                if name.encode().0 != bytes {
                    return Err(Fault::Reserved);
                }
                let (store, weight, ssd_weight) = specification(page, version)?;
                Self::Create {
                    name,
                    store,
                    weight,
                    ssd_weight,
                }
            }
            Kind::SetWeight => {
                if array(page, NAME_LENGTH) != Some([0])
                    || array(page, NAME) != Some([0; Name::MAX])
                {
                    return Err(Fault::Reserved);
                }
                let (store, weight, ssd_weight) = specification(page, version)?;
                Self::SetWeight {
                    pool,
                    store,
                    weight,
                    ssd_weight,
                }
            }
            Kind::Migrate => Self::Migrate {
                pool,
                serial,
                first: word(FIRST)?,
                blocks: Some(word(BLOCKS)?)
                    .filter(|blocks| *blocks <= MAX_MIGRATE)
                    .ok_or(Fault::TooLong)?,
            },
            Kind::Destroy => Self::Destroy { pool },
            Kind::GetStats => Self::GetStats,
        })
    }

    /// The kind of its message.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Create { .. } => Kind::Create,
            Self::SetWeight { .. } => Kind::SetWeight,
            Self::Migrate { .. } => Kind::Migrate,
            Self::Destroy { .. } => Kind::Destroy,
            Self::GetStats => Kind::GetStats,
        }
    }

    /// Writes the message: a page, to be written at offset 0 of the port.
    pub fn encode(&self, sequence: u64, page: &mut [u8; PAGE]) {
        page.fill(0);
        match self {
            Self::Create {
                name,
                store,
                weight,
                ssd_weight,
            } => {
                begin(page, Kind::Create, sequence, 0, NO_DISK);
                let (bytes, len) = name.encode();
                specify(page, *store, *weight, *ssd_weight);
                set(page, NAME_LENGTH, [len]);
                set(page, NAME, bytes);
            }
            Self::SetWeight {
                pool,
                store,
                weight,
                ssd_weight,
            } => {
                begin(page, Kind::SetWeight, sequence, *pool, NO_DISK);
                specify(page, *store, *weight, *ssd_weight);
            }
            Self::Migrate {
                pool,
                serial,
                first,
                blocks,
            } => {
                begin(page, Kind::Migrate, sequence, *pool, *serial);
                set(page, FIRST, first.to_le_bytes());
                set(page, BLOCKS, blocks.to_le_bytes());
            }
            Self::Destroy { pool } => begin(page, Kind::Destroy, sequence, *pool, NO_DISK),
            Self::GetStats => begin(page, Kind::GetStats, sequence, 0, NO_DISK),
        }
    }
}

/// The store, the weight there, and the additional weight on the SSD.
fn specification(page: &[u8; PAGE], version: u16) -> Result<(Store, u32, u32), Fault> {
    let weight = u32_at(page, WEIGHT).ok_or(Fault::Length)?;
    let [store] = array(page, STORE).ok_or(Fault::Length)?;
    if u16_at(page, ZERO) != Some(0) {
        return Err(Fault::Reserved);
    }
    let store = Store::from_number(store).ok_or(Fault::Store)?;
    // The rest of the page is not used.
    let ssd_weight = match version {
        1 => 0,
        _ => u32_at(page, SSD_WEIGHT).ok_or(Fault::Length)?,
    };
    if ssd_weight != 0 && store != Store::Memory {
        return Err(Fault::Store);
    }
    Ok((store, weight, ssd_weight))
}

fn specify(page: &mut [u8; PAGE], store: Store, weight: u32, ssd_weight: u32) {
    set(page, WEIGHT, weight.to_le_bytes());
    set(page, STORE, [store as u8]);
    if ssd_weight != 0 {
        set(page, 8, VERSION.to_le_bytes());
        set(page, SSD_WEIGHT, ssd_weight.to_le_bytes());
    }
}
