//! The configuration of a cache: stores, pools and policies.

use justitia_share::Weight;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

pub use crate::policy::Policy;

/// The store of a pool's blocks: the T of the paper's ⟨T, W⟩ (section 3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StoreKind {
    /// The memory store.
    Memory,
    /// The SSD store. While there is none, or it has failed, the pool's blocks go to memory.
    Ssd,
}

impl std::fmt::Display for StoreKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Ssd => "ssd",
        })
    }
}

/// The weights of a pool among the pools of its VM, one for each store that it uses: the paper's ⟨T, W⟩. With both it is a
/// hybrid pool (section 3.3). It uses at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "[u64; 2]", try_from = "[u64; 2]")]
pub struct PoolSpec {
    memory: Option<Weight>,
    ssd: Option<Weight>,
}

impl PoolSpec {
    /// ⟨memory weight, SSD weight⟩; `None` when there is neither.
    #[must_use]
    pub fn new(memory: Option<Weight>, ssd: Option<Weight>) -> Option<Self> {
        (memory.is_some() || ssd.is_some()).then_some(Self { memory, ssd })
    }

    /// ⟨T, W⟩: one store, and the weight there.
    #[must_use]
    pub const fn of(store: StoreKind, weight: Weight) -> Self {
        match store {
            StoreKind::Memory => Self {
                memory: Some(weight),
                ssd: None,
            },
            StoreKind::Ssd => Self {
                memory: None,
                ssd: Some(weight),
            },
        }
    }

    /// The weight in a store; `None` when the pool does not use it.
    #[must_use]
    pub const fn weight(self, store: StoreKind) -> Option<Weight> {
        match store {
            StoreKind::Memory => self.memory,
            StoreKind::Ssd => self.ssd,
        }
    }

    /// A copy with another weight in one store.
    #[must_use]
    pub const fn with(self, store: StoreKind, weight: Weight) -> Self {
        match store {
            StoreKind::Memory => Self {
                memory: Some(weight),
                ..self
            },
            StoreKind::Ssd => Self {
                ssd: Some(weight),
                ..self
            },
        }
    }

    /// Does it use both stores?
    #[must_use]
    pub const fn is_hybrid(self) -> bool {
        self.memory.is_some() && self.ssd.is_some()
    }

    /// The store for new blocks while both stores work: memory, unless the pool only uses the SSD.
    #[must_use]
    pub const fn first_store(self) -> StoreKind {
        match self.memory {
            Some(_) => StoreKind::Memory,
            None => StoreKind::Ssd,
        }
    }

    /// The weight in the first store.
    #[must_use]
    pub fn first_weight(self) -> Weight {
        self.memory.or(self.ssd).unwrap_or_default()
    }

    /// The current weight in a store: without a working SSD store, its pools use memory.
    pub(crate) fn weight_now(self, store: StoreKind, ssd_works: bool) -> Option<Weight> {
        match store {
            StoreKind::Memory if !ssd_works => Some(self.first_weight()),
            StoreKind::Ssd if !ssd_works => None,
            _ => self.weight(store),
        }
    }
}

impl From<PoolSpec> for [u64; 2] {
    /// 0 is no weight.
    fn from(spec: PoolSpec) -> Self {
        [spec.memory, spec.ssd].map(|weight| weight.map_or(0, Weight::get))
    }
}

impl TryFrom<[u64; 2]> for PoolSpec {
    type Error = &'static str;

    fn try_from(weights: [u64; 2]) -> Result<Self, Self::Error> {
        let [memory, ssd] = weights.map(|weight| Weight::try_from(weight).ok());
        Self::new(memory, ssd).ok_or("expected a weight, found none")
    }
}

impl Default for PoolSpec {
    /// Memory, with the default weight.
    fn default() -> Self {
        Self::of(StoreKind::Memory, Weight::default())
    }
}

/// The SSD store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SsdConfig {
    /// A regular file, created when there is none, or a block device.
    pub path: PathBuf,
    /// Bytes of it to use.
    pub bytes: u64,
    /// Overwrite any contents. Otherwise only an empty file or device is accepted, or the store of a killed server.
    pub overwrite: bool,
}

impl SsdConfig {
    /// `bytes` bytes of a file or device, without overwriting.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>, bytes: u64) -> Self {
        Self {
            path: path.into(),
            bytes,
            overwrite: false,
        }
    }
}

/// The initial configuration of a cache. Sizes and the SSD store can be changed while it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheConfig {
    /// Bytes of the memory store; may be 0.
    pub memory_bytes: u64,
    /// The limit in bytes for growth of the memory store while it runs; `None` is the machine's memory. It only takes address
    /// space.
    pub memory_limit: Option<u64>,
    /// The SSD store, if there is one.
    pub ssd: Option<SsdConfig>,
}

impl CacheConfig {
    /// `memory_bytes` of memory, and no SSD.
    #[must_use]
    pub const fn of_memory(memory_bytes: u64) -> Self {
        Self {
            memory_bytes,
            memory_limit: None,
            ssd: None,
        }
    }
}

impl Default for CacheConfig {
    /// 256 MiB of memory, and no SSD.
    fn default() -> Self {
        Self::of_memory(256 << 20)
    }
}

/// The effect of hits and misses on the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// For clients that cannot put: misses fill the cache, hits leave the block in it.
    #[default]
    Inclusive,
    /// For clients that put the blocks that they evict (the paper's second-chance cache, section 2.1): hits remove the block,
    /// misses do not fill.
    Exclusive,
}
