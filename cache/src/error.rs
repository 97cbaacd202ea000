//! Errors of changes to the cache. The cache does not make reads and writes fail: they miss.

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
    /// The pool for a VM's untagged blocks cannot be destroyed alone.
    #[error("{0} takes the blocks of {1} that belong to no container: remove the VM instead")]
    DefaultPool(PoolId, VmId),
    /// The SSD store's file or device cannot be used.
    #[error("cannot use {path} as SSD store: {source}")]
    Ssd {
        /// The file or device.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Anything else: what was expected and found, and what to do.
    #[error("{0}")]
    Refused(String),
}

/// A size with a unit, and in bytes.
pub(crate) fn exact(bytes: u64) -> String {
    format!("{} ({bytes} bytes)", Size(bytes))
}
