//! What a cache is made of: stores, pools and policies as they are configured.

use justitia_share::Weight;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Where a pool's blocks live: the T of the paper's ⟨T, W⟩ (section 3).
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

/// ⟨T, W⟩: the store of a pool, and its weight among the pools of its VM in that store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolSpec {
    /// Where new blocks go.
    pub store: StoreKind,
    /// The weight among the VM's pools in the same store.
    pub weight: Weight,
}

impl Default for PoolSpec {
    /// Memory, with the default weight.
    fn default() -> Self {
        Self {
            store: StoreKind::Memory,
            weight: Weight::default(),
        }
    }
}

/// The eviction policy of a VM's pools in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// In the order in which the blocks were put (the paper's; LRU when hits take blocks out).
    #[default]
    Fifo,
    /// For exclusive caches: a block that was hit or evicted before and is put again is kept longer than one that is put
    /// for the first time. A ghost list remembers the blocks.
    Ghost,
    /// For inclusive caches: a hand passes over the blocks, oldest first, and spares those that were hit.
    Sieve,
    /// For inclusive caches: a small queue for new blocks, a main queue for those that were hit there or are put again.
    S3Fifo,
}

/// The SSD store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SsdConfig {
    /// A regular file, created when there is none and removed at the end, or a block device. Its content is lost.
    pub path: PathBuf,
    /// Bytes of it to use.
    pub bytes: u64,
}

/// What a cache starts with. Sizes and the SSD store can be changed while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Bytes of the memory store; may be 0.
    pub memory_bytes: u64,
    /// Bytes to which the memory store can grow while it runs; `None` is the machine's memory. Only
    /// address space is taken for it.
    pub memory_limit: Option<u64>,
    /// The SSD store, if there is one.
    pub ssd: Option<SsdConfig>,
}

impl Default for CacheConfig {
    /// 256 MiB of memory, and no SSD.
    fn default() -> Self {
        Self {
            memory_bytes: 256 << 20,
            memory_limit: None,
            ssd: None,
        }
    }
}

/// What a hit does, and what fills the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// For clients that cannot put: misses fill the cache, hits leave the block in it.
    #[default]
    Inclusive,
    /// For clients that put what they evict (the paper's second-chance cache, section 2.1): hits take the
    /// block out, misses do not fill.
    Exclusive,
}
