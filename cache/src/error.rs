//! Errors of changes of the cache. Reads and writes do not fail because of the cache: they miss.

use crate::ids::{DiskId, PoolId, VmId};
use justitia_common::toml_file::Size;
use std::path::PathBuf;

/// Why a change to the cache was refused. The cache stays as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// There is no such VM (any more).
    #[error("expected a VM that the cache knows, found {0}, which was removed or never added")]
    NoVm(VmId),
    /// There is no such pool (any more).
    #[error("expected a pool that exists, found {0}, which was destroyed or never created")]
    NoPool(PoolId),
    /// There is no such disk (any more).
    #[error("expected a disk that the cache knows, found {0}, which was removed or never added")]
    NoDisk(DiskId),
    /// A disk was given a pool of another VM.
    #[error("expected a pool of {expected}, found {pool}, which belongs to {found}")]
    ForeignPool {
        /// The VM of the disk.
        expected: VmId,
        /// The pool that was named.
        pool: PoolId,
        /// The VM of the pool.
        found: VmId,
    },
    /// The pool that a VM's untagged blocks go to cannot be destroyed alone.
    #[error("{0} takes the blocks of {1} that belong to no container: remove the VM instead")]
    DefaultPool(PoolId, VmId),
    /// The limit of these is reached.
    #[error("expected at most {limit} {what}, found one more")]
    TooMany {
        /// What there are too many of.
        what: &'static str,
        /// How many there can be.
        limit: u32,
    },
    /// No memory store has this size.
    #[error("expected at most {} for the memory store, found {}", exact(*limit), exact(*found))]
    MemorySize {
        /// The largest size that works.
        limit: u64,
        /// What was asked for.
        found: u64,
    },
    /// The memory store cannot grow so far.
    #[error(
        "expected at most {} for the memory store, found {}: raise `limit` in `[memory]` and restart the daemon",
        exact(*limit), exact(*found)
    )]
    MemoryLimit {
        /// What it can grow to.
        limit: u64,
        /// What was asked for.
        found: u64,
    },
    /// An SSD store of nothing.
    #[error(
        "expected a size above 0 for the SSD store, found 0: `justitia cache set ssd --remove` takes it away"
    )]
    NoSize,
    /// The SSD store cannot grow so far.
    #[error(
        "expected at most {} for the SSD store, found {}: `justitia cache set ssd PATH SIZE` makes it anew with any size, and drops its blocks",
        exact(*limit), exact(*found)
    )]
    SsdLimit {
        /// What it can grow to.
        limit: u64,
        /// What was asked for.
        found: u64,
    },
    /// There is no SSD store.
    #[error(
        "expected a cache with an SSD store, found one without: name its path and size in the configuration, in an [ssd] table"
    )]
    NoSsd,
    /// Memory for a store could not be reserved.
    #[error("cannot reserve {bytes} bytes of address space for the memory store: {source}")]
    Reserve {
        /// How much was asked for.
        bytes: u64,
        /// Why not.
        source: std::io::Error,
    },
    /// What a guest holds cannot be tracked.
    #[error("cannot take random bytes for the residency table: {source}")]
    Residency {
        /// Why not.
        source: std::io::Error,
    },
    /// The SSD store's file or device cannot be used.
    #[error("cannot use {path} as SSD store: {source}")]
    Ssd {
        /// The file or device.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
}

/// A size as it is written, and to the byte.
fn exact(bytes: u64) -> String {
    format!("{} ({bytes} bytes)", Size(bytes))
}
